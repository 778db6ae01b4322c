# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where every worker goes: host, GPUs, ports. Nothing else in the collection decides that.

Workers of a role are dealt to the role's hosts in turn, in the order prefill, decode, mixed. On a host a worker takes the next
free GPUs, or those that <role>_gpu_ids names, and the next block of ports, or the one that <role>_ports names.
"""
from __future__ import annotations

import ipaddress
import re
from collections import Counter

__all__ = ["ENGINE_ROLES", "PUBLISHED", "Worker", "check_hosts", "check_machines", "check_name", "check_ports", "place"]

ENGINE_ROLES = ("prefill", "decode", "mixed")
EXAMPLE_NETWORKS = [ipaddress.ip_network(net) for net in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")]
MOONCAKE_PORTS = (15000, 17000)
# SGLang takes HTTP port + 233 to + 239 on loopback under DP attention.
SGLANG_OWN = (233, 239)
# The published shapes: {role: (workers, GPUs of one)}. Prefills and decodes are on different hosts.
PUBLISHED = {
    "mix": {"mixed": (1, 4)},
    "2p1d": {"prefill": (2, 4), "decode": (1, 8)},
    "1p_decode4": {"prefill": (1, 4), "decode": (1, 4)},
    "1p1d": {"prefill": (1, 4), "decode": (1, 8)},
}


class Worker:
    """One engine: its role, number within the role, host, number on the host, GPUs (ordinals of the host), ports and ranks."""

    def __init__(self, role, instance, host, address, slot, gpus, ranks, ports):
        self.role, self.instance, self.host, self.address = role, instance, host, address
        self.slot, self.gpus, self.ranks, self.ports = slot, gpus, ranks, ports

    @property
    def label(self):
        return f"{self.role}-{self.instance}"


def check_machines(values, groups, machines, addressed, faults):
    """A host of a role's group that the site does not know would be left out in silence by -l mi355x.

    *machines*: hosts of the group mi355x; *addressed*: hosts with an address of their own, wherever it is written.
    """
    if not machines:
        return
    used = dict.fromkeys(host for name in ("etcd",) + ENGINE_ROLES + ("router",) for host in groups.get(name) or [])
    strangers = [host for host in used if host not in machines and host not in addressed]
    for host in strangers:
        where = ", ".join(name for name in ("etcd",) + ENGINE_ROLES + ("router",) if host in (groups.get(name) or []))
        faults.add(f"group {where}", host, f"mi355x has no such host, it has {', '.join(machines)}; use one name in {values['infera_site_file']} "
                   "and in the shape's hosts.yml")


def check_hosts(values, groups, addresses, faults):
    """Groups that are needed have hosts, and every host that is used has a filled-in address."""
    needed = ["router", "etcd"] + [role for role in ENGINE_ROLES if values[f"{role}_workers"]]
    for name in needed:
        if not groups.get(name):
            faults.add(f"group {name}", None, f"put a host into the inventory group {name}")
    if not any(values[f"{role}_workers"] for role in ENGINE_ROLES):
        faults.add("prefill_workers", 0, "no worker at all; set prefill_workers and decode_workers, or mixed_workers")
    if bool(values["prefill_workers"]) != bool(values["decode_workers"]):
        missing = "decode" if values["prefill_workers"] else "prefill"
        faults.add(f"{missing}_workers", 0, "prefill and decode only work in pairs; set at least 1")
    if groups.get("router") and len(groups["router"]) != 1:
        faults.add("group router", ", ".join(groups["router"]), "demand is booked per router process; keep exactly one host in it")
    if groups.get("etcd") and len(groups["etcd"]) % 2 == 0:
        faults.add("group etcd", ", ".join(groups["etcd"]), "an even number of etcd members cannot outvote a split; use 1, 3 or 5 hosts")
    used = sorted({host for name in needed for host in groups.get(name, [])})
    examples = [host for host in used if _is_example(addresses.get(host))]
    if examples:
        shown = ", ".join(f"{host}={addresses[host]}" for host in examples)
        faults.add("ansible_host", shown, f"still example addresses; fill in {values['infera_site_file']}")
    seen = {}
    for host in used:
        address = addresses.get(host)
        if address and not _is_address(address):
            faults.add(f"ansible_host of {host}", address,
                       f"is neither an IP address nor a host name (no port, no user); correct it in {values['infera_site_file']}")
            continue
        if not address:
            faults.add(f"infera_host_address of {host}", address, f"give the host its address in {values['infera_site_file']}")
        elif address in seen:
            faults.add(f"infera_host_address of {host}", address, f"{seen[address]} has the same address; every host needs its own")
        else:
            seen[address] = host
        if address in ("0.0.0.0", "::", "*"):
            faults.add(f"infera_host_address of {host}", address, "a wildcard is no address to register; give the fleet's address")
    if len(used) > 1:
        for host in used:
            if str(addresses.get(host, "")).startswith("127.") or addresses.get(host) in ("localhost", "::1"):
                faults.add(f"infera_host_address of {host}", addresses[host], "other hosts cannot reach a loopback address; set ansible_host to the fleet's")


def check_name(values, workers, faults):
    """A published shape's name stands for its published form alone, so that results never mix. *workers*: what place() returned."""
    form = PUBLISHED.get(values["infera_shape"])
    if form is None:
        return
    name, problems = values["infera_shape"], []
    for role in ENGINE_ROLES:
        count, gpus = form.get(role, (0, 0))
        if values[f"{role}_workers"] != count or count and values[f"{role}_gpus"] != gpus:
            wanted = f"{count} of {gpus} GPUs" if count else "none"
            here = f"{role}_workers: {values[f'{role}_workers']}, {role}_gpus: {values[f'{role}_gpus']}"
            problems.append(f"its {role} workers are {wanted}, here {here}")
    shared = {w.host for w in workers if w.role == "prefill"} & {w.host for w in workers if w.role == "decode"}
    if shared:
        problems.append(f"its prefills and decodes are on different hosts, here {', '.join(sorted(shared))} has both")
    if problems:
        faults.add("infera_shape", name, f"is the name of a published shape: {'; '.join(problems)}; give this one another name, "
                   f"for example {name}_{'one_host' if shared and len(problems) == 1 else 'own'}")


def _is_address(text):
    """An IP address, or a host name whose last label is no number (which is an address with a slip in it)."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        labels = text.rstrip(".").split(".")
        return len(text) <= 253 and all(re.fullmatch(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)", label) for label in labels) and not labels[-1].isdigit()
    return True


def _is_example(address):
    try:
        number = ipaddress.ip_address(str(address))
    except ValueError:
        return False
    return any(number in net for net in EXAMPLE_NETWORKS)


def place(values, groups, addresses, ranks, faults):
    """Return the list of workers in start order. *ranks* gives the KV-event ranks of each role's worker."""
    workers, slots, taken = [], Counter(), {}
    for role in ENGINE_ROLES:
        hosts = groups.get(role) or []
        if not hosts:
            continue
        named, listed = _gpu_ids(role, values, faults), _http_ports(role, values, faults)
        for instance in range(values[f"{role}_workers"]):
            host = hosts[instance % len(hosts)]
            used = taken.setdefault(host, {})
            gpus = named[instance] if named else list(range(len(used), len(used) + values[f"{role}_gpus"]))
            http = listed[instance] if listed else values["engine_port_base"] + values["engine_port_step"] * slots[host]
            worker = Worker(role, instance, host, addresses.get(host), slots[host], gpus, ranks[role], _ports(values, http, role, ranks[role]))
            for gpu in gpus:
                if gpu in used:
                    faults.add(f"{role}_gpu_ids", gpu, f"GPU {gpu} of {host} is used twice, by {used[gpu]} and {worker.label}; give each its own")
                used[gpu] = worker.label
            workers.append(worker)
            slots[host] += 1
    if values["infera_flavour"] == "rocm":
        for host in taken:
            highest = max(taken[host])
            if highest >= values["infera_gpus_per_host"]:
                here = [w for w in workers if w.host == host]
                shown, roles = ", ".join(f"{w.label} {_spans(w.gpus)}" for w in here), list(dict.fromkeys(w.role for w in here))
                chosen = [f"{role}_gpu_ids" for role in roles if values[f"{role}_gpu_ids"]]
                fix = (f"choose GPUs 0 to {values['infera_gpus_per_host'] - 1} in {' and '.join(chosen)}" if chosen else
                       f"lower {' or '.join(f'{role}_workers or {role}_gpus' for role in roles)}, or put one more host into the group")
                faults.add(f"GPUs of {host}", highest + 1, f"{shown} need more than its {values['infera_gpus_per_host']} GPUs (infera_gpus_per_host); {fix}")
    return workers


def _gpu_ids(role, values, faults):
    """Return a list of GPU lists, one per worker, or None where the plan chooses."""
    name, given = f"{role}_gpu_ids", values[f"{role}_gpu_ids"]
    if not given:
        return None
    if not all(isinstance(one, list) and all(isinstance(gpu, int) and not isinstance(gpu, bool) and gpu >= 0 for gpu in one) for one in given):
        faults.add(name, given, "is not a list of lists of GPU numbers; write for example [[0, 1, 2, 3], [4, 5, 6, 7]]")
        return None
    if len(given) != values[f"{role}_workers"] or any(len(one) != values[f"{role}_gpus"] for one in given):
        faults.add(name, given, f"needs {values[f'{role}_workers']} lists of {values[f'{role}_gpus']} GPUs each ({role}_workers, {role}_gpus)")
        return None
    return given


def _spans(gpus):
    return f"{gpus[0]}-{gpus[-1]}" if gpus == list(range(gpus[0], gpus[-1] + 1)) else ",".join(map(str, gpus))


def _http_ports(role, values, faults):
    """Return the HTTP port of every worker of *role*, or None where the plan chooses."""
    name, given = f"{role}_ports", values[f"{role}_ports"]
    if not given:
        return None
    try:
        ports = [int(str(one)) for one in given]
    except ValueError:
        ports = []
    if len(ports) != values[f"{role}_workers"] or not all(1 <= port <= 65535 for port in ports):
        faults.add(name, given, f"needs {values[f'{role}_workers']} ports from 1 to 65535, one per worker ({role}_workers)")
        return None
    return ports


def _ports(values, http, role, ranks):
    ports = {"http": http}
    if role == "prefill":
        ports["bootstrap"] = http + values["engine_bootstrap_offset"]
    if role != "decode" and values["engine_kv_events"]:
        ports["kv_events"] = http + values["engine_kv_events_offset"]
        ports["kv_replay"] = http + values["engine_kv_replay_offset"]
    ports["ranks"] = ranks
    return ports


def port_list(ports):
    """Return [(port, use)] of one engine: what it listens on, ranks spelled out."""
    listed = [(ports["http"], "HTTP")]
    if "bootstrap" in ports:
        listed.append((ports["bootstrap"], "bootstrap"))
    for name in ("kv_events", "kv_replay"):
        if name in ports:
            listed += [(ports[name] + rank, f"{name} rank {rank}") for rank in range(ports["ranks"])]
    return listed


def check_ports(values, groups, workers, faults):
    """No port is used twice on a host, lies above 65535, or in a range that Mooncake or SGLang takes by itself. One line per pair of owners."""
    uses, told = {}, set()

    def tell(owners, option, fix):
        if owners not in told:
            told.add(owners)
            faults.add(option, values[option], fix)

    def use(host, port, owner, what, option):
        """*owner* is the container, *what* the use that it makes of the port, *option* the variable that moves it."""
        name = f"{owner} {what}" if what else owner
        other = uses.setdefault((host, port), (owner, name, option))
        if other[1] != name:
            options = " or ".join(dict.fromkeys((option, other[2])))
            tell((owner, other[0]), option, f"{name} and {other[1]} on {host} both want port {port}; move one of them ({options})")
        if not 1 <= port <= 65535:
            tell((owner, "high"), option, f"{name} on {host} would need port {port}; lower {option}")
        if MOONCAKE_PORTS[0] <= port <= MOONCAKE_PORTS[1]:
            tell((owner, "mooncake"), option,
                 f"{name} on {host}, port {port}, lies in {MOONCAKE_PORTS[0]}-{MOONCAKE_PORTS[1]}, which Mooncake takes by itself; move {option}")

    for host in groups.get("router") or []:
        use(host, values["router_port"], "the router", "", "router_port")
    for host in groups.get("etcd") or []:
        use(host, values["etcd_client_port"], "etcd's client port", "", "etcd_client_port")
        use(host, values["etcd_peer_port"], "etcd's peer port", "", "etcd_peer_port")
    moves = {worker.label: f"{worker.role}_ports" if values[f"{worker.role}_ports"] else "engine_port_base" for worker in workers}
    for worker in workers:
        for port, what in port_list(worker.ports):
            use(worker.host, port, worker.label, what, moves[worker.label])
    for worker in workers:
        for offset in range(SGLANG_OWN[0], SGLANG_OWN[1] + 1):
            port = worker.ports["http"] + offset
            owner, name, option = uses.get((worker.host, port), (None, None, None))
            if owner:
                options = " or ".join(dict.fromkeys((option, moves[worker.label])))
                tell((owner, worker.label), option, f"{name} sits on port {port}, which {worker.label} takes by itself "
                     f"(HTTP + {SGLANG_OWN[0]} to + {SGLANG_OWN[1]}); move one of them ({options})")
