#!/usr/bin/python
# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: needle_run
short_description: Ask for facts hidden in long prompts
version_added: 0.1.0
description:
  - Sends O(count) long chats to the router, each hiding another code at an evenly spread depth, and keeps every answer in O(dest).
  - Answers that are there already are not asked again, so an interrupted run goes on.
author:
  - The infera.serving maintainers (@infera)
options:
  url:
    description: The router's URL, from the run record.
    type: str
    required: true
  model:
    description: Served model name.
    type: str
    required: true
  dest:
    description: JSON-lines file of the answers.
    type: path
    required: true
  count:
    description: Number of prompts.
    type: int
    default: 64
  words:
    description: Words of one prompt; a word is about 1.3 tokens.
    type: int
    default: 24000
  concurrency:
    description: Prompts asked at once.
    type: int
    default: 8
  max_tokens:
    description: Tokens that an answer may have; thinking shares them.
    type: int
    default: 2048
  timeout:
    description: Seconds for one answer.
    type: int
    default: 1800
  api_key_file:
    description: File (mode 0600) that holds the router's API key.
    type: path
requirements:
  - requests
attributes:
  check_mode:
    description: Asks nothing and says how many answers are missing.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
"""

EXAMPLES = r"""
- name: Look for the needles
  infera.serving.needle_run:
    url: "{{ run.record.router_url }}"
    model: "{{ run.record.model.name }}"
    dest: runs/1p1d/evaluation/needles.jsonl
"""

RETURN = r"""
found:
  description: Needles found.
  type: int
  returned: success
asked:
  description: Needles asked for, now or by an earlier run.
  type: int
  returned: success
reasons:
  description: Why the check fails; empty when every needle was found.
  type: list
  elements: str
  returned: success
errors:
  description: Requests that did not end with HTTP 200, by number.
  type: dict
  returned: success
"""

import concurrent.futures
import json
import os
import traceback

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.infera.serving.plugins.module_utils import evaluation

try:
    import requests
except ImportError:
    REQUESTS_ERROR = traceback.format_exc()
else:
    REQUESTS_ERROR = None


def read(path: str) -> dict:
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as lines:
        return {row["number"]: row["answer"] for row in map(json.loads, filter(str.strip, lines))}


def ask(params: dict, headers: dict, needle: evaluation.Needle) -> str:
    """The answer's text, the reasoning's where the content is empty. Raises RequestException with the status in its text."""
    body = {"model": params["model"], "messages": [{"role": "user", "content": needle.prompt}], "temperature": 0, "max_tokens": params["max_tokens"]}
    answer = requests.post(params["url"] + "/v1/chat/completions", json=body, headers=headers, timeout=params["timeout"])
    if answer.status_code != 200:
        raise requests.RequestException(f"HTTP {answer.status_code}: {answer.text[:200]}")
    message = answer.json()["choices"][0]["message"]
    return message.get("content") or message.get("reasoning_content") or ""


def run(params: dict, needles: list, known: dict) -> dict:
    """Ask for what is not known yet; return errors by number. Every answer is on disk before the next is counted."""
    headers = {}
    if params["api_key_file"]:
        with open(params["api_key_file"], encoding="utf-8") as key:
            headers["Authorization"] = "Bearer " + key.readline().strip()
    errors = {}
    os.makedirs(os.path.dirname(os.path.abspath(params["dest"])), exist_ok=True)
    with open(params["dest"], "a", encoding="utf-8") as out, concurrent.futures.ThreadPoolExecutor(params["concurrency"]) as pool:
        pending = {pool.submit(ask, params, headers, n): n for n in needles if n.number not in known}
        for future in concurrent.futures.as_completed(pending):
            needle = pending[future]
            try:
                known[needle.number] = future.result()
            except (requests.RequestException, KeyError, ValueError) as error:
                errors[str(needle.number)] = str(error)[:300]
                continue
            out.write(json.dumps({"number": needle.number, "depth": needle.depth, "fact": needle.fact, "answer": known[needle.number]}) + "\n")
            out.flush()
    return errors


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True}, "model": {"type": "str", "required": True}, "dest": {"type": "path", "required": True},
            "count": {"type": "int", "default": 64}, "words": {"type": "int", "default": 24000}, "concurrency": {"type": "int", "default": 8},
            "max_tokens": {"type": "int", "default": 2048, "no_log": False}, "timeout": {"type": "int", "default": 1800},
            "api_key_file": {"type": "path", "no_log": False}},
        supports_check_mode=True)
    if REQUESTS_ERROR:
        module.fail_json(msg=missing_required_lib("requests"), exception=REQUESTS_ERROR)
    params = module.params
    try:
        needles = evaluation.needles(params["words"], params["count"])
        known = read(params["dest"])
    except (evaluation.EvaluationError, ValueError, KeyError) as error:
        module.fail_json(msg=f"needle_run: {error}")
    missing = sum(n.number not in known for n in needles)
    errors = {} if module.check_mode or not missing else run(params, needles, known)
    reasons = [] if module.check_mode else evaluation.judge_needles(known, needles)
    reasons += [f"needle {number}: {text}" for number, text in sorted(errors.items())][:5]
    found = len(needles) - sum(not evaluation.found(n, known.get(n.number, "")) for n in needles)
    module.exit_json(changed=bool(missing), found=found, asked=len(known), reasons=reasons, errors=errors)


if __name__ == "__main__":
    main()
