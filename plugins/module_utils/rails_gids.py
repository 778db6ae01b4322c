# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GIDs: what kind each is, and which one a rail has to use.

The rule is one and fixed: an IPv4-mapped RoCE v2 GID, else a global IPv6 RoCE v2 GID, never a link-local one, never
RoCE v1. Mooncake's automatic rule ranks them otherwise; `mooncake_rank` is a model of it, used to warn.
"""
from __future__ import annotations

import ipaddress

from .rails_sysfs import listing, read

ROUTABLE = ("ipv4_mapped", "ipv6_global")
POLICIES = {
    "ipv4_mapped": ("ipv4_mapped", "ipv6_global"),
    "ipv6_global": ("ipv6_global", "ipv4_mapped"),
    "any_v2": None,
}
# What Mooncake counts as private; it takes 192.168.0.0/16 for routable.
_MOONCAKE_PRIVATE = [ipaddress.ip_network(net) for net in ("10.0.0.0/8", "172.16.0.0/12", "100.64.0.0/10")]
_VIRTUAL_NETDEVS = ("docker", "cni", "flannel", "calico", "vxlan")


def gid_to_ipv4(gid):
    """Return the IPv4 address that a GID maps (``::ffff:a.b.c.d``), or None.

    Raises ValueError when the text is no GID.
    """
    mapped = ipaddress.IPv6Address(gid).ipv4_mapped
    return str(mapped) if mapped else None


def gid_kind(gid):
    """Name a GID: zero, link_local, ipv4_mapped, ipv4_local, ipv6_global or other.

    ipv4_local maps an address that does not leave the link or the host (169.254/16, 127/8, 0/8, multicast);
    ipv6_global includes the unique local range fc00::/7, which sites route.
    """
    address = ipaddress.IPv6Address(gid)
    if int(address) == 0:
        return "zero"
    mapped = address.ipv4_mapped
    if mapped:
        local = mapped.is_link_local or mapped.is_loopback or mapped.is_multicast or int(mapped) >> 24 == 0
        return "ipv4_local" if local else "ipv4_mapped"
    if address.is_link_local:
        return "link_local"
    if address.is_multicast or address.is_loopback:
        return "other"
    return "ipv6_global"


def is_v2(gid):
    return gid["type"] == "RoCE v2"


def is_routable(gid):
    """True for a GID record that may carry traffic to another subnet: RoCE v2 and not local."""
    return is_v2(gid) and gid["kind"] in ROUTABLE


def read_gids(port_dir):
    """Read a port's GID table: ``[{index, gid, type, netdev, kind, ipv4}]``, empty slots left out."""
    found = []
    for name in sorted(listing(port_dir, "gids"), key=lambda text: int(text) if text.isdigit() else -1):
        text = read(port_dir, "gids", name)
        if not name.isdigit() or not text:
            continue
        try:
            kind = gid_kind(text)
        except ValueError:
            continue
        if kind == "zero":
            continue
        found.append({
            "index": int(name),
            "gid": text,
            "type": read(port_dir, "gid_attrs", "types", name),
            "netdev": read(port_dir, "gid_attrs", "ndevs", name) or None,
            "kind": kind,
            "ipv4": gid_to_ipv4(text),
        })
    return found


def candidates(gids, policy="ipv4_mapped"):
    """Return the routable GIDs of the kind that the policy prefers, lowest index first."""
    routable = [gid for gid in gids if is_routable(gid)]
    order = POLICIES[policy]
    if order is None:
        return routable
    for kind in order:
        chosen = [gid for gid in routable if gid["kind"] == kind]
        if chosen:
            return chosen
    return []


def choose_common(tables, policy="ipv4_mapped"):
    """Choose one GID per rail, at one index for all where such an index exists.

    ``tables``: rail name to GID table. Returns ``(index or None, {rail: gid record or None})``. The index in common
    must be routable, and of the preferred kind, on every rail.
    """
    options = {name: candidates(gids, policy) for name, gids in tables.items()}
    sets = [{gid["index"] for gid in gids} for gids in options.values()]
    shared = set.intersection(*sets) if sets else set()
    common = min(shared) if shared else None
    chosen = {}
    for name, gids in options.items():
        at_common = [gid for gid in gids if gid["index"] == common]
        chosen[name] = (at_common or gids or [None])[0]
    return common, chosen


def mooncake_rank(gid):
    """Rank a GID as Mooncake's automatic choice does: lower is taken first; None is never ranked."""
    if not is_v2(gid):
        return None
    netdev = gid["netdev"] or ""
    degraded = gid["kind"] in ("link_local", "ipv4_local", "other") or netdev.startswith(_VIRTUAL_NETDEVS) or netdev == "tunl0"
    private = gid["ipv4"] and any(ipaddress.ip_address(gid["ipv4"]) in net for net in _MOONCAKE_PRIVATE)
    if degraded:
        return 3 if netdev else 5
    if private:
        return 2 if netdev else 4
    return 0 if netdev else 1


def mooncake_choice(gids):
    """Return the GID that Mooncake would take with MC_GID_INDEX unset: best rank, then lowest index; any GID else."""
    ranked = [(mooncake_rank(gid), gid["index"], position) for position, gid in enumerate(gids) if mooncake_rank(gid) is not None]
    if ranked:
        return gids[min(ranked)[2]]
    return gids[0] if gids else None
