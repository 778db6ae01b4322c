# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Merge settings into Docker's daemon.json: what others wrote there stays. Pure."""
from __future__ import annotations

import json

# dockerd reads these again on SIGHUP (its reference, "Configuration reload behavior"); everything else needs a restart.
RELOADABLE = ("debug", "labels", "live-restore", "max-concurrent-downloads", "max-concurrent-uploads", "max-download-attempts", "default-runtime", "runtimes",
              "authorization-plugins", "allow-nondistributable-artifacts", "insecure-registries", "registry-mirrors", "shutdown-timeout", "features")


class ConfigError(ValueError):
    """A daemon.json that cannot be merged into; the text says why."""


def parse(text, path):
    """The settings of a daemon.json; an empty or missing file has none."""
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError("{0} is not JSON ({1}): repair or remove it; nothing was changed".format(path, error)) from None
    if not isinstance(found, dict):
        raise ConfigError("{0} holds no JSON object: repair or remove it; nothing was changed".format(path))
    return found


def merge(present, wanted):
    """``present`` with ``wanted`` in it: dictionaries recursively, lists as a union in their present order, other values replaced."""
    result = dict(present)
    for key, value in wanted.items():
        old = result.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            result[key] = merge(old, value)
        elif isinstance(value, list) and isinstance(old, list):
            result[key] = old + [item for item in value if item not in old]
        else:
            result[key] = value
    return result


def changed_keys(before, after):
    """Top-level keys whose values differ, sorted."""
    return sorted(key for key in set(before) | set(after) if before.get(key) != after.get(key))


def restart_keys(keys):
    """Those of the keys that a running dockerd does not read again."""
    return [key for key in keys if key not in RELOADABLE]


def text(settings):
    return json.dumps(settings, indent=4, sort_keys=True) + "\n"
