# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""RDMA devices as sysfs shows them.

A rail is known by its PCI vendor, never by its name: udev may rename ionic_0 to anything. The PCI driver of an ionic
rail is ``ionic``; the RDMA part is the module ``ionic_rdma`` on the auxiliary bus.
"""
from __future__ import annotations

import os
import re
import stat

from .rails_gids import read_gids
from .rails_sysfs import link_name, listing, natural, pci_components, read, read_int

PENSANDO = "0x1dd8"
_BDF = re.compile(r"^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")


def normal_vendor(text):
    """Return a PCI vendor as 0xXXXX, from "1dd8", "0x1DD8" or the integer 7640."""
    number = text if isinstance(text, int) else int(str(text), 16)
    return "0x%04x" % number


def _function(sysfs, name):
    """Return ``(bdf, /sys/devices path)`` of the PCI function behind an RDMA device; (None, None) for a soft device."""
    device = sysfs.path("class", "infiniband", name, "device")
    for start in (device, sysfs.path("class", "infiniband", name)):
        path = os.path.realpath(start)
        # An auxiliary device may stand between the RDMA device and its PCI function.
        while path.startswith(os.path.realpath(sysfs.root) + os.sep):
            if _BDF.match(os.path.basename(path)):
                return os.path.basename(path), path
            path = os.path.dirname(path)
    slot = re.search(r"^PCI_SLOT_NAME=(\S+)$", read(device, "uevent") or "", re.M)
    if slot:
        return slot.group(1), sysfs.pci_path(slot.group(1))
    return None, None


def _rate(text):
    """Return Gb/s from "400 Gb/sec (4X NDR)": an integer where it is one."""
    match = re.match(r"([\d.]+)\s*Gb/sec", text or "")
    if not match:
        return None
    value = float(match.group(1))
    return int(value) if value.is_integer() else value


def _state(text):
    """Return ACTIVE from "4: ACTIVE"."""
    return text.split(":", 1)[-1].strip().upper() if text else None


def _verbs(sysfs):
    """Return ``{RDMA device: (uverbs name, ABI version)}``, or None where the tree has no infiniband_verbs class."""
    if not os.path.isdir(sysfs.path("class", "infiniband_verbs")):
        return None
    found = {}
    for uverbs in listing(sysfs.path("class", "infiniband_verbs")):
        ibdev = read(sysfs.path("class", "infiniband_verbs", uverbs, "ibdev"))
        if ibdev:
            found[ibdev] = (uverbs, read_int(sysfs.path("class", "infiniband_verbs", uverbs, "abi_version")))
    return found


def _netdev(sysfs, name, function, port):
    """Return the network device of a port, from device/net: the one whose dev_port fits, else the only one."""
    folder = os.path.join(function, "net") if function else sysfs.path("class", "infiniband", name, "device", "net")
    names = listing(folder)
    fitting = [net for net in names if read_int(folder, net, "dev_port") == port - 1]
    if len(fitting) == 1:
        return fitting[0]
    return names[0] if names else None


def read_nic(sysfs, name, verbs, dev_root, port=1):
    """Describe one RDMA device; ``reasons`` says what makes it unusable, without its GIDs being judged."""
    bdf, function = _function(sysfs, name)
    device = function or sysfs.path("class", "infiniband", name, "device")
    base = sysfs.path("class", "infiniband", name, "ports")
    ports = [
        {"port": int(number), "state": _state(read(base, number, "state"))}
        for number in sorted(listing(base), key=natural) if number.isdigit()
    ]
    here = os.path.join(base, str(port))
    vendor = read(device, "vendor")
    uverbs, abi = (verbs or {}).get(name, (None, None))
    nic = {
        "name": name,
        "bdf": bdf,
        "vendor": vendor.lower() if vendor else None,
        "device": read(device, "device"),
        "driver": link_name(device, "driver"),
        "is_vf": os.path.exists(os.path.join(device, "physfn")),
        "vfs": read_int(device, "sriov_numvfs", default=0),
        "numa": read_int(device, "numa_node"),
        "netdev": _netdev(sysfs, name, function, port),
        "mtu": None,
        "port": port,
        "ports": ports,
        "state": _state(read(here, "state")),
        "phys_state": read(here, "phys_state"),
        "rate_gbps": _rate(read(here, "rate")),
        "link_layer": read(here, "link_layer"),
        "uverbs": uverbs,
        "abi_version": abi,
        "gids": read_gids(here),
        "sysfs_path": function,
        "reasons": [],
    }
    nic["reasons"] = _faults(nic, verbs, dev_root)
    return nic


def _faults(nic, verbs, dev_root):
    reasons = []
    if nic["state"] is None:
        reasons.append("has no port %d" % nic["port"])
    elif nic["state"] != "ACTIVE":
        active = [str(port["port"]) for port in nic["ports"] if port["state"] == "ACTIVE"]
        hint = " (port %s is ACTIVE; Mooncake opens the one port of MC_IB_PORT on every rail)" % ", ".join(active) if active else ""
        reasons.append("is %s%s" % (nic["state"], hint))
    if verbs is not None and not nic["uverbs"]:
        reasons.append("has no uverbs device")
    elif nic["uverbs"] and dev_root:
        node = os.path.join(dev_root, "infiniband", nic["uverbs"])
        try:
            is_device = stat.S_ISCHR(os.stat(node).st_mode) or dev_root != "/dev"
        except OSError:
            is_device = False
        if not is_device:
            reasons.append("has no character device %s" % node)
    return reasons


def read_nics(sysfs, dev_root=None, port=1):
    """Describe every RDMA device of a tree, in PCI order."""
    verbs = _verbs(sysfs)
    nics = [read_nic(sysfs, name, verbs, dev_root, port) for name in listing(sysfs.path("class", "infiniband"))]
    return sorted(nics, key=lambda nic: (nic["bdf"] is None, nic["bdf"] or "", natural(nic["name"])))


def pci_key(nic):
    return tuple(pci_components(nic["sysfs_path"] or "")), natural(nic["name"])
