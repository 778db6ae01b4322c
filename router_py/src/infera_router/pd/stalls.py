"""Prefills that hold requests and make no progress are taken out of rotation; their requests are retried elsewhere or answered.

A prefill is suspected when a leg of ours has waited for --prefill-stall-timeout and none has ended on it for as long. It is asked for its own
loads then. Progress is any change of its queues or of its counters of computed tokens; silence is none. A prefill whose requests only wait
for memory of a busy decode is not stalled. It is let in again when it computes, or when it is empty and generates for its health check: that
its queues shrink proves nothing, since our own aborts do that.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from infera_router.fleet.http1 import HttpError, fetch
from infera_router.fleet.record import WorkerRecord

if TYPE_CHECKING:
    from infera_router.pd.core import Core

log = logging.getLogger(__name__)

REASON = "stalled"
ASK_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 25.0  # SGLang gives its own probe 20 s
_COUNTERS = ("total_prefill_uncached_tokens", "total_prefill_busy_us")
_CORE = ("dp_rank", "num_running_reqs", "num_waiting_reqs", "num_used_tokens", "num_total_tokens", *_COUNTERS)
_QUEUES = ("prefill_bootstrap_queue_reqs", "prefill_inflight_queue_reqs")


class Loads:
    """What of /v1/loads tells of progress. `state` is comparable, None where the worker did not answer."""

    __slots__ = ("state", "computed", "held", "handshakes", "prealloc", "running")

    def __init__(self, loads: list[dict[str, Any]] | None) -> None:
        rows = loads or []
        queues = [row.get("disaggregation") or {} for row in rows]
        self.state = None if loads is None else tuple(
            tuple(row.get(name) for name in _CORE) + tuple(queue.get(name) for name in _QUEUES) for row, queue in zip(rows, queues))
        self.computed = sum(int(row.get(name) or 0) for row in rows for name in _COUNTERS)
        self.handshakes = sum(int(queue.get(name) or 0) for queue in queues for name in _QUEUES)
        self.running = sum(int(row.get("num_running_reqs") or 0) for row in rows)
        self.held = self.running + sum(int(row.get("num_waiting_reqs") or 0) for row in rows) + sum(
            int(queue.get("prefill_inflight_queue_reqs") or 0) for queue in queues)
        self.prealloc = sum(int(queue.get("decode_prealloc_queue_reqs") or 0) for queue in queues)


class _Suspect:
    __slots__ = ("state", "since", "held", "computed", "generation")

    def __init__(self, generation: str | None) -> None:
        self.state: Any = self  # equal to no answer
        self.since = 0.0
        self.computed = 0  # when it was taken out
        self.held = False
        self.generation = generation


class StallWatch:
    def __init__(self, core: Core) -> None:
        self.core = core
        self.timeout = core.settings.prefill_stall_timeout
        self.every = min(max(self.timeout / 10, 0.05), 5.0)
        self._suspects: dict[str, _Suspect] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.every)
            try:
                await self.look(monotonic())
            except Exception:
                log.exception("looking for stalled prefills failed")

    async def look(self, now: float) -> None:
        core = self.core
        workers = core.fleet.snapshot.workers
        suspects = {worker_id for worker_id, oldest in self._waiting().items() if now - oldest > self.timeout / 2}
        suspects.update(worker_id for worker_id, suspect in self._suspects.items() if suspect.held)
        for worker_id in list(self._suspects):
            record = workers.get(worker_id)
            if record is None or record.generation != self._suspects[worker_id].generation:
                self._release(worker_id, "it has left" if record is None else "its engine was started anew")
            elif worker_id not in suspects:
                del self._suspects[worker_id]
        for worker_id in suspects:
            record = workers.get(worker_id)
            if record is not None and record.disagg_mode == "prefill":
                await self._judge(record, now)

    def _waiting(self) -> dict[str, float]:
        """Per prefill that holds legs of ours: since when none of them has moved."""
        out: dict[str, float] = {}
        for exchange in self.core.live:
            leg = exchange.prefill
            if leg is not None and not leg.ended and leg.conn is not None:
                out[leg.worker_id] = min(out.get(leg.worker_id, leg.sent_at), leg.sent_at)
        for worker_id, at in out.items():
            out[worker_id] = max(at, self.core.moved.get(worker_id, 0.0))
        return out

    async def _judge(self, record: WorkerRecord, now: float) -> None:
        worker_id = record.worker_id
        suspect = self._suspects.setdefault(worker_id, _Suspect(record.generation))
        loads = await ask(record)
        if suspect.held:
            if loads.state is None:
                return
            if loads.computed > suspect.computed:
                self._release(worker_id, "it computes again")
            elif not loads.held and await generates(record):
                self._release(worker_id, "it is empty and generates")
            return
        if loads.state != suspect.state:
            suspect.state, suspect.since = loads.state, now
            return
        oldest = self._waiting().get(worker_id)
        if oldest is None or now - oldest < self.timeout or now - suspect.since < self.timeout / 2:
            return
        if loads.state is not None and not loads.held:
            return  # it has nothing: the connection is what hangs, and that is the idle timeout's business
        if loads.state is not None and loads.handshakes >= loads.held and await self._decodes_full():
            return
        self._hold(worker_id, suspect, loads)

    async def _decodes_full(self) -> bool:
        """Whether some decode has requests that wait for its memory while others run."""
        for record in self.core.fleet.snapshot.workers.values():
            if record.disagg_mode == "decode":
                loads = await ask(record)
                if loads.prealloc and loads.running:
                    return True
        return False

    def _hold(self, worker_id: str, suspect: _Suspect, loads: Loads) -> None:
        suspect.held = True
        suspect.computed = loads.computed
        self.core.hold(worker_id, REASON)
        hit = self.core.worker_lost(worker_id, REASON)
        what = "it does not answer for its loads" if loads.state is None else f"its queues hold {loads.held} requests and do not move"
        log.error("prefill %s has made no progress for %g s (%s); it is out of rotation until it computes again or is restarted, %d requests of ours "
                  "were taken off it", worker_id, self.timeout, what, hit)

    def _release(self, worker_id: str, why: str) -> None:
        suspect = self._suspects.pop(worker_id, None)
        if suspect is not None and suspect.held:
            self.core.let_in(worker_id)
            log.warning("prefill %s is in rotation again: %s", worker_id, why)


async def ask(record: WorkerRecord) -> Loads:
    """The worker's own view of its load; a silent or broken one has none."""
    try:
        response = await fetch(record.host, record.port, "/v1/loads", ASK_TIMEOUT_S)
        if response.status != 200:
            return Loads(None)
        loads = msgspec.json.decode(response.body)["loads"]
        return Loads([row for row in loads if isinstance(row, dict)])
    except (HttpError, OSError, msgspec.DecodeError, KeyError, TypeError, ValueError):
        return Loads(None)


async def generates(record: WorkerRecord) -> bool:
    """SGLang's own probe: a request of one token that needs no other leg."""
    try:
        return (await fetch(record.host, record.port, "/health_generate", PROBE_TIMEOUT_S)).status == 200
    except (HttpError, OSError):
        return False
