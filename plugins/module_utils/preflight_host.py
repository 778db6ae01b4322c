# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of a host that need neither GPU nor rails: system, memory, disk, ports, limits, model, mounts, etcd.

Functions take roots and return lists of checks (see preflight_check); they read and never write.
"""
from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import urllib.request

from .host_ports import describe, ephemeral_range, listeners, reserved_ports
from .preflight_check import failed, not_applicable, passed, verdict, warned
from .rails_sysfs import listing, read

GB = 1e9
# 180 GB of HiCache took 41.25 GB more for the DSA indexer's pool (InferenceX #3329).
HICACHE_FACTOR = 1.23
_CAP_SYS_RESOURCE = 24
MIN_PYTHON = (3, 9)


def check_os(path, supported):
    """``supported``: texts such as "Debian 12"."""
    release = dict(re.findall(r'^([A-Z_]+)="?([^"\n]*)"?$', read(path) or "", re.M))
    name = "%s %s" % (release.get("NAME", "unknown").replace(" GNU/Linux", ""), release.get("VERSION_ID", ""))
    if any(name.strip() == wanted or name.strip().startswith(wanted + ".") for wanted in supported):
        return [passed("os", name.strip())]
    return [failed("os", "preflight_supported_systems: %s is not among them" % name.strip(),
                   "use one of %s, or extend preflight_supported_systems" % ", ".join(supported))]


def check_python(version, has_requests):
    """``version``: (major, minor) of the host's Python; ``has_requests``: the Docker modules can import requests."""
    text = "%d.%d" % tuple(version[:2])
    if tuple(version[:2]) < MIN_PYTHON:
        return [failed("python", "ansible_python_interpreter: Python %s is too old" % text,
                       "install Python %d.%d or newer and name it in ansible_python_interpreter" % MIN_PYTHON)]
    return [passed("python", text + ("" if has_requests else "; without requests yet, which the role container_engine installs"))]


def _meminfo(proc):
    return {name: int(value) * 1024 for name, value in re.findall(r"^(\w+):\s+(\d+) kB", read(proc, "meminfo") or "", re.M)}


def check_memory(proc, base_gb, stages=0, stage_gb=0, running=False):
    """Memory for the host's engines: ``base_gb`` plus HiCache, ``stages`` processes of ``stage_gb`` each (GB are 10^9 bytes).

    While the deployment's own engines run (``running``) the memory that they hold counts as there.
    """
    found = _meminfo(proc)
    if "MemTotal" not in found:
        return [not_applicable("memory", "no meminfo in %s" % proc)]
    have = found["MemTotal" if running else "MemAvailable"] / GB
    hicache = stages * stage_gb * HICACHE_FACTOR
    need = base_gb + hicache
    detail = "%.1f GB %s, %.1f needed" % (have, "in all (our engines run)" if running else "free", need)
    if hicache:
        detail += " (%d HiCache stages x %s GB x %.2f = %.0f GB)" % (stages, stage_gb, HICACHE_FACTOR, hicache)
    if have >= need:
        return [passed("memory", detail)]
    variable = "prefill_hicache (size_gb)" if hicache > base_gb else "preflight_min_memory_gb"
    return [failed("memory", "%s: too little memory: %s" % (variable, detail), "free memory, use a larger host, or lower %s" % variable)]


def check_disk(wanted, running=False):
    """``wanted``: ``[{path, gb}]``; the nearest folder that exists is measured.

    Running engines have their images already: then the file system has to be large enough in all, and 2 GB free.
    """
    checks, seen = [], set()
    for entry in wanted:
        place = entry["path"]
        while not os.path.exists(place) and os.path.dirname(place) != place:
            place = os.path.dirname(place)
        # One file system is measured once.
        if (os.stat(place).st_dev, entry["gb"]) in seen:
            continue
        seen.add((os.stat(place).st_dev, entry["gb"]))
        data = os.statvfs(place)
        free, size, need = data.f_bavail * data.f_frsize / GB, data.f_blocks * data.f_frsize / GB, entry["gb"]
        enough = size >= need and free >= min(need, 2.0) if running else free >= need
        text = "%.1f GB free at %s, %.1f needed" % (free, entry["path"], need) + (" in all (our engines run)" if running else "")
        checks.append(passed("disk", text) if enough else failed(
            "disk", "preflight_min_disk_gb: too little disk: %s" % text, "free space there, or lower preflight_min_disk_gb"))
    return checks or [not_applicable("disk", "nothing asked for")]


def check_ports(proc, ports, own_ids):
    """``ports``: ``[{port, variable, use}]``; ``own_ids``: ids of the deployment's own containers, which may hold them."""
    if not ports:
        return [not_applicable("ports", "this host gets no port")]
    wanted = {entry["port"]: entry for entry in ports}
    faults, own = [], 0
    between, kept = ephemeral_range(proc), reserved_ports(proc)
    for port, entry in sorted(wanted.items()):
        if between and between[0] <= port <= between[1] and port not in kept:
            faults.append(("%s: %d (%s) lies in this host's ephemeral range %d-%d" % ((entry["variable"], port, entry["use"]) + tuple(between)),
                           "choose a port outside, since any outgoing connection may take it"))
    for port, owners in sorted(listeners(wanted, proc).items()):
        foreign = [owner for owner in owners if owner["container"] not in own_ids or not owner["container"]]
        own += 0 if foreign else 1
        for owner in foreign[:1]:
            faults.append(("%s: %d (%s) is held by %s" % (wanted[port]["variable"], port, wanted[port]["use"], describe(owner)),
                           "stop it or choose another port"))
    return verdict("ports", faults, "%d free%s" % (len(wanted) - own, ", %d held by our own containers" % own if own else ""))


def _daemon(proc):
    """Return the pid of dockerd as text, or "1" where it does not run yet."""
    for pid in listing(proc):
        if pid.isdigit() and read(proc, pid, "comm") == "dockerd":
            return pid
    return "1"


def check_limits(proc, ulimits):
    """Can a container get these limits? ``ulimits``: ``{memlock: "soft:hard", ...}``; -1 is unlimited.

    Docker raises a limit above its own hard limit only with CAP_SYS_RESOURCE.
    """
    if not ulimits:
        return [not_applicable("limits", "no container asks for limits")]
    pid = _daemon(proc)
    names = {"memlock": "Max locked memory", "nofile": "Max open files", "stack": "Max stack size", "nproc": "Max processes", "core": "Max core file size"}
    text, status = read(proc, pid, "limits") or "", read(proc, pid, "status") or ""
    bounding = re.search(r"^CapBnd:\s*([0-9a-f]+)", status, re.M)
    may_raise = bool(bounding and int(bounding.group(1), 16) >> _CAP_SYS_RESOURCE & 1)
    ceiling = read(proc, "sys", "fs", "nr_open")
    faults = []
    for name, value in sorted(ulimits.items()):
        wanted = int(str(value).rsplit(":", 1)[-1])
        if name == "nofile" and ceiling and (wanted < 0 or wanted > int(ceiling)):
            faults.append(("nofile %s is above fs.nr_open %s" % (wanted, ceiling), "raise the sysctl fs.nr_open, or lower engine_ulimits"))
            continue
        hard = re.search(r"^%s\s+\S+\s+(\S+)" % re.escape(names.get(name, name)), text, re.M)
        if may_raise or not hard or hard.group(1) == "unlimited" or 0 <= wanted <= int(hard.group(1)):
            continue
        faults.append(("%s %s is above the hard limit %s of %s, which lacks CAP_SYS_RESOURCE" % (
            name, "unlimited" if wanted < 0 else wanted, hard.group(1), "dockerd" if pid != "1" else "this machine"),
            "raise the limit for the Docker service, or lower engine_ulimits"))
    return verdict("limits", faults, ", ".join("%s %s" % item for item in sorted(ulimits.items())))


def check_model(path, variable="infera_model_path"):
    """Is every shard of the model's folder there? Links into a cache are followed."""
    if not path:
        return [not_applicable("model", "the deployment makes its own model")], None
    if not os.path.isdir(path):
        what = "is no folder" if os.path.exists(path) else "does not exist"
        return [failed("model", "%s: %s %s on this host" % (variable, path, what), "copy the model there, or set %s" % variable)], None
    faults = []
    if not os.path.exists(os.path.join(path, "config.json")):
        faults.append("%s: %s has no config.json" % (variable, path))
    index = os.path.join(path, "model.safetensors.index.json")
    shards = [name for name in listing(path) if name.endswith(".safetensors")]
    if os.path.exists(index):
        try:
            with open(index, encoding="utf-8") as handle:
                shards = sorted(set(json.load(handle)["weight_map"].values()))
            if not shards or any(os.path.basename(name) != name for name in shards):
                raise ValueError("its weight_map does not name files of this folder")
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            return [failed("model", "%s: %s is unreadable: %s: %s" % (variable, index, type(error).__name__, error), "copy the model again")], None
    elif not shards:
        faults.append("%s: %s has neither model.safetensors.index.json nor a .safetensors file" % (variable, path))
    sizes = {name: os.path.getsize(os.path.join(path, name)) if os.path.isfile(os.path.join(path, name)) else None for name in shards}
    missing = [name for name, size in sizes.items() if not size]
    if missing:
        faults.append("%s: %d of %d shards are missing or empty in %s: %s%s" % (
            variable, len(missing), len(shards), path, ", ".join(missing[:3]), ", ..." if len(missing) > 3 else ""))
    total = sum(size or 0 for size in sizes.values())
    checks = verdict("model", faults, "%s: %d shards, %.1f GB" % (path, len(shards), total / 1e9), "copy the model again")
    return checks, {"shards": len(shards), "bytes": total}


def check_mounts(mounts):
    """``mounts``: ``[{source, variable}]``, files and folders that containers bind. Docker would make a missing one a folder."""
    faults = []
    for mount in mounts:
        source, variable = mount["source"], mount["variable"]
        if not os.path.exists(source):
            faults.append(("%s: %s does not exist on this host" % (variable, source),
                           "Docker would make an empty folder of it; install it or correct %s" % variable))
        elif mount.get("file") and not os.path.isfile(source):
            faults.append(("%s: %s is a folder, not a file" % (variable, source), "remove it (Docker made it for a missing source) and install the file"))
    return verdict("mounts", faults, "%d found" % len(mounts)) if mounts else [not_applicable("mounts", "nothing is mounted")]


def _tls(files):
    """Return the handler for etcd's certificates; raises OSError where one cannot be read."""
    if not files.get("ca"):
        return []
    context = ssl.create_default_context(cafile=files["ca"])
    if files.get("cert"):
        context.load_cert_chain(files["cert"], files.get("key"))
    return [urllib.request.HTTPSHandler(context=context)]


def check_etcd(endpoints, managed, running, files=None, timeout=3.0):
    """Does etcd answer? ``managed``: this deployment runs etcd itself, so before the first start there is none."""
    if not endpoints:
        return [not_applicable("etcd", "no endpoint given")]
    if managed and not running:
        return [not_applicable("etcd", "this deployment starts it")]
    try:
        handlers = [urllib.request.ProxyHandler({})] + _tls(files or {})
    except (OSError, ssl.SSLError) as error:
        return [failed("etcd", "etcd_tls_ca_file, etcd_tls_cert_file, etcd_tls_key_file: %s, %s, %s: %s" % (
            tuple((files or {}).get(kind) for kind in ("ca", "cert", "key")) + (error,)), "put the three files there in PEM, readable for root")]
    opener, faults = urllib.request.build_opener(*handlers), []
    for endpoint in endpoints:
        try:
            with opener.open(endpoint.rstrip("/") + "/health", timeout=timeout) as answer:
                health = json.loads(answer.read(65536))
            if not isinstance(health, dict) or health.get("health") not in ("true", True):
                faults.append(("%s says that it is unhealthy" % endpoint, "look at its log: a member may be lost or its disk full"))
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            faults.append(("%s cannot be reached: %s" % (endpoint, reason), "start it, correct the endpoint, or open the firewall for its port"))
    if faults and len(faults) < len(endpoints):
        return [warned("etcd", text, fix) for text, fix in faults]
    return verdict("etcd", faults, ", ".join(endpoints))


def check_numa_balancing(proc):
    value = read(proc, "sys", "kernel", "numa_balancing")
    if value == "1":
        return [warned("numa", "automatic NUMA balancing is on", "switch it off (sysctl kernel.numa_balancing=0): it costs throughput on these machines")]
    return [passed("numa", "automatic NUMA balancing is off")] if value is not None else [not_applicable("numa", "the kernel has none")]
