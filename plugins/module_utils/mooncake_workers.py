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
