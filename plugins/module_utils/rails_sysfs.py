# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading sysfs trees, real or fake, and the PCI paths in them."""
from __future__ import annotations

import os
import re

_BDF = re.compile(r"^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_ROOT = re.compile(r"^pci[0-9a-f]{4,}:[0-9a-f]{2}$")


def read(*parts):
    """Return a file's stripped text, or None when it is absent or unreadable.

    An unset GID slot answers EINVAL to its ``types`` and ``ndevs`` files, and a GPU that a container may not use
    answers EPERM: both count as "no value". So does a name with a NUL in it, which rubbish in another file may have given.
    """
    try:
        with open(os.path.join(*parts), "r", errors="replace") as handle:
            return handle.read().strip()
    except (OSError, ValueError):
        return None


def read_int(*parts, **options):
    """Return a file's text as an integer (base 10, or 16 with a 0x prefix), or ``default`` (None)."""
    text = read(*parts)
    try:
        return int(text, 0) if text else options.get("default")
    except ValueError:
        return options.get("default")


def listing(*parts):
    """Return the sorted names in a folder; empty when there is none."""
    try:
        return sorted(os.listdir(os.path.join(*parts)))
    except (OSError, ValueError):
        return []


def natural(text):
    """Sort key that puts ionic_10 after ionic_9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def link_name(*parts):
    """Return the last component of a symbolic link's target, or None."""
    path = os.path.join(*parts)
    return os.path.basename(os.path.realpath(path)) if os.path.islink(path) else None


def pci_components(path):
    """Return the PCI part of a /sys/devices path: ``[host bridge, root port, ..., function]``.

    A path without a host bridge (``pciDDDD:BB``) has no PCI part: an empty list.
    """
    components = []
    for part in path.split("/"):
        if _ROOT.match(part):
            components = [part]
        elif components and _BDF.match(part):
            components.append(part)
        elif components:
            break
    return components if len(components) > 1 else []


def pci_shared_depth(one, other):
    """Count the leading PCI components that two /sys/devices paths share.

    0: nothing in common; 1: the same host bridge; 2 and more: below the same root port. A function's own component
    counts only when both paths name the same function.
    """
    depth = 0
    for left, right in zip(pci_components(one), pci_components(other)):
        if left != right:
            break
        depth += 1
    return depth


class Sysfs:
    """One sysfs tree."""

    def __init__(self, root="/sys"):
        self.root = os.path.abspath(root)

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def pci_path(self, bdf):
        """Return the resolved /sys/devices path of a PCI function (address DDDD:BB:DD.F), or None.

        The usual index is bus/pci/devices; a tree without one is walked.
        """
        link = self.path("bus", "pci", "devices", bdf)
        if os.path.exists(link):
            return os.path.realpath(link)
        for folder, names, _files in os.walk(self.path("devices")):
            if bdf in names:
                return os.path.join(os.path.realpath(folder), bdf)
            names[:] = [name for name in names if _ROOT.match(name) or _BDF.match(name)]
        return None

    def relative(self, path):
        """Return a path as it would read on the host, below /sys."""
        real = os.path.realpath(self.root)
        return "/sys" + path[len(real):] if path.startswith(real + "/") else path
