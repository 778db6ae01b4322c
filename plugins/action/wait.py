# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a host again and again until its containers answer, and say meanwhile what is being waited for and for how long at most."""
from __future__ import annotations

import time

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

OPTIONS = {"targets", "interval", "report_every", "max_restarts", "ca_file", "cert_file", "key_file"}


class ActionModule(ActionBase):
    """Polls with the module of the same name; the loop is here so that progress can be shown."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_diff = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        args = dict(self._task.args)
        unknown = set(args) - OPTIONS
        if unknown:
            raise AnsibleActionFail(f"infera.serving.wait: unknown options {', '.join(sorted(unknown))}")
        targets = args.pop("targets", None)
        if not isinstance(targets, list):
            raise AnsibleActionFail("infera.serving.wait: targets is not a list")
        if self._task.check_mode or not targets:
            result.update(changed=False, skipped=True, msg="nothing to wait for" if not targets else "check mode waits for nothing")
            return result
        host = (task_vars or {}).get("inventory_hostname", "?")
        interval, every = float(args.pop("interval", 2)), float(args.pop("report_every", 15))
        limit = int(args.pop("max_restarts", 2))
        result.update(self._loop(host, targets, interval, every, limit, args, task_vars))
        return result

    def _loop(self, host, targets, interval, every, limit, args, task_vars):
        started, shown, restarts, took = time.monotonic(), 0.0, {}, {}
        waiting = list(targets)
        while waiting:
            probe = self._execute_module(module_name="infera.serving.wait", module_args=dict(args, targets=waiting), task_vars=task_vars)
            if probe.get("failed"):
                return probe
            passed = time.monotonic() - started
            states, left = {state["name"]: state for state in probe["states"]}, []
            for target in waiting:
                state = states[target["name"]]
                if state["ready"]:
                    took[target["name"]] = round(passed, 1)
                    continue
                left.append(target)
                first = restarts.setdefault(target["name"], state["restarts"])
                if state["gone"] or state["restarts"] - first >= limit:
                    return self._failed(host, target, state, passed, "ends again and again" if not state["gone"] else "is not running")
                if passed > float(target.get("timeout", 300)):
                    return self._failed(host, target, state, passed, "did not become ready in time")
            waiting = left
            if waiting and passed - shown >= every:
                shown = passed
                for target in waiting:
                    self._display.display(f"  {host}: waiting for {target['name']}: {passed:.0f} s of at most {target.get('timeout', 300)} s: "
                                          f"{states[target['name']]['detail']}")
            if waiting:
                time.sleep(interval)
        return {"changed": False, "seconds": took}

    def _failed(self, host, target, state, passed, why):
        lines = [f"{target['name']} on {host} {why} ({passed:.0f} s of at most {target.get('timeout', 300)} s): {state['detail']}"]
        if state["log"]:
            lines += ["its last lines:", *("  " + line for line in state["log"][-25:])]
        lines.append(f"whole log: docker logs {target['name']}, on {host}")
        return {"failed": True, "msg": "\n".join(lines), "target": target["name"]}
