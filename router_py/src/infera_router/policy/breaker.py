"""Circuit breaker per worker, shared by PD and mixed requests.

closed → open after `threshold` consecutive faults before the first byte → half-open when the cooldown is over, with one probe at a time → a
success closes it, a fault doubles the cooldown up to its maximum. The probe's place is taken by a pick, never by looking.
A worker can also be held out from outside (a prefill that makes no progress) until it is let in again.
"""
from __future__ import annotations

CLOSED, OPEN, HALF_OPEN = 0, 1, 2
PROBE_S = 60.0          # a probe that has not ended by then gives its place back
NOBODY: frozenset[str] = frozenset()


class _State:
    __slots__ = ("faults", "state", "until", "cooldown", "probe_at", "forced")

    def __init__(self, cooldown: float):
        self.faults = 0
        self.state = CLOSED
        self.until = 0.0
        self.cooldown = cooldown
        self.probe_at: float | None = None
        self.forced = False         # picked while open, because all others were open too


class Breaker:
    def __init__(self, threshold: int = 3, cooldown_s: float = 5.0, max_cooldown_s: float = 60.0):
        self.threshold = threshold
        self.cooldown_s = cooldown_s
        self.max_cooldown_s = max_cooldown_s
        self._states: dict[str, _State] = {}
        self._tripped: set[str] = set()             # workers that are not closed
        self._held: dict[str, str] = {}             # worker → why it is held out
        self.trips: dict[str, int] = {}

    def blocked(self, now: float) -> frozenset[str]:
        """Workers that must not be picked now. Has no effect."""
        if not self._tripped and not self._held:
            return NOBODY
        out = set(self._held)
        for worker_id in self._tripped:
            s = self._states[worker_id]
            if s.state == OPEN and now < s.until or s.state == HALF_OPEN and s.probe_at is not None and now - s.probe_at < PROBE_S:
                out.add(worker_id)
        return frozenset(out)

    def claim(self, worker_id: str, now: float) -> bool:
        """The worker was picked. True when this request is the probe of a half-open breaker."""
        if worker_id not in self._tripped:
            return False
        s = self._states[worker_id]
        if s.state == OPEN and now < s.until:
            s.forced = True
            return False
        s.state = HALF_OPEN
        s.probe_at = now
        return True

    def unclaim(self, worker_id: str) -> None:
        """The probe ended without a verdict (4xx, client gone): the next pick may try."""
        s = self._states.get(worker_id)
        if s is not None and s.state == HALF_OPEN:
            s.probe_at = None

    def record_fault(self, worker_id: str, now: float) -> None:
        """A transport error or a status ≥ 500 before the first byte. 4xx and 429 are neither a fault nor a success."""
        if not self.threshold:
            return
        s = self._states.get(worker_id)
        if s is None:
            s = self._states[worker_id] = _State(self.cooldown_s)
        if s.state == OPEN:
            return                                  # from a request sent before it opened
        s.faults += 1
        if s.state == HALF_OPEN:
            s.cooldown = min(s.cooldown * 2, self.max_cooldown_s)
        elif s.faults < self.threshold:
            return
        s.state = OPEN
        s.forced = False
        s.until = now + s.cooldown
        s.probe_at = None
        self._tripped.add(worker_id)
        self.trips[worker_id] = self.trips.get(worker_id, 0) + 1

    def record_success(self, worker_id: str, now: float) -> None:
        """The first body byte arrived. It closes a half-open breaker. On an open one it is older than the trip and says nothing, unless the
        worker was picked in spite of it."""
        s = self._states.get(worker_id)
        if s is not None and (s.state != OPEN or s.forced):
            del self._states[worker_id]
            self._tripped.discard(worker_id)

    def hold(self, worker_id: str, reason: str) -> None:
        """Keep the worker out of rotation until `let_in`."""
        self._held[worker_id] = reason

    def let_in(self, worker_id: str) -> None:
        self._held.pop(worker_id, None)

    def held(self) -> dict[str, str]:
        return dict(self._held)

    def forget(self, worker_id: str) -> None:
        """The worker left, or is a new engine: its history goes."""
        self._states.pop(worker_id, None)
        self._tripped.discard(worker_id)
        self._held.pop(worker_id, None)
        self.trips.pop(worker_id, None)

    def state(self, worker_id: str) -> int:
        """0 closed, 1 open, 2 half-open."""
        s = self._states.get(worker_id)
        return CLOSED if s is None else s.state

    @property
    def active(self) -> bool:
        """Whether any breaker is not closed."""
        return bool(self._tripped)
