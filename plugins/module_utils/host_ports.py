# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who listens on a port of this host, read from /proc. Functions take a proc root and return data."""
from __future__ import annotations

import os
import re

__all__ = ["container_of", "describe", "ephemeral_range", "listeners", "reserved_ports"]

_LISTEN = "0A"
_CONTAINER = re.compile(r"(?:docker[-/]|/)([0-9a-f]{64})(?:\.scope)?\s*$", re.M)


def listeners(ports, proc="/proc"):
    """Return {port: [{pid, command, container}]} for those of *ports* that something listens on.

    ``pid`` is None where the process cannot be seen (another PID namespace, or not root); ``container`` is a container id or None.
    """
    wanted, inodes = set(ports), {}
    for name in ("tcp", "tcp6"):
        try:
            with open(os.path.join(proc, "net", name), encoding="ascii") as table:
                rows = table.readlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if len(fields) > 9 and fields[3] == _LISTEN:
                port = int(fields[1].rsplit(":", 1)[1], 16)
                if port in wanted:
                    inodes[fields[9]] = port
    found = {port: [] for port in inodes.values()}
    if not inodes:
        return found
    for pid in filter(str.isdigit, os.listdir(proc)):
        for port in _ports_of(os.path.join(proc, pid), inodes):
            entry = {"pid": int(pid), "command": _command(os.path.join(proc, pid)), "container": container_of(os.path.join(proc, pid))}
            if entry not in found[port]:
                found[port].append(entry)
    for owners in found.values():
        if not owners:
            owners.append({"pid": None, "command": "a process that cannot be seen", "container": None})
    return found


def _ports_of(process, inodes):
    ports = set()
    try:
        for handle in os.listdir(os.path.join(process, "fd")):
            try:
                target = os.readlink(os.path.join(process, "fd", handle))
            except OSError:
                continue
            if target.startswith("socket:[") and target[8:-1] in inodes:
                ports.add(inodes[target[8:-1]])
    except OSError:
        pass
    return ports


def _command(process):
    try:
        with open(os.path.join(process, "cmdline"), "rb") as handle:
            return handle.read().replace(b"\0", b" ").decode(errors="replace").strip()[:120]
    except OSError:
        return ""


def container_of(process):
    """Return the id of the Docker container that the process at this /proc folder runs in, or None."""
    try:
        with open(os.path.join(process, "cgroup"), encoding="ascii", errors="replace") as handle:
            found = _CONTAINER.search(handle.read())
    except OSError:
        return None
    return found.group(1) if found else None


def describe(owner):
    """Return an entry of listeners() in words."""
    pid = "process %d, " % owner["pid"] if owner["pid"] else ""
    inside = " in container %s (docker ps names it)" % owner["container"][:12] if owner["container"] else ""
    return pid + (owner["command"] or "unknown") + inside


def ephemeral_range(proc="/proc"):
    """Return (lowest, highest) of the ports that the kernel gives to outgoing connections, or None."""
    try:
        with open(os.path.join(proc, "sys/net/ipv4/ip_local_port_range"), encoding="ascii") as handle:
            low, high = handle.read().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return None


def reserved_ports(proc="/proc"):
    """Return the set of ports that the kernel keeps out of that range."""
    try:
        with open(os.path.join(proc, "sys/net/ipv4/ip_local_reserved_ports"), encoding="ascii") as handle:
            text = handle.read().strip()
    except OSError:
        return set()
    out = set()
    for part in filter(None, text.split(",")):
        low, _dash, high = part.partition("-")
        out.update(range(int(low), int(high or low) + 1))
    return out
