# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From docker inspect and a run record to the manifest of a measured point."""
from __future__ import annotations

from ansible.errors import AnsibleFilterError
from ansible_collections.infera.serving.plugins.filter.record import topology
from ansible_collections.infera.serving.plugins.module_utils import point_manifest

GIVEN = {"run_id", "concurrency", "result_class", "duration", "warmup_per_lane", "seed", "acceptance", "draft_tokens", "dataset", "used_dataset", "pages",
         "seen", "metrics_before", "metrics_after", "workers_before", "workers_after", "client_env", "comparable", "up_at", "client"}


def point_containers(results):
    """What the gate looks at, of the looped answers of community.docker.docker_container_info."""
    return [point_manifest.seen_container(one["item"]["name"], one.get("container")) for one in results]


def manifest(record, **given):
    if set(given) != GIVEN:
        raise AnsibleFilterError(f"point_manifest: missing {sorted(GIVEN - set(given))}, unknown {sorted(set(given) - GIVEN)}")
    return point_manifest.build(record, topology(record), given)


class FilterModule:
    def filters(self):
        return {"point_containers": point_containers, "point_manifest": manifest}
