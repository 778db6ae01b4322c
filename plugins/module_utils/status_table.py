# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One row per container of a run record: what was deployed beside what is seen now."""
from __future__ import annotations

import json
import urllib.error
import urllib.request

__all__ = ["fetch", "rows"]


def fetch(url, timeout=5):
    """Return (status or None, JSON or text) of a URL; never raises for a server that is away."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            status, body = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, body = error.code, error.read()
    except (OSError, ValueError) as error:
        return None, str(getattr(error, "reason", error))
    try:
        return status, json.loads(body)
    except ValueError:
        return status, body.decode(errors="replace")


def rows(record, fetcher=fetch):
    """Return rows {container, role, host, endpoint, ranks, registered, breaker, health} in the record's order."""
    status, page = fetcher(record["router_url"] + "/v1/workers")
    listed = page.get("workers", []) if isinstance(page, dict) else page if isinstance(page, list) else []
    workers = {row.get("worker_id"): row for row in listed if isinstance(row, dict)}
    addresses = {host["name"]: host["address"] for host in record["hosts"]}
    out = []
    for container in record["containers"]:
        port = container["ports"].get("http") or container["ports"].get("client")
        endpoint = f"{addresses[container['host']]}:{port}"
        seen = workers.pop(endpoint, None)
        row = {"container": container["name"], "role": container["role"], "host": container["host"], "endpoint": endpoint,
               "ranks": container.get("ranks", 1) if container["role"] in ("prefill", "decode", "mixed") else None,
               "registered": None, "breaker": None, "health": _health(record, container, endpoint, fetcher)}
        if container["role"] in ("prefill", "decode", "mixed"):
            row["registered"] = "router away" if status != 200 else "no" if seen is None else seen.get("status") or "active"
            if seen and (seen.get("dp_size") or 1) != container.get("ranks", 1):
                row["registered"] += f" ({seen.get('dp_size') or 1} ranks)"
            row["breaker"] = (seen or {}).get("breaker")
        out.append(row)
    for key, seen in workers.items():
        out.append({"container": "(not of this deployment)", "role": seen.get("disagg_mode"), "host": None, "endpoint": key,
                    "ranks": seen.get("dp_size") or 1, "registered": seen.get("status") or "active", "breaker": seen.get("breaker"), "health": None})
    return out


def _health(record, container, endpoint, fetcher):
    if container["role"] == "etcd":
        url = next((e for e in record["settings"].get("etcd_endpoints", []) if e.endswith("//" + endpoint)), f"http://{endpoint}")
        if url.startswith("https:"):
            return "not asked (TLS)"
        status, body = fetcher(url + "/health")
        return "ok" if status == 200 and str((body if isinstance(body, dict) else {}).get("health")) in ("true", "True") else f"bad: {status or body}"
    path = "/ready" if container["role"] == "router" else "/health"
    status, body = fetcher(f"http://{endpoint}{path}")
    if status == 200:
        return "ok"
    if status is None:
        return f"away: {body}"[:60]
    reason = body.get("reason") if isinstance(body, dict) else None
    return f"HTTP {status}" + (f": {reason}" if reason else "")
