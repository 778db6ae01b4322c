"""Workers whose records vanished because etcd was away, not because the workers were.

A store that was frozen longer than a lease, or that lost its data, comes back without the records of healthy engines; their supervisors
put them back within seconds. A key that vanishes is therefore held, and asked for its health, only when all of this is true:

* the record said active (a supervisor that takes its worker away says draining first);
* the store has another history than before, or the router had lost touch with etcd within the last SETTLE seconds and the key's lease
  is gone (a key that was deleted by hand still has its lease, or never had one);
* the worker itself answers /health with 200.

Everything else is dropped at once, and what is held is dropped after SETTLE seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from infera_router.fleet.etcd import EtcdClient, EtcdError, KeyValue
from infera_router.fleet.http1 import HttpError, fetch
from infera_router.fleet.record import WorkerRecord

log = logging.getLogger(__name__)

SETTLE = 15.0
OUTAGE_AFTER = 5.0
PROBE_TIMEOUT = 3.5  # SGLang's /health generates a token and takes a second by itself
PROBE_EVERY = 1.0

Probe = Callable[[WorkerRecord], Awaitable[bool]]


async def answers_health(record: WorkerRecord) -> bool:
    try:
        return (await fetch(record.host, record.port, "/health", PROBE_TIMEOUT)).status == 200
    except HttpError:
        return False


@dataclass(slots=True)
class _Held:
    record: WorkerRecord
    until: float
    task: asyncio.Task[None] | None = None


class Holdover:
    """Owned by the watch: told of contact, outages and vanished keys; *changed* is called when a held worker is dropped."""

    def __init__(self, client: EtcdClient, changed: Callable[[], None], clock: Callable[[], float] = time.monotonic,
                 settle: float = SETTLE, outage_after: float = OUTAGE_AFTER, probe: Probe = answers_health) -> None:
        self._client, self._changed, self._clock = client, changed, clock
        self._settle, self._outage_after, self._probe = settle, outage_after, probe
        self._held: dict[str, _Held] = {}
        self._last_contact: float | None = None
        self._lost_since: float | None = None
        self._unsettled_until = float("-inf")

    def contact(self) -> None:
        """etcd answered."""
        now = self._clock()
        if self._lost_since is not None and self._last_contact is not None and now - self._last_contact > self._outage_after:
            self._unsettled_until = now + self._settle
        self._lost_since = None
        self._last_contact = now

    def outage(self) -> None:
        """A call or the watch failed."""
        if self._lost_since is None:
            self._lost_since = self._clock()

    def held(self) -> dict[str, WorkerRecord]:
        return {key: held.record for key, held in self._held.items()}

    def vanished(self, item: KeyValue, record: WorkerRecord, lost_history: bool) -> None:
        """A known record is no longer in the store."""
        unsettled = self._clock() < self._unsettled_until and item.lease != 0
        if not record.routable or not (lost_history or unsettled):
            return
        held = _Held(record, self._clock() + self._settle)
        self._held[item.key] = held
        held.task = asyncio.ensure_future(self._watch_over(item, held, lost_history))

    def returned(self, key: str) -> None:
        """The key is in the store (again)."""
        held = self._held.pop(key, None)
        if held is not None and held.task is not None:
            held.task.cancel()

    def close(self) -> None:
        for key in tuple(self._held):
            self.returned(key)

    async def _watch_over(self, item: KeyValue, held: _Held, lost_history: bool) -> None:
        reason = f"did not come back within {self._settle:g} s"
        try:
            if not lost_history and await self._lease_lives(item.lease):
                reason = "was deleted on purpose"
                return
            log.warning("worker %s vanished from etcd after an outage; it stays while it answers, at most %g s",
                        held.record.worker_id, self._settle)
            while (left := held.until - self._clock()) > 0:
                if not await self._probe(held.record):
                    reason = "does not answer /health"
                    return
                await asyncio.sleep(min(PROBE_EVERY, left))
        finally:
            if self._held.get(item.key) is held:
                del self._held[item.key]
                log.warning("worker %s %s: dropped", held.record.worker_id, reason)
                self._changed()

    async def _lease_lives(self, lease: int) -> bool:
        try:
            return await self._client.time_to_live(lease) > 0
        except EtcdError:
            return False
