#!/usr/bin/python
# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: plan
short_description: Turn the inventory's variables into the list of containers of a deployment
version_added: 0.1.0
description:
  - Reads the variables of the inventory (docs/inventory.md lists them), checks all of them, and returns one dictionary per container that
    says everything about it.
  - It runs on the controller, contacts no host and changes nothing. Every fault is reported in one run, one line each,
    with the variable, its value and the fix.
options:
  images:
    description: References of the images, by the keys V(sglang), V(router), V(etcd). Left out while only the values are being checked.
    type: dict
    default: {}
  rails:
    description: Results of M(infera.serving.rails_info) by host name, for hosts whose rails were looked up.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Can run in check mode; it never changes anything.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
  idempotent:
    description: The same variables give the same plan.
    support: full
author:
  - The infera.serving maintainers (@infera)
"""

EXAMPLES = r"""
- name: Plan the deployment
  infera.serving.plan:
    images: "{{ infera_image_refs }}"
  register: planned
  run_once: true

- name: Show what would run
  ansible.builtin.debug:
    msg: "{{ planned.plan.containers | map(attribute='name') | list }}"
"""

RETURN = r"""
plan:
  description: The deployment as it shall be.
  returned: success
  type: dict
  contains:
    deployment:
      description: Name of the deployment.
      type: str
      returned: success
    router_url:
      description: URL that clients use.
      type: str
      returned: success
    weight:
      description: The decode request weight, in tokens per held request.
      type: float
      returned: success
    containers:
      description: One dictionary per container, in start order.
      type: list
      elements: dict
      returned: success
    hosts:
      description: Hosts with their address, roles and GPUs.
      type: list
      elements: dict
      returned: success
faults:
  description: One line per wrong variable.
  returned: failure
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule


def main():
    module = AnsibleModule(argument_spec={"images": {"type": "dict", "default": {}}, "rails": {"type": "dict", "default": {}}}, supports_check_mode=True)
    module.fail_json(msg="infera.serving.plan runs on the controller, through its action plugin; it cannot be sent to a host")


if __name__ == "__main__":
    main()
