# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Does the container's libionic fit the host's kernel driver?

libibverbs skips a device whose kernel ABI number its provider does not support, and says so on stderr only; Mooncake
then finds no device. There is no table from package version to ABI here, because public accounts of it contradict each
other: the kernel's number is read, and the rest is decided by what enumeration says.
"""
from __future__ import annotations

import hashlib
import os
import re

from .mooncake_elf import highest_glibc

_ABI = re.compile(r"Driver (\w+) does not support the kernel ABI of (\d+) \(supports (\d+) to (\d+)\)")
_SUFFIX = re.compile(r"rdmav(\d+)")


def abi_complaints(text):
    """Return ``[{driver, kernel, low, high}]`` from libibverbs' stderr; the numbers are printed in that order."""
    return [{"driver": found[0], "kernel": int(found[1]), "low": int(found[2]), "high": int(found[3])} for found in _ABI.findall(text or "")]


def inspect(path, name=None):
    """Describe a library: ``{path, target, exists, regular, sha256, private_abi, glibc}``.

    ``private_abi`` is the NN of an rdmavNN that the file mentions: providers only load into a libibverbs of that NN.
    ``glibc`` is the newest glibc version that it asks for, as text.
    """
    target = os.path.realpath(path)
    found = {"path": name or path, "target": target, "exists": os.path.exists(path), "regular": os.path.isfile(path),
             "sha256": None, "private_abi": None, "glibc": None}
    if found["regular"]:
        with open(path, "rb") as handle:
            data = handle.read()
        found["sha256"] = hashlib.sha256(data).hexdigest()
        glibc = highest_glibc(data)
        found["glibc"] = "%d.%d" % glibc if glibc else None
        folder = os.path.join(os.path.dirname(target), "libibverbs")
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        suffix = next((_SUFFIX.search(entry) for entry in names if entry.startswith("libionic") and _SUFFIX.search(entry)), None)
        symbol = re.search(rb"IBVERBS_PRIVATE_(\d+)", data)
        found["private_abi"] = int(symbol.group(1)) if symbol else int(suffix.group(1)) if suffix else None
    return found


def _version(text):
    return tuple(int(part) for part in text.split(".")) if text else None


def decide(rails, host, container, container_devices=None, container_stderr="", container_glibc=None):
    """Decide what to do about the container's libionic: returns ``(action, reasons[])``.

    ``rails``: rail dictionaries; ``host``, ``container``: what `inspect` gave, container None when unread;
    ``container_devices``: names that libibverbs lists inside, None when untried. Actions: ``not_ionic``; ``ok``: use what
    the image has; ``inject``: mount the host's library; ``mismatch``: neither works, with the reasons.
    """
    ionic = [rail for rail in rails if rail["vendor"] == "0x1dd8"]
    if not ionic:
        return "not_ionic", ["no ionic rail on this host"]
    wanted = sorted(rail["name"] for rail in ionic if rail["usable"])
    complaints = [found for found in abi_complaints(container_stderr) if found["driver"] == "ionic"]
    kernel = sorted({rail["abi_version"] for rail in ionic if rail["abi_version"] is not None})
    same = bool(container and host["sha256"] and container["sha256"] == host["sha256"])
    seen = [name for name in wanted if name in container_devices] if container_devices is not None else None
    if seen is not None and seen == wanted and wanted and not complaints:
        return "ok", ["libibverbs lists all %d rails inside the container" % len(wanted)]
    trouble = ["the container's library supports kernel ABI %d to %d, the host's driver has %d" % (found["low"], found["high"], found["kernel"])
               for found in complaints]
    if seen is not None and seen != wanted:
        trouble.append("libibverbs lists %d of %d rails inside the container" % (len(seen), len(wanted)))
    if host["exists"] and not host["regular"]:
        return "mismatch", trouble + ["%s is a folder, not a file: Docker makes one for a bind mount whose source is missing; remove it and "
                                      "install the host's libionic" % host["path"]]
    if not host["exists"]:
        if trouble or container is None:
            return "mismatch", trouble + ["%s does not exist on the host (kernel ABI %s): install libionic from the vendor's package" % (
                host["path"], ", ".join(map(str, kernel)) or "unknown")]
        return "ok", ["no library on the host to inject; the container's is used untried"]
    if same and trouble:
        return "mismatch", trouble + ["the host's own library is already in the container: driver and library of the host do not fit each other"]
    if same:
        return "ok", ["the container has the host's library"]
    blockers = []
    if container and container["private_abi"] and host["private_abi"] and container["private_abi"] != host["private_abi"]:
        blockers.append("the host's library is for rdmav%d, the container's libibverbs for rdmav%d" % (host["private_abi"], container["private_abi"]))
    needs, has = _version(host["glibc"]), _version(container_glibc)
    if needs and has and needs > has:
        blockers.append("the host's library needs glibc %s, the container has %s" % (host["glibc"], container_glibc))
    if blockers:
        return "mismatch", trouble + blockers
    if container is None and not trouble:
        return "inject", ["the host's library is there and fits the host's driver; the image's was not read"]
    return "inject", trouble or ["the container's library differs from the host's, which fits the host's driver"]
