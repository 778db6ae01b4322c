#!/usr/bin/python
# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: agentx_trace
short_description: Write synthetic agent sessions for a rehearsal
version_added: 0.1.0
description:
  - Seeded sessions in the Weka trace format that the AgentX client replays. Sizes are a fit to published statistics, so a replay is never comparable.
  - Every prompt and its answer fit O(context_limit); this is checked before anything is sent.
author:
  - The infera.serving maintainers (@infera)
options:
  dest:
    description: Folder of the traces; one file each. It is left alone when it was written with the same options.
    type: path
    required: true
  count:
    description: Number of sessions.
    type: int
    default: 24
  seed:
    description: The same seed and options give the same bytes.
    type: int
    default: 42
  model:
    description: Model name in the traces.
    type: str
    required: true
  tokens:
    description: Factor on prompt sizes.
    type: float
    default: 1.0
  outputs:
    description: Factor on answer sizes.
    type: float
    default: 1.0
  time:
    description: Factor on think times.
    type: float
    default: 1.0
  max_requests:
    description: Requests of one session at most.
    type: int
    default: 3050
  context_limit:
    description: The model's context in tokens.
    type: int
    default: 1048576
attributes:
  check_mode:
    description: Says whether the traces would be written.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
"""

EXAMPLES = r"""
- name: Make a small trace
  infera.serving.agentx_trace:
    dest: /var/lib/infera/local/traces
    model: tiny
    tokens: 0.05
    outputs: 0.1
    time: 0.05
    max_requests: 40
    context_limit: 60000
"""

RETURN = r"""
written:
  description: Requests, longest prompt plus answer, and token sums.
  type: dict
  returned: success
"""

import json
import os
import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils import agentx_trace


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "dest": {"type": "path", "required": True}, "count": {"type": "int", "default": 24}, "seed": {"type": "int", "default": 42},
            "model": {"type": "str", "required": True},
            "tokens": {"type": "float", "default": 1.0, "no_log": False}, "outputs": {"type": "float", "default": 1.0},
            "time": {"type": "float", "default": 1.0}, "max_requests": {"type": "int", "default": 3050},
            "context_limit": {"type": "int", "default": 1048576}},
        supports_check_mode=True)
    params = dict(module.params)
    dest = params.pop("dest")
    stamp = dest.rstrip("/") + ".json"
    if os.path.exists(stamp) and os.path.isdir(dest):
        with open(stamp, encoding="utf-8") as lines:
            known = json.load(lines)
        if known["options"] == params:
            module.exit_json(changed=False, written=known["written"])
    if module.check_mode:
        module.exit_json(changed=True, written={})
    scale = agentx_trace.TraceScale(params["tokens"], params["outputs"], params["time"], params["max_requests"], params["context_limit"])
    shutil.rmtree(dest + ".part", ignore_errors=True)
    try:
        written = agentx_trace.write(dest + ".part", params["count"], params["seed"], params["model"], scale=scale)
    except agentx_trace.TraceError as error:
        shutil.rmtree(dest + ".part", ignore_errors=True)
        module.fail_json(msg=f"agentx_trace: {error}")
    shutil.rmtree(dest, ignore_errors=True)
    os.rename(dest + ".part", dest)
    with open(stamp, "w", encoding="utf-8") as out:
        json.dump({"options": params, "written": written}, out)
    module.exit_json(changed=True, written=written)


if __name__ == "__main__":
    main()
