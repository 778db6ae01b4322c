# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Watching the engines' and the router's metrics pages during a run: samples into a JSON-lines file, then a summary with flags."""
from __future__ import annotations

import json
import os
import re
import statistics
import time
from typing import Any, Callable

ACCEPTANCE = "sglang:spec_accept_length"
WATCHED = (ACCEPTANCE, "sglang:cache_hit_rate", "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage",
           "infera_router_decode_demand_requests")
COLLAPSE = 0.7   # of the run's first third
SATURATED = 0.02  # distance to the number of draft tokens

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(\{[^}]*\})?\s+(\S+)")


def parse(text: str) -> dict[str, dict[str, float]]:
    """{metric: {labels as written: value}} of a page in the text exposition format; lines that are not samples are skipped."""
    out: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        found = _LINE.match(line)
        if found and not line.startswith("#"):
            try:
                out.setdefault(found.group(1), {})[found.group(2) or ""] = float(found.group(3))
            except ValueError:
                continue
    return out


def total(page: dict[str, dict[str, float]], *names: str) -> float | None:
    """Sum over the labels of the first of names that the page has; None when it has none."""
    for name in names:
        if name in page:
            return sum(page[name].values())
    return None


def watch(urls: dict[str, str], path: str, fetch: Callable[[str], str], interval: float, stop_file: str, limit: float,
          clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep) -> int:
    """Append {t, name, metric: {labels: value}} per page and interval (s) until stop_file exists or limit (s) passed; return the number of lines.

    A page that cannot be read is recorded as {t, name, error}: a gap is visible, never a zero.
    """
    started, lines = clock(), 0
    with open(path, "a", encoding="utf-8") as out:
        while not os.path.exists(stop_file) and clock() - started < limit:
            for name, url in sorted(urls.items()):
                row: dict[str, Any] = {"t": clock(), "name": name}
                try:
                    page = parse(fetch(url))
                    row.update({m: page[m] for m in WATCHED if m in page})
                except Exception as error:  # whatever a fetcher raises is a gap of this page, not the end of the watch
                    row["error"] = str(error)[:200]
                out.write(json.dumps(row) + "\n")
                lines += 1
            out.flush()
            sleep(interval)
    return lines


def read(path: str) -> list[dict[str, Any]]:
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def acceptance(rows: list[dict[str, Any]], names: list[str], draft_tokens: int | None) -> dict[str, Any]:
    """Per decode: median acceptance length of the samples above 0 (an idle engine reports 0), and flags.

    {name: {"median": float or None, "samples": n, "flags": [...]}}; no series at all gives median None: not applicable without speculation.
    """
    out = {}
    for name in names:
        values = [v for row in rows if row["name"] == name for v in row.get(ACCEPTANCE, {}).values() if v > 0]
        flags = []
        if len(values) >= 9:
            third = len(values) // 3
            first, last = statistics.median(values[:third]), statistics.median(values[-third:])
            if last < COLLAPSE * first:
                flags.append(f"acceptance collapsed from {first:.2f} to {last:.2f}")
        if values and draft_tokens and statistics.median(values) >= draft_tokens - SATURATED:
            flags.append(f"acceptance is saturated at {statistics.median(values):.2f} of {draft_tokens}: the output is a loop")
        out[name] = {"median": statistics.median(values) if values else None, "samples": len(values), "flags": flags}
    return out


def gaps(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Pages that could not be read, by name."""
    out: dict[str, int] = {}
    for row in rows:
        if "error" in row:
            out[row["name"]] = out.get(row["name"], 0) + 1
    return out
