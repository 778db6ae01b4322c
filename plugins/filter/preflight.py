# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters of the role preflight; each has a page of its own beside this file."""
from __future__ import annotations

from ansible.errors import AnsibleFilterError
from ansible_collections.infera.serving.plugins.module_utils import preflight_across as between
from ansible_collections.infera.serving.plugins.module_utils import preflight_check as checks
from ansible_collections.infera.serving.plugins.module_utils import preflight_rails as rails
from ansible_collections.infera.serving.plugins.module_utils import preflight_wants as planned


def preflight_wants(plan, host):
    return planned.wants(plan, host)


def preflight_peers(plan, host):
    return planned.peers(plan, host)


def preflight_rails(facts, gpus=(), **options):
    if not facts or "rails" not in facts:
        return [checks.not_applicable(name, "no engine on this host uses RDMA") for name in rails.NAMES]
    return rails.check_rails(facts, gpus, **options)


def preflight_across(hosts, routed=False, prefix=24, max_skew=1.0):
    try:
        return between.across(hosts, routed, prefix, max_skew)
    except ImportError as error:
        raise AnsibleFilterError(str(error))


def preflight_ignore(found, names):
    unknown = [name for name in names if name not in {check["check"] for check in found}]
    wrong = [checks.failed("preflight_ignore", "preflight_ignore: no check is called %s" % ", ".join(map(str, unknown)),
                           "use a name of the table: %s" % ", ".join(dict.fromkeys(check["check"] for check in found)))] if unknown else []
    return checks.ignore(found, [name for name in names if name not in unknown]) + wrong


class FilterModule:
    def filters(self):
        return {
            "preflight_across": preflight_across,
            "preflight_failures": checks.failures,
            "preflight_ignore": preflight_ignore,
            "preflight_peers": preflight_peers,
            "preflight_rails": preflight_rails,
            "preflight_table": checks.table,
            "preflight_wants": preflight_wants,
        }
