# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Do the rails of several hosts fit each other? Used on the controller only, where netaddr is at hand.

Mooncake matches the peer's rail by name (MC_ENABLE_DEST_DEVICE_AFFINITY). A name that stands for another wire on the
other host breaks that without an error, so names, their order and their subnets are compared.
"""
from __future__ import annotations

try:
    from netaddr import IPNetwork
    HAS_NETADDR = True
except ImportError:
    HAS_NETADDR = False


def _network(rail, prefix):
    """Return the rail's subnet as an IPNetwork, from the host's routes or else from its address and ``prefix``."""
    if rail.get("subnet"):
        return IPNetwork(rail["subnet"]).cidr
    address = rail.get("ipv4") or (rail.get("gid") if rail.get("gid_kind") == "ipv6_global" else None)
    if not address:
        return None
    length = prefix if rail.get("ipv4") else 64
    return IPNetwork("%s/%d" % (address, length)).cidr


def _by_subnet(rails, prefix):
    return {str(_network(rail, prefix)): rail["name"] for rail in rails}


def compare(hosts, routed=False, prefix=24, names=None):
    """Compare hosts' rails. ``hosts``: ``{host: rails or the result of rails_info}``; ``names``: only these rails.

    ``routed``: the rails' subnets need not be equal, because the fabric routes between them. ``prefix``: length of an IPv4
    subnet that no route told. Returns ``{ok, faults[], warnings[], rails[]}``; each fault names both sides.
    """
    if not HAS_NETADDR:
        raise ImportError("rail_parity needs the Python package netaddr on the controller")
    usable = {}
    for host, facts in hosts.items():
        rails = facts["rails"] if isinstance(facts, dict) else facts
        usable[host] = [rail for rail in rails if rail["usable"] and (names is None or rail["name"] in names)]
    faults, warnings = [], []
    order = list(usable)
    reference = order[0] if order else None
    mine = [rail["name"] for rail in usable.get(reference, [])]
    for host in order[1:]:
        theirs = [rail["name"] for rail in usable[host]]
        if theirs == mine:
            faults += _compare_rails(reference, host, usable, routed, prefix)
        elif sorted(theirs) == sorted(mine):
            faults.append("rails come in another order: %s has %s, %s has %s; same_name would join different wires" % (
                reference, ",".join(mine), host, ",".join(theirs)))
        else:
            faults.append(_names_fault(reference, host, mine, theirs, usable, prefix))
    indexes = {host: sorted({rail["gid_index"] for rail in rails}, key=str) for host, rails in usable.items()}
    if len({str(index) for index in indexes.values()}) > 1:
        warnings.append("GID indexes differ between hosts, which is fine, since each host renders its own: %s" % ", ".join(
            "%s: %s" % (host, "/".join(map(str, index))) for host, index in indexes.items()))
    return {"ok": not faults, "faults": faults, "warnings": warnings, "rails": mine}


def _names_fault(one, other, mine, theirs, usable, prefix):
    text = "usable rails differ: %s has %s, %s has %s" % (one, ",".join(mine) or "none", other, ",".join(theirs) or "none")
    left, right = _by_subnet(usable[one], prefix), _by_subnet(usable[other], prefix)
    renamed = ["%s is %s there" % (left[net], right[net]) for net in left if net in right and left[net] != right[net] and net != "None"]
    return text + (" (by subnet: %s)" % ", ".join(renamed) if renamed else "") + "; name them alike on both hosts (udev), or repair the missing one"


def _compare_rails(one, other, usable, routed, prefix):
    faults = []
    for left, right in zip(usable[one], usable[other]):
        name = left["name"]
        nets = [_network(rail, prefix) for rail in (left, right)]
        if not routed and nets[0] != nets[1]:
            where = _by_subnet(usable[other], prefix).get(str(nets[0]))
            faults.append("rail %s: subnet %s on %s, %s on %s%s; a peer of that name is out of reach (or say that the fabric routes between rails)" % (
                name, nets[0], one, nets[1], other, " (that subnet is on %s there)" % where if where else ""))
        for key, what in (("mtu", "MTU"), ("rate_gbps", "rate in Gb/s"), ("link_layer", "link layer")):
            if left.get(key) != right.get(key):
                faults.append("rail %s: %s %s on %s, %s on %s" % (name, what, left.get(key), one, right.get(key), other))
    return faults
