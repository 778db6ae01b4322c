#!/usr/bin/python
# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: pareto_report
short_description: Draw measured points beside published ones
version_added: 0.1.0
description:
  - Reads the C(result.json) of each measured point and a CSV of published rows and writes C(points.csv), C(pareto.svg), C(pareto.png),
    C(index.html), which needs no other file, and C(table.md).
  - A row that does not count is drawn hollow and says why. Lines are compared only inside the range that both cover.
author: The infera.serving maintainers (@infera)
options:
  results:
    description: Paths of C(result.json) files, or folders that are searched for them.
    type: list
    elements: path
    default: []
  reference:
    description: CSV of published rows, each with its date, source and provenance.
    type: path
  dest:
    description: Folder to write to; made when absent.
    type: path
    required: true
  title:
    description: Heading of the page and the plot.
    type: str
    default: AgentX on infera.serving
requirements:
  - matplotlib (on the machine that runs the module)
attributes:
  check_mode:
    support: full
    description: Says whether a file would change.
  diff_mode:
    support: none
    description: Plots have no useful difference.
extends_documentation_fragment: []
"""

EXAMPLES = r"""
- name: Draw the report
  infera.serving.pareto_report:
    results: [runs/1p1d/points]
    reference: published.csv
    dest: runs/1p1d/report
  delegate_to: localhost
"""

RETURN = r"""
files:
  description: Paths written or equal already.
  type: list
  elements: str
  returned: success
rows:
  description: Number of rows, ours and published.
  type: dict
  returned: success
  sample: {"own": 4, "valid": 3, "published": 23}
"""

import json
import os
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils import pareto, report_page


def find(paths: list) -> list:
    found = []
    for path in paths:
        if os.path.isdir(path):
            found += [os.path.join(folder, "result.json") for folder, _dirs, names in os.walk(path) if "result.json" in names]
        elif os.path.exists(path):
            found.append(path)
        else:
            raise pareto.PointsError(f"results: {path} does not exist; give a point's folder or its result.json")
    return sorted(found)


def read_results(paths: list) -> list:
    rows = []
    for path in find(paths):
        with open(path, encoding="utf-8") as lines:
            result = json.load(lines)
        row = {**result, **(result.get("metrics") or {})}
        row.setdefault("series", f"this run: {result.get('shape')}")
        row["gpus"] = (result.get("gpus") or {}).get("total")
        rows.append(row)
    return rows


def outputs(rows: list, title: str) -> dict:
    drawn = report_page.plot(rows, title)
    with tempfile.TemporaryDirectory() as folder:
        table = os.path.join(folder, "points.csv")
        pareto.write_csv(table, rows)
        with open(table, "rb") as lines:
            points = lines.read()
    return {"points.csv": points, "pareto.svg": drawn["svg"], "pareto.png": drawn["png"],
            "index.html": report_page.page(rows, title, drawn["svg"]).encode(), "table.md": report_page.markdown(rows).encode()}


def write(folder: str, files: dict, check: bool) -> bool:
    changed = False
    for name, content in files.items():
        path = os.path.join(folder, name)
        if os.path.exists(path):
            with open(path, "rb") as old:
                if old.read() == content:
                    continue
        changed = True
        if not check:
            os.makedirs(folder, exist_ok=True)
            with open(path + ".part", "wb") as out:
                out.write(content)
            os.replace(path + ".part", path)
    return changed


def main() -> None:
    module = AnsibleModule(
        argument_spec={"results": {"type": "list", "elements": "path", "default": []}, "reference": {"type": "path"},
                       "dest": {"type": "path", "required": True}, "title": {"type": "str", "default": "AgentX on infera.serving"}},
        supports_check_mode=True)
    try:
        own = read_results(module.params["results"])
        published = pareto.read_reference(module.params["reference"]) if module.params["reference"] else []
        files = outputs(own + published, module.params["title"])
    except ImportError:
        module.fail_json(msg="pareto_report needs matplotlib: install requirements-report.txt into the controller's environment")
    except (pareto.PointsError, OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    changed = write(module.params["dest"], files, module.check_mode)
    module.exit_json(changed=changed, files=sorted(os.path.join(module.params["dest"], name) for name in files),
                     rows={"own": len(own), "valid": sum(r.get("valid") is True for r in own), "published": len(published)})


if __name__ == "__main__":
    main()
