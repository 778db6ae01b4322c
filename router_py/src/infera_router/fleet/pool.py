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
