#!/usr/bin/python
# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_reach
short_description: Check that hosts reach each other's ports
version_added: 0.1.0
description:
  - Listens on the host's planned ports for a few seconds and dials those of its peers meanwhile. Run on all hosts in one task,
    it shows firewalls in both directions before anything is deployed.
  - A port that is in use already is left alone; whoever listens there answers.
  - The outcome C(refused) means that the peer was reached and nothing listened; when the peer says that it did listen,
    something on the way rejects. The role preflight compares both sides.
author:
  - The infera.serving maintainers (@infera)
extends_documentation_fragment:
  - infera.serving.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details:
      - There is nothing to compare.
  idempotent:
    support: full
options:
  address:
    description:
      - The host's own address, on which it listens.
    type: str
    required: true
  ports:
    description:
      - The host's own ports.
    type: list
    elements: int
    required: true
  peers:
    description:
      - The other hosts.
    type: list
    elements: dict
    required: true
    suboptions:
      host:
        description: Its name.
        type: str
        required: true
      address:
        description: Its address.
        type: str
        required: true
      ports:
        description: Its ports.
        type: list
        elements: int
        required: true
  timeout:
    description:
      - Seconds for which it listens and dials.
    type: float
    default: 5
notes:
  - All hosts have to run it at the same time, so forks have to be at least their number.
"""

EXAMPLES = r"""
- name: Dial the other host
  infera.serving.preflight_reach:
    address: 10.0.0.11
    ports: [31000, 31300]
    peers:
      - {host: gpu02, address: 10.0.0.12, ports: [31000]}
"""

RETURN = r"""
listening:
  description: Own ports on which something listened meanwhile.
  returned: success
  type: list
  elements: int
attempts:
  description: One entry per peer's port, with host, address, port and outcome.
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils.preflight_reach import probe


def main():
    module = AnsibleModule(
        argument_spec={
            "address": {"type": "str", "required": True},
            "ports": {"type": "list", "elements": "int", "required": True},
            "peers": {"type": "list", "elements": "dict", "required": True, "options": {
                "host": {"type": "str", "required": True}, "address": {"type": "str", "required": True},
                "ports": {"type": "list", "elements": "int", "required": True}}},
            "timeout": {"type": "float", "default": 5},
        },
        supports_check_mode=True,
    )
    params = module.params
    module.exit_json(changed=False, **probe(params["address"], params["ports"], params["peers"], params["timeout"]))


if __name__ == "__main__":
    main()
