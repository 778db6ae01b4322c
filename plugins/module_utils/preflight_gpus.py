# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of a host's GPUs, read-only: driver, number, memory in use and its holders, faults.

Nothing here installs a driver, resets a GPU or reboots. A GPU that a memory access fault left unusable is recognised from the
kernel's log together with what KFD shows, and reported for an administrator.
"""
from __future__ import annotations

import os
import re

from .gpu_kfd import read_gpus
from .host_ports import container_of
from .preflight_check import failed, not_applicable, passed, verdict, warned
from .rails_sysfs import Sysfs, listing, natural, read, read_int

GIB = 2 ** 30
_FAULT = re.compile(r"amdgpu (?P<bdf>[0-9a-f:.]+): .*?(?:page fault|VM_L2_PROTECTION_FAULT|memory access fault)", re.I)
_RESET_DONE = re.compile(r"amdgpu (?P<bdf>[0-9a-f:.]+): .*GPU reset.*succeeded", re.I)
# Signs that a process's queues could not be taken off a GPU; some come without the GPU's address.
_STUCK = re.compile(r"Failed to evict process queues|fence wait loop timeout expired|might be in an unrecoverable state|Failed to quiesce KFD|GPU hang|"
                    r"ring \S+ timeout", re.I)
RESET = ("an administrator has to reset it, or reboot the host, when nothing else uses it; this collection never resets a GPU. "
         "Keep the kernel's log and the engine's log first")


def holders(sysfs, proc, gpus):
    """Return ``{hip index: [{pid, bytes, command, alive, container}]}`` from /sys/class/kfd/kfd/proc."""
    base = sysfs.path("class", "kfd", "kfd", "proc")
    by_id = {str(gpu["gpu_id"]): gpu["hip_index"] for gpu in gpus if gpu["gpu_id"]}
    found = {}
    for pid in sorted(filter(str.isdigit, listing(base)), key=natural):
        for name in listing(base, pid):
            held = read_int(base, pid, name, default=0) if name.startswith("vram_") else 0
            index = by_id.get(name[len("vram_"):]) if held else None
            if index is None:
                continue
            process = os.path.join(proc, pid)
            alive = os.path.isdir(process)
            command = (read(process, "cmdline") or read(process, "comm") or "").replace("\0", " ").strip()[:80] if alive else ""
            found.setdefault(index, []).append({"pid": int(pid), "bytes": held, "command": command, "alive": alive,
                                                "container": container_of(process) if alive else None})
    return found


def read_log(text):
    """Return ``({bdf: last fault line after its last reset}, [lines about stuck queues])``."""
    faults, stuck = {}, []
    for line in (text or "").splitlines():
        found = _FAULT.search(line)
        if found:
            faults[found.group("bdf")] = line.strip()
        reset = _RESET_DONE.search(line)
        if reset:
            faults.pop(reset.group("bdf"), None)
            stuck = []
        if _STUCK.search(line):
            stuck.append(line.strip())
    return faults, stuck


def check_gpus(sysfs_root, proc, dev, expected, used, max_vram_gib=2.0, own_ids=(), kernel_log=None):
    """Check the GPUs that this host's engines will use.

    ``expected``: how many the host has to have; 0 when none is needed. ``used``: HIP ordinals that engines get; empty means all.
    ``own_ids``: ids of the deployment's own containers. ``kernel_log``: its text, None when unreadable. Returns checks.
    """
    if not expected:
        return [not_applicable(name, "no engine on this host uses a GPU") for name in ("gpu driver", "gpus", "gpu memory", "gpu faults")]
    sysfs = Sysfs(sysfs_root)
    gpus, notes = read_gpus(sysfs)
    checks = _driver(sysfs, dev, gpus) + _number(sysfs, gpus, notes, expected, used)
    picked = [gpu for gpu in gpus if not used or gpu["hip_index"] in used]
    held = holders(sysfs, proc, gpus)
    faulty, fault_checks = _faults(gpus, held, kernel_log, max_vram_gib)
    return checks + _memory(picked, held, faulty, max_vram_gib, own_ids) + fault_checks


def _driver(sysfs, dev, gpus):
    version = read(sysfs.path("module", "amdgpu", "version"))
    if not os.path.isdir(sysfs.path("module", "amdgpu")) and not gpus:
        return [failed("gpu driver", "amdgpu is not loaded", "install and load AMD's driver; this collection installs none")]
    missing = [node for node in ["kfd"] + ["dri/renderD%s" % gpu["render_minor"] for gpu in gpus if gpu["render_minor"]]
               if dev and not os.path.exists(os.path.join(dev, node))]
    if missing:
        return [failed("gpu driver", "device files are missing: %s" % ", ".join("/dev/" + node for node in missing), "reload the driver, and see udev's rules")]
    return [passed("gpu driver", "amdgpu %s" % (version or "of the kernel itself"))]


def _vram(gpu):
    return read_int(gpu["sysfs_path"] or "", "mem_info_vram_used")


def _number(sysfs, gpus, notes, expected, used):
    unseen = [bdf for bdf in listing(sysfs.path("bus", "pci", "drivers", "amdgpu")) if re.match(r"^[0-9a-f]{4}:", bdf)
              and bdf not in {gpu["bdf"] for gpu in gpus}]
    faults = []
    if len(gpus) < expected:
        more = ["bound to amdgpu but not in KFD: %s" % ", ".join(unseen)] if unseen else []
        faults.append("; ".join(["%d GPUs, %d needed (infera_gpus_per_host)" % (len(gpus), expected)] + more + list(notes)))
    beyond = [str(index) for index in used if index >= len(gpus)]
    if beyond and not faults:
        faults.append("engines are to use GPU %s, the host has 0 to %d" % (", ".join(beyond), len(gpus) - 1))
    return verdict("gpus", faults, "%d found, %d needed" % (len(gpus), expected),
                   "see the kernel's log for a GPU that failed to start; correct the shape otherwise")


def _memory(gpus, held, faulty, max_vram_gib, own_ids):
    if not gpus:
        return [not_applicable("gpu memory", "no GPU that an engine may use")]
    faults, own, busy = [], set(), 0
    for gpu in gpus:
        index, used = gpu["hip_index"], _vram(gpu)
        people = held.get(index, [])
        foreign = [holder for holder in people if holder["alive"] and (not holder["container"] or holder["container"] not in own_ids)]
        ours = [holder for holder in people if holder["alive"] and holder not in foreign]
        if index in faulty:
            continue
        if foreign:
            busy += 1
            faults += [("GPU %d is held by process %d (%s), %.1f GiB" % (index, holder["pid"], holder["command"] or "unknown", holder["bytes"] / GIB),
                        "end it, or give the engines other GPUs") for holder in foreign]
        elif ours:
            own.add(index)
        elif used is not None and used >= max_vram_gib * GIB:
            busy += 1
            faults.append(("GPU %d has %.1f GiB in use, and no living process holds it" % (index, used / GIB),
                           "wait: after an engine with HiCache the driver may take 10 to 65 minutes to release it; look at the kernel's log otherwise"))
    text = "%d idle (below %s GiB)" % (len(gpus) - len(own) - busy, max_vram_gib) + (", %d used by our own engines" % len(own) if own else "")
    return verdict("gpu memory", faults, text)


def _faults(gpus, held, kernel_log, max_vram_gib):
    """Return ``({hip indexes that are unusable}, checks)``."""
    if kernel_log is None:
        return set(), [warned("gpu faults", "the kernel's log cannot be read", "run with become, so that a GPU memory access fault can be recognised")]
    faults, stuck = read_log(kernel_log)
    unusable, checks = set(), []
    for gpu in gpus:
        line = faults.get(gpu["bdf"])
        if not line:
            continue
        people = held.get(gpu["hip_index"], [])
        evidence = ["KFD still lists process %d, which is gone, with %.1f GiB" % (holder["pid"], holder["bytes"] / GIB)
                    for holder in people if not holder["alive"]]
        used = _vram(gpu)
        if used is not None and used >= max_vram_gib * GIB and not any(holder["alive"] for holder in people):
            evidence.append("%.1f GiB in use without a living holder" % (used / GIB))
        evidence += stuck[-1:] if evidence else []
        where = "GPU %d (%s)" % (gpu["hip_index"], gpu["bdf"])
        if evidence:
            unusable.add(gpu["hip_index"])
            checks.append(failed("gpu faults", "%s is unusable after a GPU memory access fault: %s; %s" % (where, line, "; ".join(evidence)), RESET))
        else:
            checks.append(warned("gpu faults", "%s had a memory access fault: %s" % (where, line), "it looks usable since; if its engine hangs, " + RESET))
    gone = sorted(set(faults) - {gpu["bdf"] for gpu in gpus})
    checks += [failed("gpu faults", "the GPU at %s left KFD after a memory access fault: %s" % (bdf, faults[bdf]), RESET) for bdf in gone]
    return unusable, checks or [passed("gpu faults", "none in the kernel's log")]
