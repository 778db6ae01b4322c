#!/usr/bin/python
# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: status
short_description: Look at a running deployment
version_added: 0.1.0
description:
  - Asks the router and every engine of a run record, and returns one row per container with role, ranks, registration, breaker and health.
  - A worker that is registered and not part of the deployment is listed too. It changes nothing.
options:
  record:
    description: The run record, as M(infera.serving.run_record) returns it.
    type: dict
    required: true
attributes:
  check_mode:
    description: Can run in check mode; it never changes anything.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
  idempotent:
    description: It changes nothing.
    support: full
author:
  - The infera.serving maintainers (@infera)
"""

EXAMPLES = r"""
- name: Look
  infera.serving.status:
    record: "{{ run.record }}"
"""

RETURN = r"""
rows:
  description: One row per container.
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils import run_record, status_table


def main():
    module = AnsibleModule(argument_spec={"record": {"type": "dict", "required": True}}, supports_check_mode=True)
    faults = run_record.validate(module.params["record"])
    if faults:
        module.fail_json(msg="record: " + "; ".join(faults[:3]))
    module.exit_json(changed=False, rows=status_table.rows(module.params["record"]))


if __name__ == "__main__":
    main()
