# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs in HIP's order, from the KFD topology.

HIP numbers the topology nodes that have a GPU, in node order; CPUs are nodes as well and are passed over. rocm-smi
follows the DRM cards and may number them otherwise: everything here goes by PCI address.
"""
from __future__ import annotations

import os

from .rails_sysfs import listing, read, read_int


def _properties(text):
    found = {}
    for line in (text or "").splitlines():
        name, _space, value = line.partition(" ")
        try:
            found[name] = int(value)
        except ValueError:
            continue
    return found


def bdf_of(properties):
    """Return DDDD:BB:DD.F from KFD's ``domain`` and ``location_id`` (bus << 8 | device << 3 | function)."""
    location = properties.get("location_id", 0)
    return "%04x:%02x:%02x.%x" % (properties.get("domain", 0), location >> 8 & 0xff, location >> 3 & 0x1f, location & 0x7)


def _function(sysfs, bdf, render_minor):
    path = sysfs.pci_path(bdf)
    if path:
        return path
    link = sysfs.path("class", "drm", "renderD%d" % render_minor, "device") if render_minor else ""
    return os.path.realpath(link) if link and os.path.exists(link) else None


def read_gpus(sysfs, visible_devices=None):
    """Return ``(gpus, warnings)``: visible GPUs in HIP's order.

    ``visible_devices``: HIP ordinals as in HIP_VISIBLE_DEVICES; ``hip_index`` is then the position in that list and
    ``physical_index`` the ordinal without it. Raises ValueError for an ordinal that no GPU has.
    """
    base = sysfs.path("class", "kfd", "kfd", "topology", "nodes")
    gpus, warnings = [], []
    for node in sorted(int(name) for name in listing(base) if name.isdigit()):
        folder = os.path.join(base, str(node))
        properties = _properties(read(folder, "properties"))
        gpu_id = read_int(folder, "gpu_id")
        if gpu_id is None and not properties:
            warnings.append("KFD node %d is unreadable: its GPU is not visible to this process" % node)
            continue
        if not (gpu_id or properties.get("simd_count", 0) > 0):
            continue
        bdf = bdf_of(properties)
        path = _function(sysfs, bdf, properties.get("drm_render_minor"))
        if path is None:
            warnings.append("GPU %d (KFD node %d) has no PCI function %s in sysfs" % (len(gpus), node, bdf))
        gpus.append({
            "hip_index": len(gpus),
            "physical_index": len(gpus),
            "kfd_node": node,
            "gpu_id": gpu_id,
            "bdf": bdf,
            "numa": read_int(path, "numa_node") if path else None,
            "render_minor": properties.get("drm_render_minor"),
            "sysfs_path": path,
        })
    if visible_devices is None:
        return gpus, warnings
    unknown = [str(index) for index in visible_devices if not 0 <= index < len(gpus)]
    if unknown:
        raise ValueError("visible_devices: no GPU %s; the host has %d (0 to %d)" % (", ".join(unknown), len(gpus), len(gpus) - 1))
    return [dict(gpus[index], hip_index=position) for position, index in enumerate(visible_devices)], warnings
