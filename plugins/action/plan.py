# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect the inventory's variables on the controller and hand them to plan.build."""
from __future__ import annotations

import functools
import glob
import os

import yaml
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars
from ansible_collections.infera.serving.plugins.module_utils import plan, plan_names

GROUPS = ("prefill", "decode", "mixed", "router", "etcd")
MACHINES = "mi355x"
ROLES = os.path.normpath(os.path.join(os.path.dirname(__file__), "..", "..", "roles"))
# Variables of a host.
HOST_NAMES = ("infera_host_address",)
# Variables that playbooks read themselves.
PLAYBOOK_NAMES = ("site_smoke", "rollout_all", "rollout_allow_outage", "rollout_vram_wait", "verify_image_base", "verify_image_expected")


@functools.lru_cache(maxsize=1)
def role_names():
    """The options of every role, from their argument specs."""
    names = set()
    for path in glob.glob(os.path.join(ROLES, "*", "meta", "argument_specs.yml")):
        with open(path, encoding="utf-8") as handle:
            for entry in yaml.safe_load(handle)["argument_specs"].values():
                names.update(entry.get("options") or {})
    return frozenset(name for name in names if not name.startswith("_"))


class ActionModule(ActionBase):
    """Runs on the controller only: it reads variables, never a host."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_diff = False

    def run(self, tmp=None, task_vars=None):
        task_vars = task_vars or {}
        result = super().run(tmp, task_vars)
        unknown = set(self._task.args) - {"images", "rails"}
        if unknown:
            raise AnsibleActionFail(f"infera.serving.plan: unknown options {', '.join(sorted(unknown))}; it has images, rails")
        variables = self._variables(task_vars)
        try:
            made = plan.build(variables)
        except plan.PlanError as error:
            result.update(failed=True, msg="\n".join(error.faults))
            return result
        out = made.as_dict()
        out["runs_dir"] = os.path.abspath(os.path.expanduser(str(variables.get("infera_runs_dir") or "runs")))
        out["etcd_password_set"] = bool(variables.get("etcd_password"))
        result.update(changed=False, plan=out, warnings=made.warnings)
        return result

    def _variables(self, task_vars):
        names = [name for name in plan.variable_names() if name in task_vars]
        out = {name: self._templar.template(task_vars[name]) for name in names}
        # The role's own variable, where an inventory sets it instead.
        if "router_decode_request_weight" in task_vars:
            out["decode_request_weight"] = self._templar.template(task_vars["router_decode_request_weight"])
        out["weight_override"] = self._templar.template(task_vars["DECODE_REQUEST_WEIGHT"]) if "DECODE_REQUEST_WEIGHT" in task_vars else None
        groups, hostvars = task_vars.get("groups", {}), task_vars.get("hostvars", {})
        out["groups"] = {name: list(groups.get(name, [])) for name in GROUPS}
        out["addresses"] = {host: self._address(hostvars, host) for name in GROUPS for host in out["groups"][name]}
        out["images"] = self._task.args.get("images") or {}
        out["rails"] = self._task.args.get("rails") or {}
        hosts = [host for name in GROUPS for host in out["groups"][name]]
        out["machines"] = list(groups.get(MACHINES, []))
        out["addressed"] = {host for host in hosts if {"infera_host_address", "ansible_host"} & set(hostvars[host])}
        out["others"] = role_names().union(PLAYBOOK_NAMES, HOST_NAMES)
        known = out["others"].union(plan.variable_names(), (plan_names.WEIGHT,))
        # Of other capitals only those that were typed just now.
        typed = set(load_extra_vars(self._loader))
        out["seen"] = {name for name in task_vars if plan_names.is_ours(str(name), known) and (not str(name).isupper() or name in typed)}
        return out

    def _address(self, hostvars, host):
        own = hostvars[host]
        value = next((own[name] for name in ("infera_host_address", "ansible_host") if name in own), host)
        return str(self._templar.template("" if value is None else value)).strip()
