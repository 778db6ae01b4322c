#!/usr/bin/python
# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: run_record
short_description: Keep the record of a running deployment
version_added: 0.1.0
description:
  - Writes and reads run.json (schema 1), from which status, smoke, rollout and down learn what runs.
  - The file lies on the router's host under the deployment's state folder, and as a copy under the controller's runs folder, both with mode 0600.
  - Delegate the task to the router's host and run it once.
options:
  state:
    description:
      - V(present) writes the record of O(plan); V(read) returns the record of the host, or the controller's copy where the host has none or cannot be reached.
      - V(read) fails when a variable on the command line contradicts the record, and shows both values.
      - V(absent) removes the host's file; the controller's copy is kept as C(last-run.json), beside the logs.
    type: str
    choices: [present, read, absent]
    default: present
  plan:
    description: Result of M(infera.serving.plan); needed with O(state=present).
    type: dict
  deployment:
    description: Id of the deployment; taken from O(plan) where that is given.
    type: str
  state_dir:
    description: State folder of the deployment on its hosts. Default C(/var/lib/infera/) plus the id.
    type: str
  runs_dir:
    description: Folder on the controller that holds a folder per deployment. Default C(runs) where ansible-playbook was started.
    type: str
  strict:
    description: Whether V(read) fails when the command line contradicts the record. Set it to false where the difference is what is being asked for.
    type: bool
    default: true
  path:
    description: Path of the host's file; internal, the action plugin sets it.
    type: str
  record:
    description: The record; internal, the action plugin sets it.
    type: dict
attributes:
  check_mode:
    description: Can run in check mode and says whether the record would change.
    support: full
  diff_mode:
    description: Shows the record before and after.
    support: full
  idempotent:
    description: The time of the last change moves only when something else of the record did.
    support: full
author:
  - The infera.serving maintainers (@infera)
"""

EXAMPLES = r"""
- name: Read what runs
  infera.serving.run_record:
    state: read
    deployment: 1p1d
  register: run
  delegate_to: "{{ groups['router'] | first }}"
  run_once: true

- name: Show its address
  ansible.builtin.debug:
    msg: "{{ run.record.router_url }}"
"""

RETURN = r"""
record:
  description: The record; empty where there is none.
  returned: with state present and read
  type: dict
found:
  description: Whether there is a record.
  returned: with state read
  type: bool
source:
  description: Where the record was read, V(host) or V(controller).
  returned: with state read, when found
  type: str
run_dir:
  description: Folder of the deployment on the controller.
  returned: always
  type: str
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils import run_record


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "default": "present", "choices": ["present", "read", "absent"]},
            "plan": {"type": "dict"}, "deployment": {"type": "str"}, "state_dir": {"type": "str"}, "runs_dir": {"type": "str"},
            "strict": {"type": "bool", "default": True},
            "path": {"type": "str"}, "record": {"type": "dict"}},
        supports_check_mode=True)
    path, state = module.params["path"], module.params["state"]
    if not path:
        module.fail_json(msg="path: not set: it comes from the action plugin; call infera.serving.run_record as a task")
    try:
        if state == "absent":
            there = os.path.exists(path)
            if there and not module.check_mode:
                os.unlink(path)
            module.exit_json(changed=there)
        found = run_record.load(path)
        if state == "read":
            module.exit_json(changed=False, record=found or {})
        record = module.params["record"]
        changed = found != record or (os.stat(path).st_mode & 0o777) != 0o600
        if changed and not module.check_mode:
            run_record.save(path, record)
    except (run_record.RecordError, OSError) as error:
        module.fail_json(msg=str(error))
    out = {"changed": changed}
    if module._diff:
        out["diff"] = {"before_header": path, "after_header": path, "before": _text(found), "after": _text(record)}
    module.exit_json(**out)


def _text(record):
    return json.dumps(record, indent=1, sort_keys=True) + "\n" if record else ""


if __name__ == "__main__":
    main()
