# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""MC_MAX_MR_SIZE: human sizes in, plain bytes out, and the rules that ionic needs.

Mooncake reads the variable with C's atoll: "1GiB" and "1e9" are one byte, accepted without a word, and an empty text
is ignored. So the size is computed here and only ever rendered as decimal digits.
"""
from __future__ import annotations

import re

KIB, MIB, GIB = 2 ** 10, 2 ** 20, 2 ** 30
IONIC_MAX = GIB
IONIC_STEP = 2 * MIB
IONIC_SMALL = 64 * MIB
_UNITS = {"": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
_SIZE = re.compile(r"^\s*([+-]?[0-9]+)\s*([A-Za-z]*)\s*$")


class MrSizeError(ValueError):
    """The size is not acceptable; the text says why and what to write."""


def parse_size(value):
    """Return bytes from an integer or from text with B, KiB, MiB or GiB.

    Raises MrSizeError for floats, K/M/G without the i, and anything else.
    """
    if isinstance(value, bool) or value is None:
        raise MrSizeError("MC_MAX_MR_SIZE %r is no size: write bytes, or a number with KiB, MiB or GiB" % (value,))
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        raise MrSizeError("MC_MAX_MR_SIZE %r is a float: write whole bytes, or a number with KiB, MiB or GiB" % value)
    match = _SIZE.match(str(value))
    if not match:
        raise MrSizeError("MC_MAX_MR_SIZE %r is no size: write whole bytes, or a whole number with KiB, MiB or GiB" % value)
    number, unit = match.groups()
    if unit not in _UNITS:
        proposal = "%s%siB" % (number, unit[0].upper()) if unit[:1].upper() in ("K", "M", "G") else "%sMiB" % number
        raise MrSizeError("MC_MAX_MR_SIZE %r is ambiguous: write bytes, or KiB, MiB or GiB (such as %r)" % (value, proposal))
    return int(number) * _UNITS[unit]


def check_raw(text):
    """Refuse a text that Mooncake would misread. Raises MrSizeError; returns the bytes."""
    if re.match(r"^[1-9][0-9]*\Z", str(text)):
        return int(text)
    # atoll: optional blanks and sign, then digits up to the first other character.
    match = re.match(r"^\s*([+-]?[0-9]+)", str(text))
    seen = int(match.group(1)) if match else 0
    if seen == 0:
        raise MrSizeError("%r must be rendered as bytes; Mooncake ignores it and keeps its default" % str(text))
    if seen < 0:
        seen += 2 ** 64
    raise MrSizeError("%r must be rendered as bytes; Mooncake reads it as %d" % (str(text), seen))


def check(value, driver="ionic", gpu_mr_path="dmabuf", device_max=None):
    """Check a size against the driver that will register it.

    ``driver``: ionic (also a mixed set that has an ionic device), other, tcp. ``gpu_mr_path``: dmabuf or peermem.
    ``device_max``: the smallest max_mr_size of the devices in bytes, where known. Returns ``(bytes or None, warnings)``;
    raises MrSizeError.
    """
    if driver == "tcp":
        if value is None:
            return None, []
        size, warnings = check(value, "other")
        return size, warnings + ["MC_MAX_MR_SIZE %d has no effect on TCP" % size]
    if value is None:
        if driver != "ionic":
            return None, []
        text = ("MC_MAX_MR_SIZE is not set: ionic advertises 2 GiB, and it rejects a 2 GiB dma-buf registration that starts "
                "1 GiB-aligned (PD note 8); set it to 1GiB")
        if gpu_mr_path == "peermem":
            return None, [text]
        raise MrSizeError(text)
    size = parse_size(value)
    warnings = []
    if size <= 0:
        raise MrSizeError("MC_MAX_MR_SIZE %d is not above 0: Mooncake ignores 0 and reads a negative number as a huge one" % size)
    if size > 2 ** 63 - 1:
        raise MrSizeError("MC_MAX_MR_SIZE %d is above %d" % (size, 2 ** 63 - 1))
    if driver == "ionic":
        if size > IONIC_MAX:
            raise MrSizeError("MC_MAX_MR_SIZE %d is above %d: ionic rejects a 2 GiB dma-buf registration that starts "
                              "1 GiB-aligned (PD note 8)" % (size, IONIC_MAX))
        if size % IONIC_STEP:
            raise MrSizeError("MC_MAX_MR_SIZE %d is not a multiple of %d" % (size, IONIC_STEP))
        if size < IONIC_SMALL:
            warnings.append("MC_MAX_MR_SIZE %d is below %d: every piece is registered on every rail and listed in the handshake, "
                            "whose message is limited" % (size, IONIC_SMALL))
        if size & (size - 1):
            warnings.append("MC_MAX_MR_SIZE %d is not a power of two" % size)
    elif size % 4096:
        raise MrSizeError("MC_MAX_MR_SIZE %d is not a multiple of 4096" % size)
    if device_max and size > device_max:
        warnings.append("MC_MAX_MR_SIZE %d will be clamped to the device's %d" % (size, device_max))
    return size, warnings


def mr_size_option(value):
    """Type of a module option that takes such a size; returns bytes, or None for an empty text."""
    return None if value in (None, "") else parse_size(value)
