# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan asks of one host, as the checks take it. Pure; the plan is infera.serving.plan's dictionary."""
from __future__ import annotations

from .mooncake_workers import flag, uses_rdma

ENGINES = ("prefill", "decode", "mixed")
PORTS = {("router", "http"): "router_port", ("etcd", "client"): "etcd_client_port", ("etcd", "peer"): "etcd_peer_port"}
# Mooncake's handshake and TCP data, unless MC_MIN_RPC_PORT and MC_MAX_RPC_PORT say otherwise; SGLang's ranks take any port of the ephemeral range,
# for which one stands.
MOONCAKE_PORTS, RANK_PORT = (15000, 17000), 47999
# Folders that the deployment makes itself need not be there yet.
_MOUNTS = {"/host-libionic/libionic.so": ("engine_libionic_file", True)}


def _int(text, default=0):
    try:
        return int(float(text))
    except (TypeError, ValueError):
        return default


def _hicache(engines):
    """Return ``(processes, GB of the largest)`` of HiCache: SGLang's size is per process, that is per rank and stage."""
    stages, size = 0, 0
    for container in engines:
        own = _int(flag(container["command"], "--hicache-size"))
        if own:
            stages += _int(flag(container["command"], "--tp-size", "1"), 1) * _int(flag(container["command"], "--pp-size", "1"), 1)
            size = max(size, own)
    return stages, size


def _ports(containers):
    found = []
    for container in containers:
        named = {port: use for use, port in container["ports"].items()}
        for port in container.get("listens") or named:
            variable = PORTS.get((container["role"], named.get(port)), "engine_port_base")
            found.append({"port": port, "variable": variable, "use": "%s %s" % (container["name"], named.get(port, "KV of a further rank"))})
    return found


def _transfer_ports(containers):
    """Return ports that the engines of a prefill-decode pair use beside the planned ones."""
    found = set()
    for container in containers:
        if container["role"] in ("prefill", "decode"):
            found.add(RANK_PORT)
            for name, default in zip(("MC_MIN_RPC_PORT", "MC_MAX_RPC_PORT"), MOONCAKE_PORTS):
                found.add(_int(container["env"].get(name), default))
    return sorted(found)


def _mounts(containers, plan):
    state, model, seen = plan.get("state_dir") or "\0", plan["model"]["path"], {}
    for container in containers:
        for mount in container["mounts"]:
            source = mount["source"]
            if mount["type"] != "bind" or source.startswith(state + "/") or (source == model and not plan["model"].get("made")):
                continue
            variable, is_file = _MOUNTS.get(mount["target"], ("the mount of %s" % mount["target"], False))
            if "etcd-" in mount["target"]:
                variable, is_file = "etcd_tls_%s_file" % mount["target"].rsplit("etcd-", 1)[1].split(".")[0], True
            seen[source] = {"source": source, "variable": variable, "file": is_file}
    return sorted(seen.values(), key=lambda mount: mount["source"])


def wants(plan, host):
    """Return what ``host`` has to offer.

    Keys: deployment, roles, rdma, gpus, gpus_expected, hicache_stages, hicache_gb, ports, ulimits, model, mounts, images,
    etcd_endpoints, etcd_files, environments {container: env}, address, reach_ports. Empty values for a host without containers.
    """
    containers = [container for container in plan.get("containers", []) if container["host"] == host]
    engines = [container for container in containers if container["role"] in ENGINES]
    gpus = sorted({gpu for container in engines for gpu in container.get("gpus") or []})
    stages, size = _hicache(engines)
    limits = {}
    for container in containers:
        limits.update(container["ulimits"])
    settings, model = plan.get("settings", {}), plan.get("model", {})
    tls = {mount["target"].rsplit("etcd-", 1)[1].split(".")[0]: mount["source"] for container in containers for mount in container["mounts"]
           if "etcd-" in mount["target"] and mount["target"].endswith(".pem")}
    listens = sorted({entry["port"] for entry in _ports(containers)})
    address = next((entry["address"] for entry in plan.get("hosts", []) if entry["name"] == host), "")
    return {
        "deployment": plan.get("deployment", ""),
        "roles": sorted({container["role"] for container in containers}),
        "rdma": any(uses_rdma(container) for container in engines),
        "gpus": gpus,
        "gpus_expected": _int(settings.get("infera_gpus_per_host")) if gpus else 0,
        "hicache_stages": stages,
        "hicache_gb": size,
        "ports": _ports(containers),
        "ulimits": limits,
        "model": model.get("path", "") if containers and not model.get("made") and any(
            mount["source"] == model.get("path") for container in containers for mount in container["mounts"]) else "",
        "mounts": _mounts(containers, plan),
        "images": sorted({container["image"] for container in engines if container["image"]}),
        "etcd_endpoints": list(settings.get("etcd_endpoints", [])) if containers else [],
        "etcd_files": tls,
        "environments": {container["name"]: {name: value for name, value in container["env"].items() if name.startswith(("MC_", "MOONCAKE_", "NCCL_IB_GID"))}
                         for container in engines if uses_rdma(container)},
        "address": address,
        "reach_ports": listens + [port for port in _transfer_ports(containers) if port not in listens],
    }


def peers(plan, host):
    """Return the other hosts as preflight_reach takes them; none for a host that is on the loopback network."""
    own = wants(plan, host)
    if not own["address"] or own["address"].startswith("127."):
        return []
    found = []
    for entry in plan.get("hosts", []):
        if entry["name"] != host and entry["address"] != own["address"]:
            found.append({"host": entry["name"], "address": entry["address"], "ports": wants(plan, entry["name"])["reach_ports"]})
    return found
