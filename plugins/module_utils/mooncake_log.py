# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an engine really did, from its log: Mooncake's own lines, libibverbs' complaints, GPU faults."""
from __future__ import annotations

import datetime
import re

from .ionic_lib import abi_complaints

_HCAS = re.compile(r"Topology discovery complete\. Found (\d+) HCAs")
_INSTALL = re.compile(r"installTransport, type=(\w+)")
_GID_AUTO = re.compile(r"Selected auto GID\[(\d+)\] on (\S+)")
_GID_BEST = re.compile(r"Find best gid index: (\d+) on (\S+?)[/\s]")
_GID_DEVICE = re.compile(r"RDMA device: ([\w.-]+).*?GID: \(GID_Index (\d+)\)\s*([0-9a-f:]+)?")
_GID_USER = re.compile(r"Using user-specified GID index: (\d+)(?: on ([\w.-]+))?")
_SPLIT = re.compile(r"Auto-splitting buffer .*? into (\d+) chunks of <= (\d+)")
_SHRINK = re.compile(r"shrink it to (\d+)")
_IGNORED = re.compile(r"Ignore value from environment variable (\w+)")
_SKIPPED = re.compile(r"(?:Skipping unavailable device|Skipping device|Disable device|Failed to open device):?\s+([\w.-]+)")
_FAULT = re.compile(r"Memory access fault by GPU node-(\d+)[^\n]*")
_LISTEN = re.compile(r"RPC using .*?listening on (\S+)")

NO_TRANSPORT = "the log shows no transport"
_STAMP = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\S* ", re.M)

_REGISTER = ("Failed to register memory", "Failed to export dma_buf", "Failed to retrieve dmabuf", "not registered by any active device",
             "exceeds device max_mr_size", "Failed to register memory region")
_TCP = ("MC_FORCE_TCP is set, using TCP transport only", "TcpTransport: listen on port")
_FATAL = ("RdmaTransport: No available RNIC", "RdmaTransport: cannot initialize RDMA resources", "Failed to install transport, type=rdma")
_DMABUF_OFF = ("HIP dmabuf disabled via MOONCAKE_DISABLE_HIP_DMABUF", "HIP dmabuf MR registration disabled", "falling back to ibv_reg_mr")


def unstamp(text):
    """Take off the time stamps of ``docker logs --timestamps``; returns ``(text, earliest stamp or None)``."""
    return _STAMP.sub("", text), min(_STAMP.findall(text), default=None)


def within(start, stamp, seconds):
    """Whether a stamp lies at most so many seconds after a start; both RFC 3339 in UTC. A start of another form counts as near."""
    form = "%Y-%m-%dT%H:%M:%S"
    try:
        return (datetime.datetime.strptime(stamp[:19], form) - datetime.datetime.strptime(start[:19], form)).total_seconds() <= seconds
    except ValueError:
        return True


def _unique(items):
    return list(dict.fromkeys(items))


def parse(text):
    """Read a log. Returns the dictionary that the module mooncake_log_facts documents.

    ``transport`` is rdma, tcp, failed (RDMA was wanted and could not start) or None when the log shows none: with
    MC_LOG_LEVEL above INFO nothing can be said. Several processes may write one log: any TCP start counts.
    """
    lines = text.splitlines()
    hcas = [int(count) for count in _HCAS.findall(text)]
    installed = _INSTALL.findall(text)
    tcp_lines = [line.strip() for line in lines if any(mark in line for mark in _TCP)]
    fatal = [line.strip() for line in lines if any(mark in line for mark in _FATAL)]
    register = [line.strip() for line in lines if any(mark in line for mark in _REGISTER)]
    splits = [(int(count), int(limit)) for count, limit in _SPLIT.findall(text)]
    shrinks = [int(size) for size in _SHRINK.findall(text)]
    gids = {}
    for pattern in (_GID_AUTO, _GID_BEST):
        gids.update({name.rstrip("/:,"): int(index) for index, name in pattern.findall(text)})
    gids.update({name: int(index) for name, index, _gid in _GID_DEVICE.findall(text)})
    faults = [match.group(0).strip() for match in _FAULT.finditer(text)]
    rdma = "rdma" in installed and not fatal
    forced = "MC_FORCE_TCP is set, using TCP transport only" in text
    no_device = "No RDMA devices found" in text or (bool(hcas) and min(hcas) == 0)
    transport = "failed" if fatal else "tcp" if tcp_lines and (forced or no_device or not rdma) else "rdma" if rdma else None
    return {
        "transport": transport,
        "tcp_fallback": bool(tcp_lines) and not forced and transport == "tcp",
        "tcp_forced": forced,
        "hcas_found": min(hcas) if hcas else None,
        "engines": len(_LISTEN.findall(text)),
        "gids": gids,
        "gid_index_user": [int(index) for index, _name in _GID_USER.findall(text)][-1:] or None,
        "gid_null": "GID is NULL" in text,
        "chunk_limit": max((limit for _count, limit in splits), default=None),
        "split_count": len(splits),
        "chunks": sum(count for count, _limit in splits),
        "truncations": len(shrinks),
        "disabled_devices": _unique(_SKIPPED.findall(text)),
        "register_failures": _unique(register),
        "dmabuf_disabled": any(mark in text for mark in _DMABUF_OFF),
        "topology_failed": "Failed to load custom topology" in text or "Topology::parse: JSON parse error" in text,
        "ignored_variables": _unique(_IGNORED.findall(text)),
        "abi_complaints": abi_complaints(text),
        "gpu_memory_faults": _unique(faults),
        "evidence": _unique((fatal + tcp_lines + register)[:20]),
    }


def faults(facts, transport="rdma", rails=None):
    """Return what contradicts the deployment, one line each with what to do; empty when all is well.

    ``transport``: what was asked for. ``rails``: how many rails every engine has to find, None for "at least one".
    """
    found = []
    if facts["gpu_memory_faults"]:
        found.append("a GPU memory access fault stopped the engine (%s): the GPU stays unusable until an administrator resets it; nothing here "
                     "resets a GPU" % facts["gpu_memory_faults"][0])
    if transport == "tcp":
        if facts["transport"] != "tcp":
            found.append("TCP was asked for, but the log shows %s" % (facts["transport"] or "no transport"))
        return found
    if facts["transport"] == "tcp":
        how = "MC_FORCE_TCP is set" if facts["tcp_forced"] else "it fell back without an error"
        found.append("the engine runs over TCP, not RDMA (%s): see the rails inside the container (ibv_devinfo), /dev/infiniband and libionic" % how)
    elif facts["transport"] == "failed":
        found.append("RDMA could not start (%s): no device could be opened inside the container; see /dev/infiniband and libionic" % facts["evidence"][0])
    elif facts["transport"] is None:
        found.append(NO_TRANSPORT + ": MC_LOG_LEVEL has to be INFO, and the engine has to be up")
    if facts["hcas_found"] == 0 and facts["transport"] == "rdma":
        found.append("0 HCAs were found: the device list, the topology file or the filter names none that can be opened")
    if rails is not None and facts["hcas_found"] is not None and 0 < facts["hcas_found"] < rails:
        found.append("%d of %d rails were found by the engine" % (facts["hcas_found"], rails))
    for complaint in facts["abi_complaints"]:
        found.append("the container's library for %s supports kernel ABI %d to %d, the host's driver has %d: inject the host's library" % (
            complaint["driver"], complaint["low"], complaint["high"], complaint["kernel"]))
    if facts["disabled_devices"]:
        found.append("devices were disabled: %s" % ", ".join(facts["disabled_devices"]))
    if facts["gid_null"]:
        found.append("a GID is NULL: MC_GID_INDEX names an empty slot on a rail; leave it unset or take the index in common")
    if facts["register_failures"]:
        found.append("memory registration failed: %s" % facts["register_failures"][0])
    if facts["topology_failed"]:
        found.append("the file of MC_CUSTOM_TOPO_JSON could not be read: it is missing inside the container, or malformed")
    if facts["truncations"]:
        found.append("%d registrations were cut short: this engine does not split them (Mooncake before 0.3.13)" % facts["truncations"])
    if facts["ignored_variables"]:
        found.append("Mooncake ignored the value of %s" % ", ".join(facts["ignored_variables"]))
    return found
