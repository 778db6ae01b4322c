#!/usr/bin/python
# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: agentx_point
short_description: Turn a client's artifacts into one row, and judge it
version_added: 0.1.0
description:
  - Computes the metrics anew from the records, compares them with the client's own aggregate, runs the gate and writes C(result.json) into O(folder).
  - A point that the gate rejects keeps its numbers, with C(valid) false and every reason.
author:
  - The infera.serving maintainers (@infera)
options:
  manifest:
    description: What was deployed, asked for and seen; the agentx role makes it from the run record.
    type: dict
    required: true
  folder:
    description: The point's folder.
    type: path
    required: true
  artifacts:
    description: The client's artifact folder.
    type: path
    required: true
  first_turn_limit:
    description: Seconds; a first turn that waited longer for its first token is flagged, since shortest-prefill-first pushes long cold prompts back.
    type: float
    default: 120
  agreement:
    description: Largest deviation of the own figures from the client's aggregate.
    type: float
    default: 0.01
attributes:
  check_mode:
    description: Judges and writes nothing.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
"""

EXAMPLES = r"""
- name: Judge the point
  infera.serving.agentx_point:
    manifest: "{{ agentx_manifest }}"
    folder: /var/lib/infera/1p1d/points/c64
    artifacts: /var/lib/infera/1p1d/points/c64/aiperf_artifacts
"""

RETURN = r"""
result:
  description: The row, as result.json holds it.
  type: dict
  returned: success
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils import metrics_watch, point, point_gate

# Lines of an engine's log that spoil a point.
FINDINGS = ("Memory access fault", "out of memory", "Traceback (most recent call last)", "Scheduler hit an exception")


def log_findings(folder: str) -> list:
    """'FILE: LINE' for each spoiling line of the collected logs, at most one per file and kind."""
    out = []
    logs = os.path.join(folder, "logs")
    for name in sorted(os.listdir(logs)) if os.path.isdir(logs) else []:
        with open(os.path.join(logs, name), encoding="utf-8", errors="replace") as lines:
            seen = set()
            for line in lines:
                for finding in FINDINGS:
                    if finding in line and finding not in seen:
                        seen.add(finding)
                        out.append(f"{name}: {line.strip()[:200]}")
    return out


def build(params: dict) -> dict:
    manifest, artifacts = dict(params["manifest"]), point.load(params["artifacts"])
    gpus = manifest["gpus"]["total"]
    own = point.metrics(artifacts["records"], gpus)
    manifest["metrics"] = own
    manifest["log_findings"] = list(manifest.get("log_findings") or []) + log_findings(params["folder"])
    watched = os.path.join(params["folder"], "watch.jsonl")
    decodes = [c["name"] for c in manifest["deployment"]["containers"] if c["role"] == "decode"]
    acceptance = {}
    if os.path.exists(watched):
        acceptance = metrics_watch.acceptance(metrics_watch.read(watched), decodes, manifest["expect"].get("draft_tokens"))
    manifest["acceptance"] = {name: one["median"] for name, one in acceptance.items()}
    verdict = point_gate.judge(point_gate.Point(manifest, artifacts))
    warnings = verdict.warnings + [f"{name}: {flag}" for name, one in sorted(acceptance.items()) for flag in one["flags"]]
    ratios = point.agreement(own, artifacts["aggregate"], gpus or 1)
    reasons = list(verdict.reasons)
    if gpus:
        reasons += [f"agreement: our {name} is {ratio:.4f} of the client's" for name, ratio in sorted(ratios.items())
                    if ratio is not None and abs(ratio - 1) > params["agreement"]]
    slowest = own["ttft_first_turn_max"]
    if slowest is not None and slowest > 1000 * params["first_turn_limit"]:
        warnings.append(f"a first turn waited {slowest / 1000:.0f} s for its first token (limit {params['first_turn_limit']:.0f} s)")
    theoretical = artifacts["aggregate"].get("theoretical_prefix_cache_hit", {}).get("avg")
    errors = sum(bool(r.get("error")) for r in artifacts["records"])
    keep = ("run_id", "series", "shape", "conc", "gpus", "topology", "decode_request_weight", "versions", "deployment", "client", "date", "comparable",
            "image_id", "dataset", "evaluation")
    return {"schema": 1, "unofficial": True, **{k: manifest[k] for k in keep if k in manifest}, "result_class": verdict.result_class,
            "valid": verdict.valid and not reasons, "reasons": reasons, "warnings": warnings, "metrics": own, "agreement": ratios, "errors": errors,
            "cache_theoretical": theoretical / 100 if theoretical is not None else None,
            "spec_accept_len": manifest["acceptance"] or "not applicable"}


def main() -> None:
    module = AnsibleModule(
        argument_spec={"manifest": {"type": "dict", "required": True}, "folder": {"type": "path", "required": True},
                       "artifacts": {"type": "path", "required": True}, "first_turn_limit": {"type": "float", "default": 120},
                       "agreement": {"type": "float", "default": 0.01}},
        supports_check_mode=True)
    try:
        result = build(module.params)
    except (point.ArtifactError, OSError, ValueError, KeyError) as error:
        module.fail_json(msg=f"agentx_point: {type(error).__name__}: {error}")
    path = os.path.join(module.params["folder"], "result.json")
    text = json.dumps(result, indent=1, sort_keys=True) + "\n"
    changed = True
    if os.path.exists(path):
        with open(path, encoding="utf-8") as old:
            changed = old.read() != text
    if changed and not module.check_mode:
        with open(path + ".part", "w", encoding="utf-8") as out:
            out.write(text)
        os.replace(path + ".part", path)
    module.exit_json(changed=changed, result=result)


if __name__ == "__main__":
    main()
