"""The live pool: an immutable snapshot of the workers, replaced as a whole, and the ones who want to hear of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from infera_router.fleet.record import WorkerRecord

log = logging.getLogger(__name__)

_EMPTY: Mapping[str, WorkerRecord] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All known workers by worker_id, routable or not; *version* grows by one with every change."""

    version: int = 0
    workers: Mapping[str, WorkerRecord] = field(default_factory=lambda: _EMPTY)


Subscriber = Callable[[Snapshot, Snapshot], None]


class Pool:
    """Holds the current snapshot. Not thread-safe: it belongs to one event loop."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self._subscribers: list[Subscriber] = []

    def apply(self, records: Mapping[str, WorkerRecord]) -> bool:
        """Replace the whole view; True when that changed something. Subscribers are called with (old, new) before it returns."""
        old = self.snapshot
        if dict(old.workers) == dict(records):
            return False
        new = Snapshot(old.version + 1, MappingProxyType(dict(records)))
        self.snapshot = new
        _tell(old.workers, new.workers)
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(old, new)
            except Exception:  # one broken listener must not leave the others with the old view
                log.exception("a subscriber of the worker pool failed at version %d", new.version)
        return True

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call *subscriber* at every change; returns the function that ends it."""
        self._subscribers.append(subscriber)

        def unsubscribe() -> None:
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)

        return unsubscribe


def _tell(old: Mapping[str, WorkerRecord], new: Mapping[str, WorkerRecord]) -> None:
    """What an operator looks for in the log when requests were refused: who came, went or changed its status, and which role has nobody left."""
    for worker_id in old.keys() - new.keys():
        log.info("worker %s (%s) has left", worker_id, old[worker_id].disagg_mode)
    for worker_id, record in new.items():
        before = old.get(worker_id)
        if before is None:
            log.info("worker %s (%s) is known: %s", worker_id, record.disagg_mode, record.status)
        elif before.generation != record.generation:
            log.info("worker %s (%s) was started anew: %s", worker_id, record.disagg_mode, record.status)
        elif before.status != record.status:
            log.info("worker %s (%s): %s, before %s", worker_id, record.disagg_mode, record.status, before.status)
    for role in sorted(_active(old) - _active(new)):
        log.warning("no active worker of role %s is left", role)


def _active(workers: Mapping[str, WorkerRecord]) -> set[str]:
    return {record.disagg_mode for record in workers.values() if record.routable}
