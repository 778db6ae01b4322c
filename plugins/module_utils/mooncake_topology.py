# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mooncake's custom topology file: where each memory location's preferred and other rails are listed."""
from __future__ import annotations

import json
import re

_LOCATION = re.compile(r"^(hip|cuda|cpu):\d+$")


class TopologyError(ValueError):
    """The topology is malformed. Mooncake would answer with 0 HCAs, hence TCP, and return code 0."""


def build(by_gpu, rails, numa_nodes=(), prefix="hip"):
    """Build a topology: each GPU's own rails preferred, the rest as second choice; CPU rows by NUMA node.

    ``by_gpu``: ``{visible index: [rail names]}``; ``rails``: rail dictionaries with ``name`` and ``numa``; ``prefix``:
    hip for ROCm builds of Mooncake (cuda rows are never looked at there).
    """
    names = [rail["name"] for rail in rails]
    topology = {}
    for gpu in sorted(by_gpu):
        own = list(by_gpu[gpu])
        topology["%s:%d" % (prefix, gpu)] = [own, [name for name in names if name not in own]]
    for node in sorted(set(numa_nodes)):
        near = [rail["name"] for rail in rails if rail["numa"] == node] or names
        topology["cpu:%d" % node] = [near, [name for name in names if name not in near]]
    return topology


def validate(topology, known=None, prefix="hip"):
    """Check the shape, and the names where ``known`` rails are given. Returns warnings; raises TopologyError with every fault."""
    if not isinstance(topology, dict) or not topology:
        raise TopologyError("a topology is a JSON object from location to [[preferred], [others]], and not empty")
    faults, warnings = [], []
    for location, row in topology.items():
        if not _LOCATION.match(str(location)):
            faults.append("location %r is none of hip:N, cpu:N" % (location,))
        elif location.startswith(("hip:", "cuda:")) and not location.startswith(prefix + ":"):
            warnings.append("location %s is never looked at by this engine: its GPU rows are called %s:N" % (location, prefix))
        if not (isinstance(row, (list, tuple)) and len(row) == 2 and all(isinstance(part, (list, tuple)) for part in row)):
            faults.append("%s: exactly two lists are needed, [preferred] and [others], not %s" % (location, json.dumps(row)))
            continue
        names = list(row[0]) + list(row[1])
        if not names:
            faults.append("%s lists no device" % location)
        for name in names:
            if not isinstance(name, str) or not name.strip() or name != name.strip():
                faults.append("%s: %s is no device name" % (location, json.dumps(name)))
            elif known is not None and name not in known:
                faults.append("%s: no usable rail is called %s (there are: %s)" % (location, name, ", ".join(known) or "none"))
        strings = [name for name in names if isinstance(name, str)]
        twice = sorted({name for name in strings if strings.count(name) > 1})
        if twice:
            faults.append("%s lists %s twice" % (location, ", ".join(twice)))
    if not any(str(location).startswith(prefix + ":") for location in topology):
        warnings.append("no %s:N row: every GPU buffer falls back on all devices" % prefix)
    if faults:
        raise TopologyError("; ".join(faults))
    return warnings


def dump(topology):
    """Return the file's text: sorted, one location per line, the same for the same topology."""
    rows = ["  %s: %s" % (json.dumps(location), json.dumps(row)) for location, row in sorted(topology.items())]
    return "{\n%s\n}\n" % ",\n".join(rows)
