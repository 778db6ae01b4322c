#!/usr/bin/python
# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: mooncake_topology
short_description: Write Mooncake's custom topology file
version_added: 0.1.0
description:
  - Writes the file that MC_CUSTOM_TOPO_JSON names, atomically, after checking its shape.
  - Mooncake answers a malformed file with no RDMA device at all, hence TCP, and no error; so a malformed topology never
    gets written.
author:
  - The infera.serving maintainers (@infera)
extends_documentation_fragment:
  - infera.serving.attributes
  - ansible.builtin.files
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
    details:
      - The file changes when its content, owner or mode would, not when the keys come in another order.
options:
  path:
    description:
      - The file.
    type: path
    required: true
  state:
    description:
      - Whether the file is there.
    type: str
    choices: [present, absent]
    default: present
  topology:
    description:
      - The topology, C({"hip:0":[[preferred],[others]],"cpu:0":[[...],[...]]}), such as
        RV(infera.serving.mooncake_env#module:topology).
      - Either this or O(rails) is needed for O(state=present).
    type: dict
  rails:
    description:
      - A result of M(infera.serving.rails_info), from which a topology is built in which each GPU prefers its own rail.
    type: dict
  gpu_prefix:
    description:
      - How the engine names GPU rows, the C(gpu_prefix) of M(infera.serving.mooncake_engine_info). ROCm builds use V(hip).
    type: str
    choices: [hip, cuda]
    default: hip
  known_devices:
    description:
      - Names that may appear; any other is an error. With O(rails) the usable rails.
    type: list
    elements: str
  backup:
    description:
      - Keep a copy of the old file, with a time stamp in its name.
    type: bool
    default: false
  mode:
    default: '0644'
"""

EXAMPLES = r"""
- name: Read the rails
  infera.serving.rails_info:
  register: rails

- name: Write a topology in which each GPU prefers its own rail
  infera.serving.mooncake_topology:
    path: /etc/infera/mooncake/topology.json
    rails: "{{ rails }}"

- name: Write a topology by hand
  infera.serving.mooncake_topology:
    path: /etc/infera/mooncake/topology.json
    topology:
      hip:0: [[ionic_4], [ionic_5]]
      hip:1: [[ionic_5], [ionic_4]]
"""

RETURN = r"""
path:
  description: The file.
  returned: success
  type: str
topology:
  description: The topology as written.
  returned: when O(state=present)
  type: dict
backup_file:
  description: The copy of the old file.
  returned: when O(backup=true) and the file was replaced
  type: str
"""

import json
import os
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils.mooncake_topology import TopologyError, build, dump, validate


def from_rails(facts, prefix):
    usable = [rail for rail in facts["rails"] if rail["usable"]]
    links = {link["gpu"]: link for link in facts.get("fallback", [])}
    links.update({link["gpu"]: link for link in facts["pairs"]})
    if not links:
        raise TopologyError("rails: no GPU has a usable rail, so there is nothing to write")
    nodes = [gpu["numa"] for gpu in facts["gpus"] if gpu["numa"] is not None and gpu["numa"] >= 0]
    topology = build({gpu: [link["rail"]] for gpu, link in links.items()}, usable, nodes, prefix)
    return topology, [rail["name"] for rail in usable]


def same(text, wanted):
    try:
        return json.loads(text) == wanted
    except ValueError:
        return False


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "topology": {"type": "dict"},
            "rails": {"type": "dict"},
            "gpu_prefix": {"type": "str", "choices": ["hip", "cuda"], "default": "hip"},
            "known_devices": {"type": "list", "elements": "str"},
            "backup": {"type": "bool", "default": False},
            "mode": {"type": "raw", "default": "0644"},
        },
        mutually_exclusive=[["topology", "rails"]],
        required_if=[["state", "present", ["topology", "rails"], True]],
        add_file_common_args=True,
        supports_check_mode=True,
    )
    params = module.params
    path = params["path"]
    if os.path.isdir(path):
        module.fail_json(msg="path=%s is a folder, not a file; Docker makes one for a bind mount whose source is missing: remove it" % path)
    try:
        with open(path, "r") as handle:
            before = handle.read()
    except FileNotFoundError:
        before = ""
    result = {"changed": False, "path": path}
    if params["state"] == "absent":
        result["changed"] = os.path.exists(path)
        result["diff"] = {"before": before, "after": "", "before_header": path, "after_header": path}
        if result["changed"] and not module.check_mode:
            os.unlink(path)
        module.exit_json(**result)

    known = params["known_devices"]
    try:
        if params["rails"]:
            topology, usable = from_rails(params["rails"], params["gpu_prefix"])
            known = known if known is not None else usable
        else:
            topology = params["topology"]
        warnings = validate(topology, known, params["gpu_prefix"])
    except TopologyError as error:
        module.fail_json(msg="topology for %s: %s" % (path, error))
    except (KeyError, TypeError) as error:
        module.fail_json(msg="rails: this is no result of infera.serving.rails_info (%s: %s)" % (type(error).__name__, error))
    for warning in warnings:
        module.warn(warning)
    after = before if same(before, topology) else dump(topology)
    result.update(topology=topology, changed=before != after)
    result["diff"] = {"before": before, "after": after, "before_header": path, "after_header": path}
    if result["changed"] and not module.check_mode:
        if params["backup"] and before:
            result["backup_file"] = module.backup_local(path)
        handle, temporary = tempfile.mkstemp(dir=module.tmpdir)
        with os.fdopen(handle, "w") as stream:
            stream.write(after)
        module.atomic_move(temporary, path)
    if os.path.exists(path):
        result["changed"] = module.set_fs_attributes_if_different(module.load_file_common_arguments(params), result["changed"])
    module.exit_json(**result)


if __name__ == "__main__":
    main()
