#!/usr/bin/python
# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: smoke
short_description: Prove that a deployment serves
version_added: 0.1.0
description:
  - Six checks against a running deployment, each with its evidence. Registration, an answer, the same answer streamed, a prefix found again,
    every rank reached and every booking released, and KV transfer with speculation (for aggregated deployments the other routes instead).
  - What to expect comes from the run record alone. It needs requests where it runs.
options:
  record:
    description: The run record, as M(infera.serving.run_record) returns it.
    type: dict
    required: true
  timeout:
    description: Seconds that one answer may take.
    type: int
    default: 300
  wait:
    description: Seconds that registration, and the return of the demand gauge to 0, may take.
    type: int
    default: 60
attributes:
  check_mode:
    description: Does nothing in check mode.
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
- name: Smoke
  infera.serving.smoke:
    record: "{{ run.record }}"
"""

RETURN = r"""
checks:
  description: The checks in order.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name of the check.
      type: str
      returned: always
    status:
      description: V(pass), V(fail), or V(n/a) where it cannot apply to the deployment.
      type: str
      returned: always
    evidence:
      description: What was seen.
      type: str
      returned: always
    seconds:
      description: How long it took.
      type: float
      returned: always
counts:
  description: Number of checks by status.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.infera.serving.plugins.module_utils import run_record, smoke_checks, smoke_client


def main():
    module = AnsibleModule(
        argument_spec={"record": {"type": "dict", "required": True}, "timeout": {"type": "int", "default": 300}, "wait": {"type": "int", "default": 60}},
        supports_check_mode=True)
    if module.check_mode:
        module.exit_json(changed=False, skipped=True, checks=[], counts={}, msg="check mode sends no request")
    if not smoke_client.have_requests():
        module.fail_json(msg=missing_required_lib("requests"))
    faults = run_record.validate(module.params["record"])
    if faults:
        module.fail_json(msg="record: " + "; ".join(faults[:3]))
    checks = smoke_checks.Smoke(module.params["record"], module.params["timeout"], module.params["wait"]).run()
    counts = {status: sum(1 for check in checks if check["status"] == status) for status in ("pass", "fail", "n/a")}
    module.exit_json(changed=False, checks=checks, counts=counts)


if __name__ == "__main__":
    main()
