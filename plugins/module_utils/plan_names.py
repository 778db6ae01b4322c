# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which variable names are ours: a mistyped one is refused, so that no setting is lost in silence. Pure."""
from __future__ import annotations

import difflib

from ansible_collections.infera.serving.plugins.module_utils import plan_engines

__all__ = ["INTERNAL", "WEIGHT", "check", "is_ours"]

# The one variable in capitals: typed with -e.
WEIGHT = "DECODE_REQUEST_WEIGHT"
# What roles and playbooks set while they run; tests/unit/plan/test_names.py keeps the list whole.
INTERNAL = frozenset("""
agentx_client agentx_disk agentx_files agentx_folder agentx_infos agentx_judged agentx_metrics_after agentx_metrics_before agentx_pages agentx_record
agentx_run agentx_run_id agentx_seen agentx_engines agentx_up_at agentx_own_deployment agentx_workers_after agentx_workers_before
client_bin client_stamp client_venv
decode_containers etcd_containers mixed_containers prefill_containers router_containers
evaluate_folder evaluate_record
infera_container_facts infera_engine infera_engine_image infera_engine_libs infera_engine_logs infera_fabric infera_figures infera_host_checks infera_host_info
infera_image_digests infera_image_refs infera_probe_fault infera_probe_source infera_probe_target infera_rails infera_worker_envs
infera_libionic infera_plan infera_planned infera_preflight infera_preflight_facts infera_rails_found
infera_rails_info infera_reach infera_ready infera_recorded infera_rolling infera_run infera_socket infera_status infera_surplus infera_there
infera_vram_wait infera_wants
smoke_alone smoke_result smoke_run
teardown_found teardown_images teardown_run teardown_socket teardown_volumes
""".split())
_NEAR = 0.8


def is_ours(name, known):
    """True for a name that begins like one of *known* or nearly so, or is nearly the weight's."""
    return bool(difflib.get_close_matches(name.split("_", 1)[0], _prefixes(known), n=1, cutoff=_NEAR)) or _is_weight(name)


def check(names, known, others, faults):
    """Report every one of *names* that is nearly one of ours, or that the plan decides; return a warning for each other unknown one.

    *known*: names that the plan reads; *others*: options of roles and playbooks.
    """
    every, notes = set(known) | set(others), []
    for name in sorted(set(names) - every - INTERNAL - {WEIGHT}):
        prefix, _, key = name.partition("_")
        near = _near(name, prefix, every)
        if _is_weight(name):
            faults.add(name, None, f"did you mean {WEIGHT}?", shown="unknown")
        elif prefix in plan_engines.PREFIXES and key in plan_engines.PLAN_OWNED:
            role = prefix if prefix != "engine" else "prefill"
            faults.add(name, None, f"the plan decides it; set {plan_engines.PLAN_OWNED[key].format(role=role)}", shown="not an option")
        elif near:
            faults.add(name, None, f"did you mean {near}? A variable of your own needs another beginning than {prefix}_", shown="unknown")
        elif prefix in _prefixes(every):
            notes.append(f"{name} is no variable of infera.serving and does nothing here; docs/inventory.md lists them")
    return notes


def _near(name, prefix, every):
    same = [one for one in every if one.startswith(prefix[:3]) and not one.isupper()]
    # A bare word is likely to be the operator's own.
    longer = sorted(one for one in same if "_" in name and one.startswith(name + "_"))
    return next(iter(difflib.get_close_matches(name, same, n=1, cutoff=_NEAR) + longer), None)


def _is_weight(name):
    return name.isupper() and name != WEIGHT and bool(difflib.get_close_matches(name, [WEIGHT], n=1, cutoff=_NEAR))


def _prefixes(known):
    return {name.split("_", 1)[0] for name in known if "_" in name and not name.isupper()}
