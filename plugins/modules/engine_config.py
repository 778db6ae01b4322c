#!/usr/bin/python
# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: engine_config
short_description: Merge settings into Docker's daemon.json
version_added: 0.1.0
description:
  - Adds settings to the configuration of the Docker engine. Settings that are there and not named stay as they are.
  - Dictionaries are merged recursively; of lists the missing items are added. A file that needs no change is not written.
  - It neither reloads nor restarts the engine, but says which of the two a change needs.
author:
  - The infera.serving maintainers (@infera)
options:
  path:
    description: The file.
    type: path
    default: /etc/docker/daemon.json
  settings:
    description: What must be in it.
    type: dict
    required: true
attributes:
  check_mode:
    description: Reports the change and does not make it.
    support: full
  diff_mode:
    description: Shows the file before and after.
    support: full
"""

EXAMPLES = r"""
- name: Keep containers running while the engine restarts
  infera.serving.engine_config:
    settings:
      live-restore: true
"""

RETURN = r"""
keys:
  description: Top-level keys that changed.
  returned: always
  type: list
  elements: str
restart_keys:
  description: Those of them that a running engine takes up only when it is restarted.
  returned: always
  type: list
  elements: str
"""

import os
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils import engine_config


def read(path):
    if not os.path.exists(path):
        return ""
    with open(path, "r", encoding="utf-8") as handle:
        return handle.read()


def write(module, path, text):
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    handle, staged = tempfile.mkstemp(prefix=".daemon-", dir=folder)
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(text)
    if not os.path.exists(path):
        os.chmod(staged, 0o644)
    module.atomic_move(staged, path)


def main():
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "default": "/etc/docker/daemon.json"}, "settings": {"type": "dict", "required": True}},
        supports_check_mode=True,
    )
    path = module.params["path"]
    try:
        old = read(path)
        before = engine_config.parse(old, path)
        after = engine_config.merge(before, module.params["settings"])
        keys = engine_config.changed_keys(before, after)
        new = engine_config.text(after) if keys else old
        if keys and not module.check_mode:
            write(module, path, new)
    except (engine_config.ConfigError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(keys), keys=keys, restart_keys=engine_config.restart_keys(keys),
                     diff={"before": old, "after": new, "before_header": path, "after_header": path})


if __name__ == "__main__":
    main()
