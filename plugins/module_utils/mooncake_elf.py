# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A reader for the three things wanted of a shared object: needed libraries, undefined symbols, required versions."""
from __future__ import annotations

import re
import struct


class ElfError(ValueError):
    """The bytes are no 64-bit little-endian ELF file."""


_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")
_STRTAB, _DYNSYM, _DYNAMIC_TYPE = 3, 11, 6
_DT_NEEDED = 1


def _text(table, offset):
    end = table.find(b"\0", offset)
    return table[offset:end].decode("utf-8", "replace")


def read_elf(data):
    """Return ``{needed[], undefined{set}}`` of a shared object's bytes. Raises ElfError."""
    if data[:4] != b"\x7fELF" or data[4:6] != b"\x02\x01":
        raise ElfError("no 64-bit little-endian ELF file")
    try:
        offset, = struct.unpack_from("<Q", data, 0x28)
        size, count = struct.unpack_from("<HH", data, 0x3A)
        sections = [_SECTION.unpack_from(data, offset + number * size) for number in range(count)]
        needed, undefined = [], set()
        for _name, kind, _flags, _addr, start, length, link, _info, _align, entry in sections:
            if kind not in (_DYNSYM, _DYNAMIC_TYPE) or not entry:
                continue
            strings = data[sections[link][4]:sections[link][4] + sections[link][5]]
            for position in range(start, start + length, entry):
                if kind == _DYNAMIC_TYPE:
                    tag, value = _DYNAMIC.unpack_from(data, position)
                    if tag == _DT_NEEDED:
                        needed.append(_text(strings, value))
                else:
                    name, _info, _other, index, _value, _size = _SYMBOL.unpack_from(data, position)
                    if index == 0 and name:
                        undefined.add(_text(strings, name))
    except (struct.error, IndexError) as error:
        raise ElfError("damaged ELF file: %s" % error)
    return {"needed": needed, "undefined": undefined}


def highest_glibc(data):
    """Return the highest GLIBC_x.y version that the bytes ask for, as (x, y), or None."""
    versions = [(int(major), int(minor)) for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", data)]
    return max(versions) if versions else None
