"""The fleet's watch: what etcd holds under the prefix, kept true in a Pool.

Range at revision R, watch from R + 1; after every break, compaction or suspicion range again and compare, so that a delete cannot be
lost. While etcd is away the known workers stay. docs/etcd.md tells the rules for operators.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from infera_router.fleet.etcd import EtcdClient, EtcdError, EtcdUnavailable, KeyValue, RangeResult
from infera_router.fleet.holdover import Holdover
from infera_router.fleet.pool import Pool
from infera_router.fleet.record import DEFAULT_PREFIX, RecordError, WorkerRecord, parse

log = logging.getLogger(__name__)

RETRY_FIRST, RETRY_LAST = 0.1, 1.0
CHECK_EVERY = 5.0
CHECK_GRACE = 1.0


@dataclass(slots=True)
class WatchState:
    """For metrics and /ready; times are of the monotonic clock."""

    connected: bool = False
    resyncs: int = 0
    events: int = 0
    rejected: int = 0
    stalls: int = 0
    last_contact: float = 0.0
    last_error: str = ""
    rejected_keys: dict[str, str] = field(default_factory=dict)


class FleetWatch:
    """Runs in one task; ``synced`` is set after the first complete view."""

    def __init__(self, client: EtcdClient, pool: Pool, prefix: str = DEFAULT_PREFIX, check_every: float = CHECK_EVERY,
                 holdover: Holdover | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._pool, self._prefix = client, pool, prefix
        self._check_every, self._clock = check_every, clock
        self._holdover = holdover or Holdover(client, self._publish, clock)
        self._items: dict[str, KeyValue] = {}
        self._records: dict[str, WorkerRecord] = {}
        self._revision = 0
        self._cluster = 0
        self.state = WatchState()
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """Watch until cancelled."""
        delay = RETRY_FIRST
        try:
            while True:
                try:
                    await self._resync()
                    delay = RETRY_FIRST
                    await self._follow()
                except _Stalled as stalled:
                    self.state.stalls += 1
                    self._client.skip_endpoint()
                    log.warning("etcd watch: %s; reading the prefix again", stalled)
                except EtcdError as error:
                    self._lost(error)
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, RETRY_LAST)
                except Exception as error:
                    # This task must not end: the view would stay what it is for good.
                    log.exception("etcd watch failed; reading the prefix again")
                    self._lost(error)
                    await asyncio.sleep(RETRY_LAST)
        finally:
            self.state.connected = False
            self._holdover.close()

    # ---- one session: range, then follow

    async def _resync(self) -> None:
        result = await self._client.range(self._prefix)
        same_history = result.cluster == self._cluster and result.revision >= self._revision
        known, first = self._items, not self.synced.is_set()
        items = {item.key: item for item in result.items}
        gone = [item for key, item in known.items() if key not in items]
        self._contact()
        if not same_history and not first:
            log.warning("etcd has another history than before (a new or restored store); %d known workers are not in it", len(gone))
        self._items, self._revision, self._cluster = items, result.revision, result.cluster
        for item in gone:
            self._remove(item, lost_history=not same_history)
        for item in items.values():
            self._read(item)
        self.state.resyncs += 1
        self._publish()
        self.synced.set()
        (log.info if first else log.debug)("etcd: %d records at revision %d from %s", len(items), result.revision, self._client.endpoint)

    async def _follow(self) -> None:
        async with contextlib.aclosing(self._client.watch(self._prefix, self._revision + 1)) as batches:
            checker = asyncio.ensure_future(self._check_until_stalled())
            try:
                while True:
                    step = asyncio.ensure_future(batches.__anext__())
                    try:
                        await asyncio.wait((step, checker), return_when=asyncio.FIRST_COMPLETED)
                        if checker.done():
                            checker.result()
                        batch = step.result()
                    finally:
                        if not step.done():
                            step.cancel()
                            with contextlib.suppress(asyncio.CancelledError, EtcdError):
                                await step
                    self.state.connected = True
                    self._contact()
                    for event in batch.events:
                        self._revision = max(self._revision, event.item.mod_revision)
                        self.state.events += 1
                        if not event.deleted:
                            self._items[event.item.key] = event.item
                            self._read(event.item)
                        elif (known := self._items.pop(event.item.key, None)) is not None:
                            self._remove(known, lost_history=False)
                    if batch.events:
                        self._publish()
            finally:
                checker.cancel()
                with contextlib.suppress(asyncio.CancelledError, EtcdError, _Stalled):
                    await checker

    async def _check_until_stalled(self) -> None:
        """Compare count and newest change with the store from time to time; raises _Stalled when the watch fell behind.

        Every key whose last change is not after our revision is ours too, so an equal count and an equal newest change mean an equal view.
        """
        while True:
            await asyncio.sleep(self._check_every)
            try:
                if self._agrees(await self._newest()):
                    continue
                await asyncio.sleep(CHECK_GRACE)
                seen = await self._newest()
            except EtcdUnavailable as error:
                self._holdover.outage()
                self._client.skip_endpoint()
                log.warning("etcd does not answer (%s); the known workers stay", error)
                self.state.last_error = str(error)
                continue
            if not self._agrees(seen):
                raise _Stalled(f"the watch is behind: the store has {seen.count} records at revision {seen.revision}")

    async def _newest(self) -> RangeResult:
        result = await self._client.range(self._prefix, limit=1, newest_first=True)
        self._contact()
        return result

    def _agrees(self, seen: RangeResult) -> bool:
        newest = seen.items[0].mod_revision if seen.items else 0
        ours = max((item.mod_revision for item in self._items.values()), default=0)
        return seen.cluster == self._cluster and seen.count == len(self._items) and newest == ours

    # ---- the view

    def _read(self, item: KeyValue) -> None:
        try:
            record = parse(item.key, item.value, self._prefix)
        except RecordError as error:
            if self.state.rejected_keys.get(item.key) != error.reason:
                self.state.rejected += 1
                self.state.rejected_keys[item.key] = error.reason
                log.error("worker record skipped: %s", error.reason)
            self._records.pop(item.key, None)
        else:
            self.state.rejected_keys.pop(item.key, None)
            self._records[item.key] = record
        self._holdover.returned(item.key)

    def _remove(self, item: KeyValue, lost_history: bool) -> None:
        self.state.rejected_keys.pop(item.key, None)
        record = self._records.pop(item.key, None)
        if record is not None:
            self._holdover.vanished(item, record, lost_history)

    def _publish(self) -> None:
        records = {**self._holdover.held(), **self._records}
        self._pool.apply({record.worker_id: record for record in records.values()})

    def _contact(self) -> None:
        self.state.last_contact = self._clock()
        self._holdover.contact()

    def _lost(self, error: Exception) -> None:
        self._holdover.outage()
        known = len(self._records)
        if self.state.connected or not self.state.last_error:
            log.warning("etcd: %s; %d known workers stay", error, known)
        self.state.connected = False
        self.state.last_error = str(error)


class _Stalled(Exception):
    pass
