#!/usr/bin/python
# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: image_wheelhouse
short_description: Collect pinned wheels for an image's Python
version_added: 0.1.0
description:
  - Downloads wheels for the Python of an image, whatever the host's Python is, into a folder named by the digest of the pins.
  - pip runs on the host and keeps the host's own settings. A finished wheelhouse is recognised; an interrupted one leaves nothing behind.
requirements:
  - pip in O(python)
author:
  - The infera.serving maintainers (@infera)
options:
  dest:
    description: Folder that holds the wheelhouses.
    type: path
    required: true
  requirements:
    description: C(NAME==VERSION) lines; comments are allowed. Nothing beside them is downloaded.
    type: list
    elements: str
    required: true
  python:
    description: Interpreter whose pip collects.
    type: path
    required: true
  python_version:
    description: Python of the image, for example V(3.11).
    type: str
    default: "3.11"
  glibc:
    description: The C library of the image; wheels for newer ones are not taken.
    type: str
    default: "2.36"
  machine:
    description: Architecture of the image.
    type: str
    default: x86_64
  local_versions:
    description: Distributions that must carry a local version label, for example C(torch) and C(cpu).
    type: dict
    default: {}
  find_links:
    description: Further folders or pages with wheels.
    type: list
    elements: str
    default: []
  extra_index_url:
    description: Further package indexes.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: Checks the pins and reports whether wheels would be collected.
    support: full
  diff_mode:
    description: Not applicable.
    support: none
"""

EXAMPLES = r"""
- name: Collect the router's wheels
  infera.serving.image_wheelhouse:
    dest: /var/cache/infera/wheels
    requirements: [uvloop==0.23.0]
    python: /usr/bin/python3
"""

RETURN = r"""
path:
  description: The wheelhouse; it also holds C(requirements.txt).
  returned: always
  type: str
digest:
  description: Sixteen hexadecimal digits of the pins, the Python and the platform.
  returned: always
  type: str
"""

import os
import shutil
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils import image_wheels


def collect(module, pinned, tags, path):
    params = module.params
    os.makedirs(params["dest"], exist_ok=True)
    work = tempfile.mkdtemp(prefix=".wheels-", dir=params["dest"])
    try:
        listing = os.path.join(work, "requirements.txt")
        with open(listing, "w", encoding="utf-8") as handle:
            handle.writelines("{0}=={1}\n".format(name, version) for name, version in pinned)
        arguments = image_wheels.pip_arguments(listing, work, params["python_version"], tags, params["find_links"], params["extra_index_url"])
        code, out, err = module.run_command([params["python"], "-m", "pip"] + arguments, environ_update={"LC_ALL": "C.UTF-8"})
        if code:
            raise image_wheels.WheelError(image_wheels.explain(err + out, params["python_version"]))
        lacking = image_wheels.missing(pinned, os.listdir(work))
        if lacking:
            raise image_wheels.WheelError("pip reported success but these wheels are not there: " + ", ".join(lacking))
        os.chmod(work, 0o755)
        os.rename(work, path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main():
    module = AnsibleModule(
        argument_spec={
            "dest": {"type": "path", "required": True},
            "requirements": {"type": "list", "elements": "str", "required": True},
            "python": {"type": "path", "required": True},
            "python_version": {"type": "str", "default": "3.11"},
            "glibc": {"type": "str", "default": "2.36"},
            "machine": {"type": "str", "default": "x86_64"},
            "local_versions": {"type": "dict", "default": {}},
            "find_links": {"type": "list", "elements": "str", "default": []},
            "extra_index_url": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        pinned = image_wheels.pins(params["requirements"])
        image_wheels.check_local(pinned, params["local_versions"])
        tags = image_wheels.platforms(params["machine"], params["glibc"])
        digest = image_wheels.digest(pinned, params["python_version"], tags)
        path = os.path.join(params["dest"], digest)
        changed = not os.path.isdir(path)
        if changed and not module.check_mode:
            collect(module, pinned, tags, path)
    except (image_wheels.WheelError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, path=path, digest=digest)


if __name__ == "__main__":
    main()
