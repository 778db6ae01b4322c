# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU memory in use and who holds the GPUs, read from sysfs and /proc. Nothing is reset, nobody is ended."""
from __future__ import annotations

import glob
import os

__all__ = ["CLEAN_BYTES", "holders", "used"]

# An idle MI355X shows well under this (spec of the preflight: idle is below 2 GiB).
CLEAN_BYTES = 2 * 1024 ** 3


def used(sysfs="/sys"):
    """Return {card: bytes of VRAM in use} of every amdgpu card."""
    out = {}
    for path in glob.glob(os.path.join(sysfs, "class/drm/card*/device/mem_info_vram_used")):
        card = path.split(os.sep)[-3]
        if not card[4:].isdigit():
            continue
        try:
            with open(path, encoding="ascii") as handle:
                out[card] = int(handle.read())
        except (OSError, ValueError):
            continue
    return dict(sorted(out.items(), key=lambda item: int(item[0][4:])))


def holders(proc="/proc"):
    """Return ["pid command"] of processes that have /dev/kfd open."""
    out = []
    for pid in sorted(filter(str.isdigit, os.listdir(proc)), key=int):
        try:
            links = [os.readlink(os.path.join(proc, pid, "fd", name)) for name in os.listdir(os.path.join(proc, pid, "fd"))]
        except OSError:
            continue
        if "/dev/kfd" in links:
            try:
                with open(os.path.join(proc, pid, "cmdline"), "rb") as handle:
                    command = handle.read().replace(b"\0", b" ").decode(errors="replace").strip()[:100]
            except OSError:
                command = ""
            out.append(f"{pid} {command}".strip())
    return out
