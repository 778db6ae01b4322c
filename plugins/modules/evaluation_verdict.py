#!/usr/bin/python
# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: evaluation_verdict
short_description: Judge an accuracy run
version_added: 0.1.0
description:
  - With O(folder) left out, only refuses engines that force their acceptance; ask this before the run.
  - With O(folder), reads lm-eval's results and samples, the needles' outcome and the acceptance watch, writes C(eval.json) there and gives the reasons.
  - Garbled text counts although the answer came with HTTP 200, since the custom all-reduce failure looks like that.
author:
  - The infera.serving maintainers (@infera)
options:
  containers:
    description: The run record's containers.
    type: list
    elements: dict
    required: true
  folder:
    description: Folder of the run's artifacts.
    type: path
  task:
    description: lm-eval's task.
    type: str
    default: gsm8k
  questions:
    description: Questions that must be effective.
    type: int
    default: 1319
  floor:
    description: Lowest score of both filters.
    type: float
    default: 0.9
  max_garbled_share:
    description: Share of answers that may look garbled.
    type: float
    default: 0.01
  needle_reasons:
    description: Reasons of M(infera.serving.needle_run).
    type: list
    elements: str
    default: []
  draft_tokens:
    description: Draft tokens of the decode; 0 without speculation.
    type: int
    default: 0
  concurrency:
    description: Concurrency of the run, kept in the result.
    type: int
    default: 64
  versions:
    description: Versions kept in the result.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Judges and writes nothing.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
"""

EXAMPLES = r"""
- name: Refuse engines that force their acceptance
  infera.serving.evaluation_verdict:
    containers: "{{ run.record.containers }}"

- name: Judge
  infera.serving.evaluation_verdict:
    containers: "{{ run.record.containers }}"
    folder: /var/lib/infera/1p1d/evaluation
"""

RETURN = r"""
reasons:
  description: Why the run fails; empty when it passes.
  type: list
  elements: str
  returned: success
result:
  description: What eval.json holds.
  type: dict
  returned: with O(folder)
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils import evaluation, metrics_watch


def acceptance(folder: str, containers: list, draft_tokens: int) -> dict:
    """Medians and flags per decode; 'not applicable' without speculation."""
    path = os.path.join(folder, "watch.jsonl")
    if not draft_tokens:
        return {"state": "not applicable: no speculation"}
    if not os.path.exists(path):
        return {"state": "not watched"}
    names = [c["name"] for c in containers if c["role"] in ("decode", "mixed")]
    return {"state": "watched", "published_median": evaluation.PUBLISHED_ACCEPTANCE,
            "decodes": metrics_watch.acceptance(metrics_watch.read(path), names, draft_tokens)}


def verdict(params: dict) -> dict:
    seen = evaluation.read_lm_eval(params["folder"], params["task"])
    reasons = evaluation.simulated(params["containers"])
    reasons += evaluation.judge_accuracy(seen, params["questions"], params["floor"], params["max_garbled_share"]) + params["needle_reasons"]
    watched = acceptance(params["folder"], params["containers"], params["draft_tokens"])
    for name, one in sorted(watched.get("decodes", {}).items()):
        reasons += [f"{name}: {flag}" for flag in one["flags"]]
        if one["median"] is None:
            reasons.append(f"{name}: no acceptance length was seen")
    return {"schema": 1, "unofficial": True, "task": seen.task, "strict": seen.strict, "flexible": seen.flexible, "stderr": seen.stderr,
            "effective": seen.effective, "answers": seen.answers, "empty": seen.empty, "garbled": seen.garbled, "floor": params["floor"],
            "questions": params["questions"], "concurrency": params["concurrency"], "acceptance": watched, "simulated": False,
            "versions": params["versions"], "passed": not reasons, "reasons": reasons}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "containers": {"type": "list", "elements": "dict", "required": True}, "folder": {"type": "path"}, "task": {"type": "str", "default": "gsm8k"},
            "questions": {"type": "int", "default": 1319}, "floor": {"type": "float", "default": 0.9},
            "max_garbled_share": {"type": "float", "default": 0.01}, "needle_reasons": {"type": "list", "elements": "str", "default": []},
            "draft_tokens": {"type": "int", "default": 0, "no_log": False},
            "concurrency": {"type": "int", "default": 64}, "versions": {"type": "dict", "default": {}}},
        supports_check_mode=True)
    if not module.params["folder"]:
        module.exit_json(changed=False, reasons=evaluation.simulated(module.params["containers"]))
    try:
        result = verdict(module.params)
    except (evaluation.EvaluationError, OSError, ValueError, KeyError) as error:
        module.fail_json(msg=f"evaluation_verdict: {error}")
    path = os.path.join(module.params["folder"], "eval.json")
    text = json.dumps(result, indent=1, sort_keys=True) + "\n"
    changed = True
    if os.path.exists(path):
        with open(path, encoding="utf-8") as old:
            changed = old.read() != text
    if changed and not module.check_mode:
        with open(path + ".part", "w", encoding="utf-8") as out:
            out.write(text)
        os.replace(path + ".part", path)
    module.exit_json(changed=changed, reasons=result["reasons"], result=result)


if __name__ == "__main__":
    main()
