# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The manifest of a measured point, derived from the run record and what was seen: nothing in it is typed twice."""
from __future__ import annotations

import calendar
import re
import time
from typing import Any

from . import metrics_watch

REQUESTS = ("infera_requests_total", "infera_request_duration_seconds_count")


def epoch(text: str) -> float:
    """Seconds since the epoch of Docker's RFC 3339 time in UTC; 0 for its zero time."""
    found = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?", text or "")
    if not found or found.group(1).startswith("0001"):
        return 0.0
    return calendar.timegm(time.strptime(found.group(1), "%Y-%m-%dT%H:%M:%S")) + float(found.group(2) or 0)


def seen_container(name: str, info: dict[str, Any] | None) -> dict[str, Any]:
    """What the gate looks at, of one answer of docker inspect; an absent container has started_at 0."""
    if not info:
        return {"name": name, "started_at": 0.0, "image_id": "", "restarts": 0, "oom_killed": False, "env": {}, "argv": [], "missing": True}
    env = dict(item.split("=", 1) for item in info["Config"].get("Env") or [] if "=" in item)
    return {"name": name, "started_at": epoch(info["State"]["StartedAt"]), "image_id": info["Image"], "restarts": info.get("RestartCount", 0),
            "oom_killed": bool(info["State"].get("OOMKilled")), "env": env, "argv": list(info["Config"].get("Cmd") or []), "missing": False}


def drift(recorded: dict[str, Any], seen: dict[str, Any]) -> list[str]:
    """Names of what differs between the record and the live container."""
    if seen["missing"]:
        return ["the container is missing"]
    out = [f"env.{k}" for k, v in sorted(recorded["env"].items()) if seen["env"].get(k) != v]
    return out + (["argv"] if list(recorded["argv"]) != seen["argv"] else [])


def router_requests(page: str) -> float | None:
    """Requests that the router has counted so far; None where the page has no such metric."""
    return metrics_watch.total(metrics_watch.parse(page), *REQUESTS)


def topology_gpus(topology: dict[str, Any], total: int) -> dict[str, int]:
    """GPUs by role from sizes; on a machine without GPUs a rank stands for one, which only a rehearsal may do."""
    by_role = {role: one["workers"] * one["tp"] * one["pp"] for role, one in topology.items()}
    return {**by_role, "total": total or sum(by_role.values())}


def build(record: dict[str, Any], topology: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The manifest that point_gate judges. given: see the filter point_manifest."""
    live = {one["name"]: one for one in given["seen"]}
    containers = []
    for recorded in record["containers"]:
        one = live.get(recorded["name"]) or seen_container(recorded["name"], None)
        containers.append({"name": recorded["name"], "role": recorded["role"], "host": recorded["host"], "gpus": recorded.get("gpus", []),
                           "env": recorded["env"], "drift": drift(recorded, one),
                           **{k: one[k] for k in ("started_at", "image_id", "restarts", "oom_killed")}})
    before, after = router_requests(given["metrics_before"]), router_requests(given["metrics_after"])
    engines = [c for c in containers if c["role"] in ("prefill", "decode", "mixed")]
    generations = [{w["worker_id"]: w.get("generation") for w in workers} for workers in (given["workers_before"], given["workers_after"])]
    return {
        "schema": 1, "run_id": given["run_id"], "series": f"this deployment: {record['shape']}", "class": given["result_class"], "shape": record["shape"],
        "conc": given["concurrency"], "gpus": topology_gpus(topology, record.get("gpus", 0)), "topology": topology,
        "decode_request_weight": record["weight"], "date": time.strftime("%Y-%m-%d", time.gmtime()), "comparable": given["comparable"],
        "image_id": engines[0]["image_id"] if engines else "", "dataset": given["used_dataset"],
        "versions": {**record.get("versions", {}), "client": given["client"]},
        "client": {"seed": given["seed"], "duration": given["duration"], "warmup_per_lane": given["warmup_per_lane"]}, "client_env": given["client_env"],
        "expect": {"scenarios": ["inferencex-agentx-mvp"], "duration": given["duration"], "warmup_per_lane": given["warmup_per_lane"], "seed": given["seed"],
                   "acceptance": given["acceptance"], "draft_tokens": given["draft_tokens"], "dataset": given["dataset"],
                   "metrics_urls": sorted(given["pages"].values())},
        "deployment": {"id": record["id"], "up_at": given["up_at"], "points": 1, "containers": containers},
        "requests_before": {"router": before}, "router_requests": None if before is None or after is None else after - before,
        "generations_before": generations[0], "generations_after": generations[1],
    }
