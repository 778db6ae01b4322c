# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything about a host's rails in one answer: rails, GPUs, pairs, GIDs, evidence, warnings."""
from __future__ import annotations

import ipaddress
import os

from .gpu_kfd import read_gpus
from .rails_gids import candidates, choose_common, mooncake_choice
from .rails_kernel import gpu_mr_path, p2pdma, peermem, subnets
from .rails_nics import PENSANDO, normal_vendor, read_nics
from .rails_pairing import mooncake_preferred, pair
from .rails_sysfs import Sysfs, read_int


class RailsError(Exception):
    """The rails are not what was asked for; the text holds every reason."""


def _judge(rail, policy, min_rate_gbps):
    """Fill in ``usable`` and the reasons that depend on what was asked for."""
    reasons = list(rail["reasons"])
    if rail["link_layer"] != "InfiniBand" and not candidates(rail["gids"], policy):
        there = ", ".join("%d: %s %s" % (gid["index"], gid["type"], gid["kind"]) for gid in rail["gids"])
        reasons.append("has no routable RoCEv2 GID (%s)" % (there or "its GID table is empty"))
    if min_rate_gbps and (rail["rate_gbps"] or 0) < min_rate_gbps:
        reasons.append("runs at %s Gb/s, below min_rate_gbps %s" % (rail["rate_gbps"], min_rate_gbps))
    rail["reasons"] = reasons
    rail["usable"] = not reasons


def _apply_gids(rails, policy):
    """Choose GIDs; returns ``(index in common or None, {rail: index})`` over the usable rails."""
    roce = [rail for rail in rails if rail["link_layer"] != "InfiniBand"]
    common, chosen = choose_common({rail["name"]: rail["gids"] for rail in roce if rail["usable"]}, policy)
    for rail in rails:
        gid = chosen.get(rail["name"])
        if rail["link_layer"] == "InfiniBand":
            gid = dict(rail["gids"][0], kind="infiniband") if rail["gids"] else None
        rail["gid_index"] = gid["index"] if gid else None
        rail["gid"] = gid["gid"] if gid else None
        rail["gid_kind"] = gid["kind"] if gid else None
        rail["ipv4"] = gid["ipv4"] if gid else None
        rail["netdev"] = (gid["netdev"] if gid else None) or rail["netdev"]
        automatic = mooncake_choice(rail["gids"])
        rail["mooncake_gid_index"] = automatic["index"] if automatic else None
    indexes = {rail["name"]: rail["gid_index"] for rail in rails if rail["usable"]}
    if len(set(indexes.values())) == 1 and None not in indexes.values():
        common = next(iter(indexes.values()))
    elif any(rail["link_layer"] == "InfiniBand" for rail in rails if rail["usable"]):
        common = None
    return common, indexes


def _apply_network(rails, sysfs, networks):
    for rail in rails:
        rail["mtu"] = read_int(sysfs.path("class", "net", rail["netdev"], "mtu")) if rail["netdev"] else None
        address = rail["ipv4"] or (rail["gid"] if rail["gid_kind"] == "ipv6_global" else None)
        rail["subnet"] = None
        for network in networks.get(rail["netdev"], []) if address else []:
            if ipaddress.ip_address(address) in ipaddress.ip_network(network):
                rail["subnet"] = network


def _spread(rails, key, what, unit):
    values = {}
    for rail in rails:
        if rail["usable"] and rail[key] is not None:
            values.setdefault(rail[key], []).append(rail["name"])
    if len(values) < 2:
        return []
    parts = ["%s%s (%s)" % (value, unit, ", ".join(names)) for value, names in sorted(values.items())]
    return ["rails differ in %s: %s" % (what, "; ".join(parts))]


def _warnings(rails, gpus, links, fallback, common, indexes):
    found = []
    by_name = {rail["name"]: rail for rail in rails}
    numa = {gpu["hip_index"]: gpu["numa"] for gpu in gpus}
    for link in links:
        if link["numa_match"] is False:
            found.append("numa_mismatch: GPU %d reports NUMA node %s and its rail %s node %s; paired by their PCIe switch" % (
                link["gpu"], numa[link["gpu"]], link["rail"], by_name[link["rail"]]["numa"]))
    for link in fallback:
        why = "shares rail %s on its switch with another GPU" if link["shared"] else "has no rail on its switch; nearest free rail is %s"
        found.append(("GPU %d " + why + " (%s)") % (link["gpu"], link["rail"], link["kind"]))
    helped = {link["gpu"] for link in links + fallback}
    alone = [str(gpu["hip_index"]) for gpu in gpus if gpu["hip_index"] not in helped]
    if alone:
        found.append("no usable rail is left for GPU %s" % ", ".join(alone))
    for rail in rails:
        if not rail["usable"]:
            found.append("rail %s (%s) %s" % (rail["name"], rail["bdf"], "; ".join(rail["reasons"])))
        elif rail["gid_index"] is not None and rail["mooncake_gid_index"] != rail["gid_index"]:
            found.append("rail %s: Mooncake's own choice with MC_GID_INDEX unset would be GID %s, not %d" % (
                rail["name"], rail["mooncake_gid_index"], rail["gid_index"]))
    if len(indexes) > 1 and common is None:
        found.append("no GID index is good on every rail (%s): MC_GID_INDEX must stay unset" % ", ".join(
            "%s: %s" % item for item in indexes.items()))
    found += _spread(rails, "rate_gbps", "rate", " Gb/s")
    found += _spread(rails, "mtu", "MTU", "")
    found += _spread(rails, "abi_version", "kernel ABI", "")
    return found


def collect(sysfs_root="/sys", dev_root=None, proc_root=None, boot_root=None, vendor_ids=(PENSANDO,), include_vfs=False,
            min_rate_gbps=0, gid_policy="ipv4_mapped", port=1, visible_devices=None):
    """Read a host's (or a fake tree's) rails.

    ``dev_root``, ``proc_root``, ``boot_root``: None means /dev, /proc, /boot for the real /sys and "do not look" for any
    other tree. Returns the dictionary that the module documents. Raises ValueError for a wrong argument.
    """
    if os.path.abspath(sysfs_root) == "/sys":
        dev_root, proc_root, boot_root = dev_root or "/dev", proc_root or "/proc", boot_root or "/boot"
    sysfs = Sysfs(sysfs_root)
    vendors = [normal_vendor(vendor) for vendor in vendor_ids]
    nics = read_nics(sysfs, dev_root, port)
    rails = [nic for nic in nics if nic["vendor"] in vendors and (include_vfs or not nic["is_vf"])]
    other = [nic for nic in nics if nic not in rails]
    for nic in nics:
        _judge(nic, gid_policy, min_rate_gbps if nic in rails else 0)
    common, indexes = _apply_gids(rails, gid_policy)
    for nic in other:
        _apply_gids([nic], gid_policy)
    networks = subnets(proc_root) if proc_root else {}
    _apply_network(nics, sysfs, networks)

    gpus, warnings = read_gpus(sysfs, visible_devices)
    links, fallback = pair(gpus, rails)
    paired = {link["gpu"] for link in links}
    peer = peermem(sysfs, proc_root)
    p2p = p2pdma(proc_root, boot_root)
    ionic = any(rail["vendor"] == PENSANDO for rail in rails)
    listed = mooncake_preferred(gpus, [rail for rail in rails if rail["usable"]])
    preferred = mooncake_preferred(gpus, nics)
    own = {str(link["gpu"]): link["rail"] for link in links}
    warnings += _warnings(rails, gpus, links, fallback, common, indexes)
    for item in nics + gpus:
        item["sysfs_path"] = sysfs.relative(item["sysfs_path"]) if item["sysfs_path"] else None
    return {
        "rails": rails,
        "other_rdma": other,
        "gpus": gpus,
        "pairs": links,
        "fallback": fallback,
        "unpaired_gpus": [gpu["hip_index"] for gpu in gpus if gpu["hip_index"] not in paired],
        "spare_rails": [rail["name"] for rail in rails if rail["usable"] and rail["name"] not in own.values()],
        "mooncake_preferred": preferred,
        "map_required": any(listed[gpu] != [name] for gpu, name in own.items()),
        "gid_index_common": common,
        "gid_indexes": indexes,
        "peermem": peer,
        "p2pdma": p2p,
        "gpu_mr_path": gpu_mr_path(peer, p2p, ionic),
        "warnings": warnings,
    }


def shortcomings(facts, expect_rails=None, require_names=(), vendor_ids=(PENSANDO,)):
    """Return every reason why these rails are not good enough, for a strict caller."""
    rails, reasons = facts["rails"], []
    if not rails:
        reasons.append("no RDMA device of vendor %s" % ", ".join(normal_vendor(vendor) for vendor in vendor_ids))
    for rail in rails:
        if not rail["usable"]:
            reasons.append("rail %s (%s) %s" % (rail["name"], rail["bdf"], "; ".join(rail["reasons"])))
    reasons += ["GPU %d has no rail on its switch" % gpu for gpu in facts["unpaired_gpus"]]
    names = {rail["name"] for rail in rails}
    missing = [name for name in require_names if name not in names]
    if missing:
        reasons.append("required rails are missing: %s (there are: %s)" % (", ".join(missing), ", ".join(sorted(names)) or "none"))
    usable = sum(1 for rail in rails if rail["usable"])
    expected = expect_rails if expect_rails is not None else len(rails)
    if usable < expected:
        reasons.append("%d of %d expected rails usable" % (usable, expected))
    return reasons
