"""Is the engine empty? Read from its metrics page: running, queued, and the queues of its PD role, summed over all ranks.

SGLang writes its gauges when it first has something to report, so an engine that has served nothing lacks them; its load report
(``/v1/loads``) is asked then, before a drain is given up.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping

from infera_router.fleet.http1 import HttpError, fetch

log = logging.getLogger(__name__)

POLL = 0.5
_ALWAYS = ("sglang:num_running_reqs", "sglang:num_queue_reqs")
_PREFILL = ("sglang:num_prefill_bootstrap_queue_reqs", "sglang:num_prefill_inflight_queue_reqs")
_DECODE = ("sglang:num_decode_prealloc_queue_reqs", "sglang:num_decode_transfer_queue_reqs")
_NEEDED = {"mixed": _ALWAYS, "prefill": _ALWAYS + _PREFILL, "decode": _ALWAYS + _DECODE}
_MORE = ("sglang:num_grammar_queue_reqs", "sglang:num_decode_host_receive_queue_reqs")  # counted where a version has them
_NAMES = frozenset(_ALWAYS + _PREFILL + _DECODE + _MORE)
_LOADS = ("num_running_reqs", "num_waiting_reqs")
_LOADS_PD = ("prefill_bootstrap_queue_reqs", "prefill_inflight_queue_reqs", "decode_prealloc_queue_reqs", "decode_transfer_queue_reqs",
             "decode_retracted_queue_reqs")


class MetricsMissing(Exception):
    """The page lacks what a drain needs; names them."""


def held_requests(page: str, mode: str) -> float:
    """Requests that the engine still has, from a Prometheus text *page*. Raises MetricsMissing."""
    seen: set[str] = set()
    total = 0.0
    for line in page.splitlines():
        if not line or line[0] == "#":
            continue
        name = line.partition("{")[0] if "{" in line else line.partition(" ")[0]
        if name not in _NAMES:
            continue
        fields = (line.rpartition("}")[2] if "{" in line else line[len(name):]).split()
        try:
            total += float(fields[0])
        except (IndexError, ValueError):
            continue
        seen.add(name)
    missing = [name for name in _NEEDED[mode] if name not in seen]
    if missing:
        raise MetricsMissing(", ".join(missing))
    return total


def reported_requests(body: bytes) -> float:
    """The same from the load report. Raises ValueError when it is none."""
    data = json.loads(body)
    loads = data.get("loads") if isinstance(data, dict) else None
    if not isinstance(loads, list) or not loads or not all(isinstance(load, dict) and _LOADS[0] in load for load in loads):
        raise ValueError("no load report")
    total = 0.0
    for load in loads:
        queues = load.get("disaggregation") or {}
        total += sum(max(0, load.get(name) or 0) for name in _LOADS) + sum(max(0, queues.get(name) or 0) for name in _LOADS_PD)
    return total


async def _ask(host: str, port: int, mode: str, headers: Mapping[str, str]) -> float:
    """Raises MetricsMissing or HttpError."""
    page = await fetch(host, port, "/metrics", 5.0, headers)
    try:
        return held_requests(page.body.decode("utf-8", "replace") if page.status == 200 else "", mode)
    except MetricsMissing as missing:
        try:
            return reported_requests((await fetch(host, port, "/v1/loads", 5.0, headers)).body)
        except (HttpError, ValueError):
            raise missing from None


async def wait_until_empty(host: str, port: int, mode: str, headers: Mapping[str, str], timeout: float, settle: float) -> bool:
    """Wait until the engine held nothing for *settle* seconds in a row, at most *timeout*; True when it is empty.

    A metrics page that cannot be read, or lacks a name, means no wait: a loud warning, and False.
    """
    begin = time.monotonic()
    empty_since: float | None = None
    told = begin
    failures = 0
    while (now := time.monotonic()) - begin < timeout:
        try:
            held = await _ask(host, port, mode, headers)
            failures = 0
        except MetricsMissing as missing:
            log.warning("DRAIN WITHOUT WAITING: /metrics of the engine has no %s, and /v1/loads no report; requests may be cut off", missing)
            return False
        except HttpError as error:
            failures += 1
            if failures >= 3:
                log.warning("DRAIN WITHOUT WAITING: the engine's /metrics cannot be read (%s); requests may be cut off", error)
                return False
            held = 1.0
        now = time.monotonic()
        if held > 0:
            empty_since = None
        elif empty_since is None:
            empty_since = now
        if empty_since is not None and now - empty_since >= settle:
            log.info("the engine is empty after %.1f s", now - begin)
            return True
        if now - told >= 10:
            told = now
            log.info("draining: %d requests held, %.0f of at most %g s", held, now - begin, timeout)
        await asyncio.sleep(POLL)
    log.warning("the engine still holds requests after %g s of draining; stopping it anyway", timeout)
    return False
