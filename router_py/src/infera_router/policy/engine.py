"""The policy that serves: it keeps the groups of targets, picks for each request, books what it picked and takes the bookings back."""
from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable

from .affinity import Affinity, Binding
from .api import MAX_TOKENS, Lease, NoTarget, Pick, PolicySettings, RequestFacts
from .breaker import NOBODY, Breaker
from .demand import exact_weight, least, usable
from .kv_aware import KvAware
from .ledger import Held, Ledger
from .round_robin import RoundRobin
from .targets import ROLES, Group, Target, by_model, expand

if TYPE_CHECKING:
    from infera_router.fleet.pool import Snapshot

EMPTY = Group("", (), [], [])


class Policy:
    """Built once; all calls are synchronous and on one thread.

    views: what kv-aware asks (kv.view.View); trusted: worker_id → whether its render is ours (kv.selfcheck). ledger: the demand ledger,
    one process's own unless a shared one is given. clock: seconds, the one that `now` is read from. Raises ValueError with every wrong setting.
    """

    def __init__(self, settings: PolicySettings, views: Any = None, ledger: Ledger | None = None, affinity: Affinity | None = None,
                 trusted: Callable[[str], bool] | None = None, clock: Callable[[], float] = time.monotonic):
        problems = settings.problems()
        if problems:
            raise ValueError("; ".join(problems))
        self.settings = settings
        self.mode = settings.decode_input_demand
        self.weight = exact_weight(settings.decode_request_weight)
        self.ledger = ledger if ledger is not None else Ledger()
        self.breaker = Breaker(settings.breaker_failure_threshold, settings.breaker_cooldown_s, settings.breaker_max_cooldown_s)
        self.ordinary: Any = KvAware(settings, views, trusted) if settings.router_policy == "kv-aware" else RoundRobin()
        self.affinity = affinity if affinity is not None else Affinity(settings, clock) if settings.session_affinity != "off" else None
        self._escapes = self.affinity is not None and settings.session_affinity_escape > 0
        self.decisions = {"agree": 0, "disagree": 0, "fallback": 0}     # demand against the ordinary policy
        self.lost = 0                                                   # leases that only __del__ released
        self.failed_releases = 0                                        # releases that raised inside; a bug if not 0
        self._leases: dict[int, tuple[float, str]] = {}
        self._next_lease = 0
        self._targets: dict[str, Target] = {}
        self._groups: dict[str, dict[str, Group]] = {}
        self._generations: dict[str, str] = {}

    # -- the fleet -----------------------------------------------------------------------------------------------

    def update(self, snapshot: Snapshot) -> None:
        """Take over a new view of the fleet. Targets of unchanged records stay the same objects, so bindings to them hold."""
        old_targets, old_groups = self._targets, self._groups
        known: dict[str, Target] = {}
        groups: dict[str, dict[str, Group]] = {}
        for model, roles in by_model(snapshot.workers).items():
            groups[model] = {}
            for role in ROLES:
                targets: list[Target] = []
                for record in roles[role]:
                    for target in expand(record):
                        old = old_targets.get(target.key)
                        targets.append(old if old is not None and old.worker == record and old.rank == target.rank else target)
                known.update((t.key, t) for t in targets)
                accounts = [self.ledger.open(t.key, generation_of(t.worker)) for t in targets] if role == "decode" and self.mode != "off" else []
                group = Group(role, tuple(targets), self.ledger.gather(accounts), [self.ordinary.open(t.key, role) for t in targets])
                before = old_groups.get(model, {}).get(role)
                if before is not None:
                    group.follow(before)
                groups[model][role] = group
        # A worker that drains is no candidate and still holds its streams: its account stays live until its record goes.
        present = {t.key for record in snapshot.workers.values() for t in expand(record)}
        for key in self.ledger.live_keys():
            if key not in present:
                self.ledger.close(key)
        self.ordinary.retain(present)
        for worker_id, generation in self._generations.items():
            record = snapshot.workers.get(worker_id)
            if record is None or generation_of(record) != generation:
                self.breaker.forget(worker_id)
        self._generations = {worker_id: generation_of(record) for worker_id, record in snapshot.workers.items()}
        self._targets, self._groups = known, groups

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(sorted(self._groups))

    def counts(self, model: str | None = None) -> dict[str, int]:
        """Routable workers by role, of one model or of all."""
        chosen = self._groups.values() if model is None else [self._groups.get(model, {})]
        return {role: sum(len(g[role].workers) for g in chosen if role in g) for role in ROLES}

    @property
    def servable(self) -> bool:
        """Whether any model can be served: a mixed worker, or a prefill and a decode."""
        return any(g["mixed"].size or (g["prefill"].size and g["decode"].size) for g in self._groups.values())

    # -- picks ---------------------------------------------------------------------------------------------------

    def pick(self, facts: RequestFacts, exclude: frozenset[str] = NOBODY, now: float = 0.0) -> Pick:
        """Pick both legs, or a mixed target, and book them. Raises NoTarget."""
        groups = self._model(facts.model)
        prefills, decodes = groups["prefill"], groups["decode"]
        if exclude:
            prefills, decodes = prefills.without(exclude), decodes.without(exclude)
        if prefills.size and decodes.size:
            blocked = self.breaker.blocked(now)
            if blocked:
                prefills = prefills.without(blocked) if prefills.workers - blocked else prefills
                decodes = decodes.without(blocked) if decodes.workers - blocked else decodes
            lease = self._lease(now)
            pick = Pick(None, None, None, lease)
            try:
                pick.prefill = self._prefill(prefills, facts, pick, now)
                pick.decode = self._decode(decodes, facts, pick, now)
            except BaseException:
                lease.release()
                raise
            if blocked or self.breaker.active:
                self._claim(lease, pick.prefill.worker_id, now)
                self._claim(lease, pick.decode.worker_id, now)
            self._leases[lease.id] = (now, pick.decode.key)
            return pick
        return self._alone(groups, ("mixed",), facts, exclude, now)

    def pick_one(self, facts: RequestFacts, exclude: frozenset[str] = NOBODY, now: float = 0.0) -> Pick:
        """One worker for a call that generates nothing (count_tokens): a mixed or a prefill one. Nothing is booked on the ledger."""
        return self._alone(self._model(facts.model), ("mixed", "prefill"), facts, exclude, now)

    def _model(self, model: str | None) -> dict[str, Group]:
        groups = self._groups
        if model:
            found = groups.get(model)
            if found is None:
                raise NoTarget("no_worker", models=self.models)
            return found
        if not groups:
            raise NoTarget("no_worker")
        if len(groups) > 1:
            raise NoTarget("model_required", models=self.models)
        return next(iter(groups.values()))

    def _alone(self, groups: dict[str, Group], roles: tuple[str, ...], facts: RequestFacts, exclude: frozenset[str], now: float) -> Pick:
        for role in roles:
            group = groups[role].without(exclude) if exclude else groups[role]
            if not group.size:
                continue
            blocked = self.breaker.blocked(now)
            if blocked and group.workers - blocked:
                group = group.without(blocked)
            lease = self._lease(now)
            pick = Pick(None, None, None, lease)
            try:
                target = self._prefill(group, facts, pick, now)
            except BaseException:
                lease.release()
                raise
            if role == "mixed":
                pick.mixed = target
            else:
                pick.prefill = target
            if blocked or self.breaker.active:
                self._claim(lease, target.worker_id, now)
            self._leases[lease.id] = (now, target.key)
            return pick
        counts = {role: len(groups[role].workers) for role in ROLES}
        if roles == ("mixed",) and not counts["mixed"] and bool(counts["prefill"]) != bool(counts["decode"]):
            raise NoTarget("half_pair", "decode" if counts["prefill"] else "prefill", counts)
        raise NoTarget("excluded" if exclude and any(counts.values()) else "no_worker", counts=counts, models=self.models)

    def _prefill(self, group: Group, facts: RequestFacts, pick: Pick, now: float) -> Target:
        """The first leg (prefill or mixed): where its session is bound, else by the ordinary policy."""
        affinity = self.affinity if facts.session is not None else None
        if affinity is None:
            return self._ordinary(group, facts, pick, -1)
        index, binding = affinity.find(group, facts, now)
        if index >= 0 or not affinity.shared:
            return self._bound(group, facts, pick, index, binding, now)
        affinity.lock()
        try:
            index, binding = affinity.find(group, facts, now)
            return self._bound(group, facts, pick, index, binding, now)
        finally:
            affinity.unlock()

    def _bound(self, group: Group, facts: RequestFacts, pick: Pick, index: int, binding: Binding | None, now: float) -> Target:
        pick.session_hit = index >= 0
        target = self._ordinary(group, facts, pick, index)
        self._bind(pick.lease, group, target, facts, binding, now)
        return target

    def _ordinary(self, group: Group, facts: RequestFacts, pick: Pick, index: int) -> Target:
        """The target at index, or the ordinary policy's choice when it is -1."""
        ordinary = self.ordinary
        scores = None
        if index < 0:
            scores = ordinary.scores(group, facts) if group.size > 1 else None
            index = choose(group, scores)
        flight = ordinary.picked(group, index, facts, scores)
        group.advance(index)
        target, lease = group.targets[index], pick.lease
        if flight is not None:
            lease.prefill_flight = flight
            pick.blocks, pick.prefill_hit = flight.blocks, flight.hit
        if self._escapes:
            self.affinity.enter(target.key)
            lease.prefill_leg = target.key
        return target

    def _decode(self, group: Group, facts: RequestFacts, pick: Pick, now: float) -> Target:
        """The second leg: demand first, then the ordinary policy; a bound session only in affinity mode both."""
        affinity = self.affinity if facts.session is not None and self.settings.session_affinity == "both" else None
        if affinity is None:
            return self._demand(group, facts, pick, -1)
        index, binding = affinity.find(group, facts, now)
        locked = index < 0 and affinity.shared
        if locked:
            affinity.lock()
        try:
            if locked:
                index, binding = affinity.find(group, facts, now)
            target = self._demand(group, facts, pick, index)
            self._bind(pick.lease, group, target, facts, binding, now)
        finally:
            if locked:
                affinity.unlock()
        return target

    def _demand(self, group: Group, facts: RequestFacts, pick: Pick, bound: int) -> Target:
        """Select a decode target, or take the bound one, and book it: one step, under the ledger's lock where processes share it."""
        ordinary, mode, lease = self.ordinary, self.mode, pick.lease
        scores = ordinary.scores(group, facts) if group.size > 1 else None
        usual = choose(group, scores)
        index = usual if bound < 0 else bound
        if mode != "off":
            size = facts.tokens
            if size is not None and not (0 <= size <= MAX_TOKENS):
                size = None
            ledger, accounts = self.ledger, group.accounts
            if ledger.shared:
                ledger.lock()
            try:
                tokens, requests, unknown = ledger.read(accounts, not self.weight)
                if usable(size, unknown, self.weight):
                    wanted = least(tokens, requests, self.weight, scores, group.first, usual if scores is None else -1) if group.size > 1 else 0
                    self.decisions["agree" if wanted == usual else "disagree"] += 1
                    if mode == "shadow":
                        pick.suggested = group.targets[wanted]
                    elif bound < 0:
                        index = wanted
                else:
                    self.decisions["fallback"] += 1
                account = accounts[index]
                ledger.book(account, size)
                lease.account, lease.tokens = account, size
            finally:
                if ledger.shared:
                    ledger.unlock()
        flight = ordinary.picked(group, index, facts, scores)
        group.advance(index)
        target = group.targets[index]
        if flight is not None:
            lease.decode_flight = flight
            pick.decode_hit = flight.hit
        if self._escapes:
            self.affinity.enter(target.key)
            lease.decode_leg = target.key
        return target

    def _bind(self, lease: Lease, group: Group, target: Target, facts: RequestFacts, binding: Binding | None, now: float) -> None:
        held = self.affinity.bind(group, target, facts, binding, now)
        if held is not None:
            if lease.bindings is None:
                lease.bindings = [held]
            else:
                lease.bindings.append(held)

    def _claim(self, lease: Lease, worker_id: str, now: float) -> None:
        if self.breaker.claim(worker_id, now):
            if lease.probes is None:
                lease.probes = [worker_id]
            else:
                lease.probes.append(worker_id)

    # -- leases --------------------------------------------------------------------------------------------------

    def _lease(self, now: float) -> Lease:
        self._next_lease = number = self._next_lease + 1
        lease = Lease(self, number)
        self._leases[number] = (now, "")
        return lease

    def end(self, lease: Lease, lost: bool = False) -> None:
        """Take back all that a lease booked. Called once, by the lease; never raises."""
        if lost:
            self.lost += 1
        self._leases.pop(lease.id, None)
        if lease.account is not None:
            self._undo(self.ledger.release, lease.account, lease.tokens)
        for flight in (lease.prefill_flight, lease.decode_flight):
            if flight is not None:
                self._undo(flight.end)
        for leg in (lease.prefill_leg, lease.decode_leg):
            if leg is not None:
                self._undo(self.affinity.leave, leg)
        for binding in lease.bindings or ():
            self._undo(self.affinity.unbind, binding)
        for worker_id in lease.probes or ():
            self._undo(self.breaker.unclaim, worker_id)

    def _undo(self, what: Callable[..., None], *args: Any) -> None:
        try:
            what(*args)
        except Exception:
            self.failed_releases += 1

    @property
    def open_leases(self) -> int:
        return len(self._leases)

    def oldest_lease(self, now: float) -> tuple[float, str]:
        """Age in seconds of the oldest open lease and the key of its target; (0, "") without one."""
        for started, key in self._leases.values():
            return now - started, key
        return 0.0, ""

    # -- faults --------------------------------------------------------------------------------------------------

    def record_fault(self, worker_id: str, now: float, pick: Pick | None = None) -> None:
        """A worker failed a request before its first byte: its breaker counts, and the session that led here is free to go elsewhere."""
        self.breaker.record_fault(worker_id, now)
        if self.affinity is not None and pick is not None and pick.lease.bindings is not None:
            for binding in pick.lease.bindings:
                if binding.worker_id == worker_id:
                    self.affinity.invalidate(binding)

    def record_success(self, worker_id: str, now: float) -> None:
        self.breaker.record_success(worker_id, now)

    # -- views for metrics and admin -----------------------------------------------------------------------------

    def demand(self) -> list[Held]:
        """What each decode target holds, with zeros for idle ones; [] with demand off."""
        return self.ledger.held() if self.mode != "off" else []


def choose(group: Group, scores: list | None) -> int:
    """The index with the lowest score; equal ones rotate."""
    if group.size == 1:
        return 0
    if scores is None:
        return group.first()
    best = min(scores)
    if scores.count(best) == 1:
        return scores.index(best)
    return group.first([i for i, s in enumerate(scores) if s == best])


def generation_of(record: Any) -> str:
    """What tells two starts of an engine apart; "" where the record says nothing."""
    generation = getattr(record, "generation", None)
    if generation:
        return generation
    started = getattr(record, "started_at", None)
    return f"@{started}" if started else ""
