#!/usr/bin/python
# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: image_sources
short_description: Digest, and pack, what an image is built from
version_added: 0.1.0
description:
  - Computes one digest over the files that an image is built from and over the values that its build is given.
  - The digest becomes the image's tag, so that an unchanged tree builds nothing. Runs where the collection lies, the controller.
author:
  - The infera.serving maintainers (@infera)
options:
  root:
    description: Folder of the collection.
    type: path
    required: true
  paths:
    description: Files and folders below O(root) that belong to the image.
    type: list
    elements: str
    required: true
  exclude:
    description: Patterns of names or relative paths to leave out, beside generated files and C(*.md).
    type: list
    elements: str
    default: []
  values:
    description: Everything else that the image depends on.
    type: dict
    default: {}
  archive:
    description: Folder that receives the files as C(DIGEST.tar). Empty packs nothing.
    type: path
attributes:
  check_mode:
    description: The digest is computed as always; no archive is written.
    support: full
  diff_mode:
    description: Not applicable.
    support: none
"""

EXAMPLES = r"""
- name: Digest the router's image
  infera.serving.image_sources:
    root: "{{ role_path }}/../.."
    paths: [images/router, router_py/src, router_py/pyproject.toml]
    values: {base: bookworm}
  delegate_to: localhost
  register: sources
"""

RETURN = r"""
digest:
  description: Sixteen hexadecimal digits.
  returned: always
  type: str
files:
  description: How many files were read.
  returned: always
  type: int
archive:
  description: Path of the archive, or an empty string.
  returned: always
  type: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils import image_content


def main():
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "paths": {"type": "list", "elements": "str", "required": True},
            "exclude": {"type": "list", "elements": "str", "default": []},
            "values": {"type": "dict", "default": {}},
            "archive": {"type": "path"},
        },
        supports_check_mode=True,
    )
    root, folder = module.params["root"], module.params["archive"]
    try:
        names = image_content.files(root, module.params["paths"], module.params["exclude"])
        items = image_content.read(root, names)
        digest = image_content.digest(items, module.params["values"])
        target, changed = "", False
        if folder:
            target = os.path.join(folder, digest + ".tar")
            if module.check_mode:
                changed = not os.path.exists(target)
            else:
                os.makedirs(folder, exist_ok=True)
                changed = image_content.archive(items, target)
    except (image_content.ContentError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, digest=digest, files=len(names), archive=target)


if __name__ == "__main__":
    main()
