"""Targets: what a leg can be sent to. A worker with N data-parallel ranks is N targets, any other worker is one."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterable, Mapping

if TYPE_CHECKING:
    from infera_router.fleet.record import WorkerRecord

ROLES = ("prefill", "decode", "mixed")


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """One place to send a leg to. Compared by identity: a worker whose record changed has new targets."""

    key: str                    # worker_id, or worker_id#dpR; the `target` label of every metric
    worker: WorkerRecord
    rank: int | None            # the X-Data-Parallel-Rank to send; None where the worker has one rank

    @property
    def worker_id(self) -> str:
        return self.worker.worker_id


class Group:
    """The targets of one role for one model, in a fixed order, with the cursor of their rotation.

    `accounts` are their entries in the demand ledger (decode groups only) and `homes` their kv-aware state; both are parallel to `targets`.
    A subset (some targets excluded) shares the cursor of its parent through `positions`.
    """

    __slots__ = ("role", "targets", "accounts", "homes", "parent", "positions", "cursor", "size", "workers")

    def __init__(self, role: str, targets: tuple[Target, ...], accounts: list[Any], homes: list[Any], parent: Group | None = None,
                 positions: list[int] | None = None):
        self.role = role
        self.targets = targets
        self.accounts = accounts
        self.homes = homes
        self.parent = parent
        self.positions = positions
        self.cursor = 0
        self.size = len(targets)
        self.workers = frozenset(t.worker.worker_id for t in targets)

    def without(self, worker_ids: Iterable[str]) -> Group:
        """The same group with some workers left out; `self` when none of them is in it."""
        gone = self.workers.intersection(worker_ids)
        if not gone:
            return self
        keep = [i for i, t in enumerate(self.targets) if t.worker.worker_id not in gone]
        root = self.parent or self
        positions = keep if self.positions is None else [self.positions[i] for i in keep]
        return Group(self.role, tuple(self.targets[i] for i in keep), [self.accounts[i] for i in keep] if self.accounts else [],
                     [self.homes[i] for i in keep] if self.homes else [], root, positions)

    def follow(self, before: Group) -> None:
        """Go on with the rotation of an earlier state of this group: next is whoever was next there and is still here."""
        places = {target.key: index for index, target in enumerate(self.targets)}
        for step in range(before.size):
            place = places.get(before.targets[(before.cursor + step) % before.size].key)
            if place is not None:
                self.cursor = place
                return

    def first(self, indexes: Iterable[int] | None = None) -> int:
        """The index that the rotation would give next, among `indexes` (all when None)."""
        root = self.parent or self
        cursor, total = root.cursor, root.size
        if self.positions is None:
            if indexes is None:
                return cursor % total
            return min(indexes, key=lambda i: (i - cursor) % total)
        positions = self.positions
        return min(range(self.size) if indexes is None else indexes, key=lambda i: (positions[i] - cursor) % total)

    def advance(self, index: int) -> None:
        """Let the rotation go on behind the target that was really picked."""
        root = self.parent or self
        position = index if self.positions is None else self.positions[index]
        root.cursor = (position + 1) % root.size


def expand(record: WorkerRecord) -> list[Target]:
    """The targets of a worker: one for each rank when it has several and its record names no single one."""
    own = getattr(record, "dp_rank", None)
    ranks = record.ranks
    if own is not None:
        return [Target(f"{record.worker_id}#dp{own}", record, own)]
    if ranks <= 1:
        return [Target(record.worker_id, record, None)]
    return [Target(f"{record.worker_id}#dp{rank}", record, rank) for rank in range(ranks)]


def by_model(workers: Mapping[str, WorkerRecord]) -> dict[str, dict[str, list[WorkerRecord]]]:
    """Routable workers by model and role, each list in the order of worker ids, so that every process has the same order."""
    models: dict[str, dict[str, list[WorkerRecord]]] = {}
    for worker_id in sorted(workers):
        record = workers[worker_id]
        if record.routable and record.disagg_mode in ROLES:
            models.setdefault(record.model_name, {role: [] for role in ROLES})[record.disagg_mode].append(record)
    return models
