# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel offers for RDMA into GPU memory: peer memory modules, or dma-buf with PCI peer to peer."""
from __future__ import annotations

import gzip
import ipaddress
import os
import re

from .rails_sysfs import listing, read

PEERMEM_MODULES = ("ib_peer_mem", "amdp2p", "nvidia_peermem", "nv_peer_mem")
# The options that Mooncake looks for before it registers GPU memory through dma-buf, with a symbol that shows each.
DMABUF_OPTIONS = {"CONFIG_PCI_P2PDMA": "pci_p2pdma_add_resource", "CONFIG_DMABUF_MOVE_NOTIFY": "dma_buf_move_notify"}


def peermem(sysfs, proc_root=None):
    """Return ``{present, evidence[]}``: which peer memory module is there, and what shows it."""
    evidence = ["/sys/module/%s" % name for name in PEERMEM_MODULES if os.path.isdir(sysfs.path("module", name))]
    evidence += ["/sys/kernel/mm/memory_peers/%s" % name for name in listing(sysfs.path("kernel", "mm", "memory_peers"))]
    for uverbs in listing(sysfs.path("class", "infiniband_verbs")):
        if read(sysfs.path("class", "infiniband_verbs", uverbs, "device", "peer_mem_clients")):
            evidence.append("/sys/class/infiniband_verbs/%s/device/peer_mem_clients" % uverbs)
    loaded = read(proc_root, "modules") if proc_root else None
    for line in (loaded or "").splitlines():
        name = line.split(" ", 1)[0]
        if name in PEERMEM_MODULES and "/sys/module/%s" % name not in evidence:
            evidence.append("%s in /proc/modules" % name)
    return {"present": bool(evidence), "evidence": evidence}


def _config(proc_root, boot_root):
    """Return ``(text, name)`` of the running kernel's configuration, or (None, None)."""
    release = read(proc_root, "sys", "kernel", "osrelease")
    if boot_root and release:
        text = read(boot_root, "config-%s" % release)
        if text is not None:
            return text, "/boot/config-%s" % release
    try:
        with gzip.open(os.path.join(proc_root, "config.gz"), "rt", errors="replace") as handle:
            return handle.read(), "/proc/config.gz"
    except (OSError, EOFError):
        return None, None


def p2pdma(proc_root=None, boot_root=None):
    """Return ``{usable, source, options{}}``: whether GPU memory can be registered through dma-buf.

    ``usable`` is None when the kernel does not say. In a container without /boot Mooncake falls back on /proc/kallsyms,
    as this does.
    """
    unknown = {"usable": None, "source": None, "options": dict.fromkeys(DMABUF_OPTIONS)}
    if not proc_root:
        return unknown
    text, source = _config(proc_root, boot_root)
    if text is not None:
        options = {name: bool(re.search(r"^%s=y$" % name, text, re.M)) for name in DMABUF_OPTIONS}
    else:
        symbols = read(proc_root, "kallsyms")
        if not symbols:
            return unknown
        source = "/proc/kallsyms"
        options = {name: bool(re.search(r"\s%s\b" % symbol, symbols)) for name, symbol in DMABUF_OPTIONS.items()}
    return {"usable": all(options.values()), "source": source, "options": options}


def gpu_mr_path(peer, p2p, ionic):
    """Name the way to register GPU memory: peermem, dmabuf_pinned (ionic has no ODP), dmabuf, none, or None (unknown)."""
    if peer["present"]:
        return "peermem"
    if p2p["usable"] is None:
        return None
    if not p2p["usable"]:
        return "none"
    return "dmabuf_pinned" if ionic else "dmabuf"


def subnets(proc_root):
    """Return ``{netdev: ["a.b.c.d/len", ...]}`` of directly connected networks, from /proc/net/route and if_inet6."""
    found = {}
    for line in (read(proc_root, "net", "route") or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or fields[2] != "00000000" or fields[1] == "00000000":
            continue
        address = ipaddress.ip_address(int.from_bytes(bytes.fromhex(fields[1])[::-1], "big"))
        mask = bin(int(fields[7], 16)).count("1")
        found.setdefault(fields[0], []).append(str(ipaddress.ip_network("%s/%d" % (address, mask), strict=False)))
    for line in (read(proc_root, "net", "if_inet6") or "").splitlines():
        fields = line.split()
        if len(fields) < 6 or fields[3] == "20":
            continue
        address = ipaddress.ip_address(int(fields[0], 16).to_bytes(16, "big"))
        found.setdefault(fields[5], []).append(str(ipaddress.ip_network("%s/%d" % (address, int(fields[2], 16)), strict=False)))
    return found
