# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep run.json on the router's host and its copy on the controller; the task is delegated to the router's host."""
from __future__ import annotations

import json
import os
import pathlib
import re
import time

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.release import __version__ as core_version
from ansible.utils.vars import load_extra_vars
from ansible_collections.infera.serving.plugins.module_utils import run_record

OPTIONS = {"state", "plan", "deployment", "state_dir", "runs_dir", "path", "record", "strict"}


class ActionModule(ActionBase):
    """The host's file is read and written by the module of the same name, the controller's copy here."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp=None, task_vars=None):
        task_vars = task_vars or {}
        result = super().run(tmp, task_vars)
        args = self._task.args
        unknown = set(args) - OPTIONS
        if unknown:
            raise AnsibleActionFail(f"infera.serving.run_record: unknown options {', '.join(sorted(unknown))}")
        state, plan = args.get("state", "present"), args.get("plan") or {}
        deployment = args.get("deployment") or plan.get("deployment")
        if not deployment:
            raise AnsibleActionFail("infera.serving.run_record: deployment is not set; give the deployment's id")
        state_dir = args.get("state_dir") or plan.get("state_dir") or f"/var/lib/infera/{deployment}"
        runs = os.path.abspath(os.path.expanduser(args.get("runs_dir") or plan.get("runs_dir") or "runs"))
        self._host_path = f"{state_dir}/{run_record.FILE}"
        self._own_path = os.path.join(runs, deployment, run_record.FILE)
        result["run_dir"] = os.path.dirname(self._own_path)
        handler = {"present": self._present, "read": self._read, "absent": self._absent}.get(state)
        if handler is None:
            raise AnsibleActionFail(f"infera.serving.run_record: state {state!r} is unknown; use present, read, absent")
        try:
            result.update(handler(plan, deployment, task_vars))
        except run_record.RecordError as error:
            result.update(failed=True, msg=str(error))
        return result

    def _module(self, task_vars, **args):
        done = self._execute_module(module_name="infera.serving.run_record", module_args=dict(args, path=self._host_path), task_vars=task_vars)
        if done.get("failed"):
            raise run_record.RecordError(done.get("msg", "the module failed"))
        return done

    def _present(self, plan, deployment, task_vars):
        previous = self._module(task_vars, state="read").get("record") or None
        facts = {}
        for host in {c["host"] for c in plan["containers"]}:
            facts.update(task_vars["hostvars"][host].get("infera_container_facts") or {})
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        record = run_record.build(plan, facts, _versions(), now, previous)
        if self._task.check_mode and not facts:
            # Nothing runs yet, so there is nothing to write down.
            return {"changed": False, "record": previous or {}}
        done = self._module(task_vars, state="present", record=record)
        own = run_record.load(self._own_path) if os.path.exists(self._own_path) else None
        changed = own is None or own != record
        if changed and not self._task.check_mode:
            run_record.save(self._own_path, record)
        out = {"changed": bool(done.get("changed")) or changed, "record": record, "path": self._own_path}
        if done.get("diff"):
            out["diff"] = done["diff"]
        return out

    def _read(self, plan, deployment, task_vars):
        source, record = "host", None
        try:
            record = self._module(task_vars, state="read").get("record") or None
        except AnsibleConnectionFailure as error:
            self._display.warning(f"the router's host cannot be reached ({error}); reading {self._own_path}")
        if record is None:
            source, record = "controller", run_record.load(self._own_path)
        if record is None:
            return {"changed": False, "record": {}, "found": False}
        if not boolean(self._task.args.get("strict", True)):
            return {"changed": False, "record": record, "found": True, "source": source}
        wrong = run_record.conflicts(record, {k: v for k, v in load_extra_vars(self._loader).items() if isinstance(v, (str, int, float, bool))})
        if wrong:
            return {"failed": True, "msg": "\n".join(wrong)}
        return {"changed": False, "record": record, "found": True, "source": source}

    def _absent(self, plan, deployment, task_vars):
        done = self._module(task_vars, state="absent")
        if os.path.exists(self._own_path) and not self._task.check_mode:
            # Kept for later reading, under a name by which nobody takes it for a running deployment.
            os.replace(self._own_path, os.path.join(os.path.dirname(self._own_path), "last-run.json"))
        return {"changed": bool(done.get("changed"))}


def _versions():
    root = pathlib.Path(__file__).resolve().parents[2]
    version = "unknown"
    if (root / "MANIFEST.json").exists():
        version = json.loads((root / "MANIFEST.json").read_text(encoding="utf-8"))["collection_info"]["version"]
    elif (root / "galaxy.yml").exists():
        found = re.search(r"^version:\s*(\S+)", (root / "galaxy.yml").read_text(encoding="utf-8"), re.M)
        version = found.group(1) if found else version
    return {"infera.serving": version, "ansible-core": core_version}
