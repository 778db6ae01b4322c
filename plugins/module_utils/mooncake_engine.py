# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a Mooncake engine can do, read from its bytes: no import, which would need the GPU's libraries."""
from __future__ import annotations

import hashlib
import os
import re
import zipfile

from .mooncake_elf import read_elf
from .rails_sysfs import listing

# What goes wrong without each capability.
CONSEQUENCES = {
    "mr_split": "a buffer above the limit is cut short while its whole length is advertised: transfers of its end are lost (needs Mooncake 0.3.13 or newer)",
    "dmabuf": "GPU memory cannot be registered through dma-buf, only with a peer memory module",
    "hip": "the build knows no AMD GPU: GPU memory is taken for host memory",
    "routing": "the build knows no MC_DISABLE_HIP (locality routing): two engines on one host cannot be told to use RDMA",
    "no_truncation": "the build still cuts an oversized registration short",
}
_ENGINE = re.compile(r"(^|/)mooncake/engine[^/]*\.so$")


class EngineError(ValueError):
    """No engine was found, or it cannot be read."""


def _word(data, word):
    return re.search(rb"(?<![A-Za-z0-9_])" + word + rb"(?![A-Za-z0-9_])", data) is not None


def capabilities(data):
    """Read an engine's bytes. Raises EngineError when they are no shared object.

    ``mr_split`` is None when neither the splitter's nor the old truncation's message is there. The fix that makes
    dma-buf pieces register at their own offset (Mooncake #3243) leaves no mark: only the source's commit shows it.
    """
    try:
        elf = read_elf(data)
    except ValueError as error:
        raise EngineError(str(error))
    split, truncates = b"Auto-splitting buffer" in data, b"shrink it to" in data
    hip = any(name.startswith("libamdhip64") for name in elf["needed"])
    prefixes = [prefix.decode() for prefix in (b"hip", b"cuda") if re.search(rb"(?<![A-Za-z0-9_])" + prefix + rb":\0", data)]
    return {
        "mr_split": True if split else False if truncates else None,
        "truncates": truncates,
        "dmabuf": "ibv_reg_dmabuf_mr" in elf["undefined"],
        "hip": hip,
        "routing": _word(data, b"MC_DISABLE_HIP"),
        "gpu_prefix": "hip" if hip or prefixes == ["hip"] else "cuda" if "cuda" in prefixes else None,
        "reads_mr_size": _word(data, b"MC_MAX_MR_SIZE"),
        "force_hca": _word(data, b"MC_FORCE_HCA"),
        "environment": sorted({name.decode() for name in re.findall(rb"(?<![A-Za-z0-9_])((?:MC|MOONCAKE)_[A-Z0-9_]{3,})\0", data)}),
        "needed": elf["needed"],
    }


def _version(names):
    for name in names:
        match = re.match(r"(mooncake[a-z_]*)-([^-/]+)\.dist-info", name)
        if match:
            return match.group(1).replace("_", "-"), match.group(2)
    return None, None


def read_engine(path):
    """Find and read an engine. ``path``: the engine's .so, a wheel, or a folder such as site-packages.

    Returns ``(bytes, where, distribution or None, version or None)``. The version is the package's, which a build that
    replaces engine.so leaves as it was. Raises EngineError.
    """
    if os.path.isdir(path):
        for folder in (path, os.path.join(path, "mooncake"), *(os.path.join(path, name) for name in listing(path))):
            found = [name for name in listing(folder) if re.match(r"engine.*\.so$", name)]
            if os.path.basename(os.path.realpath(folder)) == "mooncake" and found:
                if len(found) > 1:
                    raise EngineError("%s holds several engines (%s): name one" % (folder, ", ".join(found)))
                distribution, version = _version(listing(os.path.dirname(os.path.realpath(folder))))
                with open(os.path.join(folder, found[0]), "rb") as handle:
                    return handle.read(), os.path.join(folder, found[0]), distribution, version
        raise EngineError("no mooncake/engine*.so in %s" % path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise EngineError("%s is no regular file" % path)
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as wheel:
                names = [name for name in wheel.namelist() if _ENGINE.search(name)]
                if len(names) != 1:
                    raise EngineError("%s holds %d files mooncake/engine*.so, one is needed" % (path, len(names)))
                distribution, version = _version(name.split("/", 1)[0] for name in wheel.namelist())
                return wheel.read(names[0]), "%s!%s" % (path, names[0]), distribution, version
        with open(path, "rb") as handle:
            data = handle.read()
    except OSError as error:
        raise EngineError("%s: %s" % (path, error.strerror))
    packages = os.path.dirname(os.path.dirname(os.path.realpath(path)))
    return (data, path) + _version(listing(packages))


def missing(found, require):
    """Return one line per required capability that is not there. Raises EngineError for a name that is none."""
    unknown = [name for name in require if name not in CONSEQUENCES]
    if unknown:
        raise EngineError("require: %s is no capability (there are: %s)" % (", ".join(unknown), ", ".join(CONSEQUENCES)))
    have = dict(found, no_truncation=not found["truncates"])
    return ["%s is missing: %s" % (name, CONSEQUENCES[name]) for name in require if not have[name]]


def sha256(data):
    return hashlib.sha256(data).hexdigest()
