# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang's --disaggregation-ib-device: one name, a list for every GPU, a JSON map by GPU, or a .json file with a map."""
from __future__ import annotations

import json
import re

_NAME = re.compile(r"^[\w.-]+\Z", re.ASCII)


class DeviceSpecError(ValueError):
    """The text is none of SGLang's forms; the message says what is wrong."""


def split_names(text):
    """Return the names of a comma list, trimmed, each once, in order.

    Mooncake itself does not trim: a blank after a comma would make a name that no device has.
    """
    names = []
    for name in str(text).split(","):
        name = name.strip()
        if name and name not in names:
            names.append(name)
    return names


def _check_names(names, origin):
    wrong = [name for name in names if not _NAME.match(name)]
    if wrong:
        raise DeviceSpecError("%s: %r is no device name" % (origin, wrong[0]))
    return names


def _check_map(data, origin):
    if not isinstance(data, dict) or not data:
        raise DeviceSpecError("%s: a JSON object from GPU index to device list is needed, not %s" % (origin, json.dumps(data)))
    result = {}
    for key, value in data.items():
        if not re.match(r"^[0-9]+\Z", str(key)):
            raise DeviceSpecError("%s: key %r is no GPU index (digits, the index within the visible devices)" % (origin, key))
        if not isinstance(value, str):
            raise DeviceSpecError("%s: the value of GPU %s must be text such as \"ionic_0,ionic_1\", not %s" % (origin, key, json.dumps(value)))
        names = _check_names(split_names(value), origin)
        if not names:
            raise DeviceSpecError("%s: GPU %s has no device" % (origin, key))
        if int(key) in result:
            raise DeviceSpecError("%s: GPU %d is named twice" % (origin, int(key)))
        result[int(key)] = names
    return dict(sorted(result.items()))


def parse(value):
    """Parse any of the forms. Returns ``{form, devices[], map{str: []}, file, normalized}``.

    ``form``: none, shared, map or file. A file is not opened here: only its path is checked. Raises DeviceSpecError.
    """
    blank = {"form": "none", "devices": [], "map": {}, "file": None, "normalized": None}
    if value is None or (isinstance(value, str) and not value.strip()):
        return blank
    if isinstance(value, dict):
        data = _check_map({str(key): ",".join(names) if isinstance(names, list) else names for key, names in value.items()}, "device map")
    elif isinstance(value, (list, tuple)):
        if not all(isinstance(name, str) for name in value):
            raise DeviceSpecError("--disaggregation-ib-device %r: a list of device names is needed" % (value,))
        value, data = ",".join(value), None
    elif not isinstance(value, str):
        raise DeviceSpecError("--disaggregation-ib-device %r: text, a list of names, or a map is needed" % (value,))
    else:
        data = None
    text = value if isinstance(value, str) else ""
    text = text.strip()
    if data is None and text.startswith("{"):
        try:
            data = _check_map(json.loads(text), "--disaggregation-ib-device")
        except ValueError as error:
            if isinstance(error, DeviceSpecError):
                raise
            raise DeviceSpecError("--disaggregation-ib-device %r is no JSON object: %s" % (text, error))
    if data is not None:
        devices = split_names(",".join(name for names in data.values() for name in names))
        return dict(blank, form="map", devices=devices, map={str(key): names for key, names in data.items()}, normalized=render_map(data))
    if text.endswith(".json"):
        return dict(blank, form="file", file=text, normalized=text)
    if "/" in text:
        raise DeviceSpecError("--disaggregation-ib-device %r looks like a path, but SGLang reads a file only when its name ends in .json" % text)
    names = split_names(text)
    if not names:
        raise DeviceSpecError("--disaggregation-ib-device %r names no device" % text)
    _check_names(names, "--disaggregation-ib-device")
    return dict(blank, form="shared", devices=names, normalized=",".join(names))


def render_map(by_gpu):
    """Return SGLang's compact JSON map; keys are indexes within the visible devices, in order."""
    return json.dumps({str(key): ",".join(by_gpu[key]) for key in sorted(by_gpu)}, separators=(",", ":"))


def parse_nic_peer_affinity(text):
    """Parse MC_NIC_PEER_AFFINITY (``local=peer[,peer];local=...``). Returns ``{local: [peers]}``; raises DeviceSpecError.

    Mooncake skips a bad rule with a warning; here it is an error.
    """
    result = {}
    for rule in [part.strip() for part in str(text).split(";") if part.strip()]:
        local, equals, peers = rule.partition("=")
        names = split_names(peers)
        if not equals or not local.strip() or not names:
            raise DeviceSpecError("MC_NIC_PEER_AFFINITY rule %r: local=peer[,peer] is needed" % rule)
        if local.strip() in result:
            raise DeviceSpecError("MC_NIC_PEER_AFFINITY names the local device %s twice" % local.strip())
        result[local.strip()] = names
    if not result:
        raise DeviceSpecError("MC_NIC_PEER_AFFINITY %r holds no rule" % str(text))
    return result
