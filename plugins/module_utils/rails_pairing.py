# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which rail belongs to which GPU: by the PCIe path that they share, never by number, never by NUMA first."""
from __future__ import annotations

import os

from .rails_sysfs import pci_shared_depth


def kind_of(depth, numa_match):
    """Name a closeness: pcie_switch (below one root port), host_bridge, numa, remote."""
    if depth >= 2:
        return "pcie_switch"
    if depth == 1:
        return "host_bridge"
    return "numa" if numa_match else "remote"


def numa_match(gpu, rail):
    """True or False; None when either side's node is unknown."""
    if gpu["numa"] is None or rail["numa"] is None or min(gpu["numa"], rail["numa"]) < 0:
        return None
    return gpu["numa"] == rail["numa"]


def _link(gpu, rail, depth):
    same = numa_match(gpu, rail)
    return {"gpu": gpu["hip_index"], "rail": rail["name"], "kind": kind_of(depth, same), "shared_depth": depth, "numa_match": same}


def pair(gpus, rails):
    """Match GPUs and usable rails one to one; partitions of one GPU (one PCI address) share its rail.

    Returns ``(pairs, fallback)``. A pair shares a root port. ``fallback`` holds, for a GPU without one, the nearest
    that is left: a free rail further away, or (``shared: true``) a rail below its own root port that another GPU has.
    """
    usable = [rail for rail in rails if rail["usable"]]
    cards = {}
    for gpu in gpus:
        cards.setdefault(gpu["bdf"], []).append(gpu)
    options = []
    for bdf, members in cards.items():
        for rail in usable:
            depth = pci_shared_depth(members[0]["sysfs_path"] or "", rail["sysfs_path"] or "")
            far = numa_match(members[0], rail) is not True
            options.append((-depth, far, members[0]["hip_index"], rail["bdf"] or "", rail["name"], bdf, rail))
    options.sort(key=lambda option: option[:5])
    pairs, fallback = [], []
    owner, done = {}, set()
    for option in options:
        bdf, rail = option[5], option[6]
        if bdf in done or rail["name"] in owner:
            continue
        done.add(bdf)
        owner[rail["name"]] = bdf
        links = [_link(gpu, rail, -option[0]) for gpu in cards[bdf]]
        if links[0]["kind"] == "pcie_switch":
            pairs.extend(links)
        else:
            fallback.extend(dict(link, shared=False) for link in links)
    paired = {link["gpu"] for link in pairs}
    for option in options:
        # A rail below the GPU's own root port beats a free one behind the socket, though two GPUs then share it.
        bdf, rail = option[5], option[6]
        members = [gpu for gpu in cards[bdf] if gpu["hip_index"] not in paired]
        if -option[0] < 2 or not members or any(link["gpu"] == members[0]["hip_index"] and link["shared"] for link in fallback):
            continue
        fallback = [link for link in fallback if link["gpu"] not in [gpu["hip_index"] for gpu in members]]
        fallback.extend(dict(_link(gpu, rail, -option[0]), shared=True) for gpu in members)
    return sorted(pairs, key=lambda link: link["gpu"]), sorted(fallback, key=lambda link: link["gpu"])


def _remaining(one, other):
    """Mooncake's distance: path separators left in both paths after the common prefix of characters."""
    common = os.path.commonprefix([one, other])
    return one[len(common):].count("/") + other[len(common):].count("/")


def mooncake_preferred(gpus, nics):
    """Model Mooncake's own discovery: ``{str(hip index): [names it would prefer]}``, ties all preferred.

    It looks at NUMA first and at the depth that is left, not the depth that is shared, and knows every RDMA device
    that it can open, management adapters too.
    """
    open_nics = [nic for nic in nics if nic["state"] == "ACTIVE" and nic["gids"] and nic["sysfs_path"]]
    preferred = {}
    for gpu in gpus:
        near = [nic for nic in open_nics if nic["numa"] == gpu["numa"]] or open_nics
        distances = {nic["name"]: _remaining(gpu["sysfs_path"] or "", nic["sysfs_path"]) for nic in near}
        best = min(distances.values()) if distances else None
        preferred[str(gpu["hip_index"])] = [name for name, distance in distances.items() if distance == best]
    return preferred
