# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Planned engines that move KV over RDMA, and a table of what they use. Pure."""
from __future__ import annotations

import json

from .mooncake_devices import DeviceSpecError, parse


def flag(command, name, default=None):
    """Return the value of a flag in an argument list (``--name value`` or ``--name=value``)."""
    for position, word in enumerate(command):
        if word == name and position + 1 < len(command):
            return command[position + 1]
        if word.startswith(name + "="):
            return word.split("=", 1)[1]
    return default


def uses_rdma(container):
    """Whether a planned engine moves its KV cache over RDMA: a prefill or decode with GPUs and SGLang's backend mooncake."""
    return bool(container["role"] in ("prefill", "decode") and container.get("gpus")
                and flag(container["command"], "--disaggregation-transfer-backend", "mooncake") == "mooncake")


def rails_per_process(container):
    """Return how many rails each process of a planned engine has to open, None where the plan does not say."""
    files = {file["path"].rsplit("/", 1)[-1]: file["content"] for file in container.get("files", [])}
    topology = container["env"].get("MC_CUSTOM_TOPO_JSON")
    try:
        if topology:
            rows = json.loads(files.get(topology.rsplit("/", 1)[-1], "{}"))
            return len({name for row in rows.values() for names in row for name in names}) or None
        spec = parse(flag(container["command"], "--disaggregation-ib-device"))
        if spec["form"] == "file":
            spec = parse(files.get(spec["file"].rsplit("/", 1)[-1], ""))
    except (ValueError, DeviceSpecError):
        return None
    if spec["form"] == "map":
        return min(len(names) for names in spec["map"].values())
    return len(spec["devices"]) or None


def rdma_containers(containers, host):
    """Return ``[{name, gpus, rails}]`` of a host's engines that use RDMA; ``rails``: see `rails_per_process`."""
    return [{"name": container["name"], "gpus": container["gpus"], "rails": rails_per_process(container)}
            for container in containers if container["host"] == host and uses_rdma(container)]


def table(facts, workers):
    """Lay out rails with their GPUs, then what each engine gets. ``workers``: ``[{name, env, ib_device, topology}]``."""
    own = {}
    for link in facts["pairs"]:
        own.setdefault(link["rail"], []).append(str(link["gpu"]))
    rows = [("rail", "BDF", "GPU", "state", "Gb/s", "MTU", "NUMA", "GID", "address")]
    for rail in facts["rails"]:
        rows.append((rail["name"], rail["bdf"], ",".join(own.get(rail["name"], [])), rail["state"], rail["rate_gbps"], rail["mtu"], rail["numa"],
                     rail["gid_index"], rail["ipv4"] or rail["gid"]) if rail["usable"] else (
                         rail["name"], rail["bdf"], "", "; ".join(rail["reasons"]), "", "", "", "", ""))
    cells = [["-" if value in (None, "") else str(value) for value in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(value.ljust(width) for value, width in zip(row, widths)).rstrip() for row in cells]
    for worker in workers:
        how = worker["ib_device"] or "topology file" if worker.get("topology") or worker["ib_device"] else "no device list"
        lines.append("%s: %s; %s" % (worker["name"], how, " ".join("%s=%s" % item for item in sorted(worker["env"].items()) if item[0].startswith("M"))))
    return lines


def fabric_probes(plan, rails, transports=("tcp", "rdma")):
    """Return the transfers that show the fabric, each way between the hosts of a pair; a host alone transfers to itself.

    ``rails``: rails_info by host. RDMA is left out between hosts of which one has no RDMA engine. Each probe holds source and target, and for either side
    its address, env and devices (a comma list), and what the engine's container gets of the hardware.
    """
    sides = {}
    for container in plan["containers"]:
        if container["role"] in ("prefill", "decode") and container["host"] not in sides:
            sides[container["host"]] = container
    address = {host["name"]: host["address"] for host in plan["hosts"]}
    pairs = [(one, other) for one in sides for other in sides if one != other] or [(host, host) for host in sides]
    return [dict(_ends(source, target, transport, sides, address, rails), source=source, target=target, transport=transport)
            for source, target in pairs for transport in transports
            if transport == "tcp" or uses_rdma(sides[source]) and uses_rdma(sides[target])]


def _ends(source, target, transport, sides, address, rails):
    ends = {}
    for side, host in (("source", source), ("target", target)):
        env, names = {"MC_FORCE_TCP": "1"}, []
        if transport == "rdma":
            # The list of rails stands in for a topology file, which belongs to the engine.
            env = {name: value for name, value in sides[host]["env"].items() if name.startswith("MC_") and name != "MC_CUSTOM_TOPO_JSON"}
            names = [rail["name"] for rail in rails.get(host, {}).get("rails", []) if rail["usable"]]
        own = sides[host]["env"].get("SGLANG_HOST_IP") if transport == "rdma" else None
        ends.update({side + "_env": env, side + "_devices": ",".join(names), side + "_address": own or address[host]})
    container, rdma = sides[source], transport == "rdma"
    ends["hardware"] = {
        "devices": container["devices"] if rdma else [], "capabilities": container["capabilities"] if rdma else [],
        "ulimits": ["%s:%s" % item for item in sorted(container["ulimits"].items())] if rdma else [],
        "groups": container["groups"] if rdma else [],
        "mounts": [mount for mount in container["mounts"] if mount["target"].startswith("/host-libionic/")] if rdma else []}
    return ends


def fabric_faults(figures, min_gb_s=0):
    """Return one line per transfer that failed, or that was slower than it has to be; RDMA has to be faster than TCP between the same hosts."""
    faults, tcp = [], {(row["from"], row["to"]): row["GB/s"] for row in figures if row["transport"] == "tcp" and not row["fault"]}
    for row in figures:
        where = "%s from %s to %s" % (row["transport"], row["from"], row["to"])
        if row["fault"]:
            faults.append("%s: %s" % (where, row["fault"]))
        elif not row["intact"]:
            faults.append("%s: what was read back is not what was written" % where)
        elif row["transport"] == "rdma" and row["GB/s"] < min_gb_s:
            faults.append("%s: %s GB/s, mooncake_fabric_min_gb_s is %s" % (where, row["GB/s"], min_gb_s))
        elif row["transport"] == "rdma" and row["GB/s"] <= tcp.get((row["from"], row["to"]), 0):
            faults.append("%s: %s GB/s, no more than over TCP (%s): the rails are not used, or their switch ports are slow" % (
                where, row["GB/s"], tcp[row["from"], row["to"]]))
    return faults
