"""The order of one publisher's batches: gaps, replays, restarts. Pure: the caller gives the clock and does the I/O.

Rules (behaviour.md 1.10): a new stream replays from 0 and buffers live batches meanwhile; a gap replays what is missing and applies it
before the live batch; a sequence that went back is another publisher; what cannot be completed empties the view. The publisher's replay
socket drops what its peer does not take fast enough, so a replay with holes goes on from the first hole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum

REPLAY_TIMEOUT_S = 2.0
# Silence after which the last batch is asked for again: finds lost last batches, and a publisher that restarted without a word.
PROBE_AFTER_S = 5.0
COOLDOWN_S = 5.0
MAX_COOLDOWN_S = 60.0
BUFFER_BYTES = 32 * 1024 * 1024


class Mode(Enum):
    LIVE = "live"
    SYNC = "sync"           # replaying from 0 into an empty view
    REPAIR = "repair"       # replaying from the last applied batch, which must come back unchanged
    PROBE = "probe"         # the same while the view stays in use


class Stream:
    """`apply(payload)`, `clear()` and `show(bool)` act on the view; `request(sequence)` sends a replay request to the publisher."""

    def __init__(self, apply: Callable[[bytes], None], clear: Callable[[], None], show: Callable[[bool], None],
                 request: Callable[[int], None] | None, counts: Counter):
        self._apply, self._clear, self._show, self._request, self._counts = apply, clear, show, request, counts
        self.mode = Mode.LIVE
        self.last = -1                      # sequence of the newest batch applied
        self._last_payload = b""
        self._expected: int | None = None   # in a replay: the sequence that comes next
        self._confirmed = False             # in a repair: the last applied batch came back unchanged
        self._holes = False
        self._doubted = False               # an empty history that live batches contradict was asked for once more
        self._buffer: list[tuple[int, bytes]] = []
        self._buffered = 0
        self._deadline = 0.0
        self._asked = 0
        self._answered = False              # the request in hand brought a batch
        self._progress = False
        self._retry_at: float | None = None
        self._cooldown = COOLDOWN_S
        self._heard = 0.0

    def start(self, now: float) -> None:
        """Begin with an empty view."""
        self._restart(now)

    def live(self, sequence: int, payload: bytes, now: float) -> None:
        """A batch from the publisher's live socket."""
        self._heard = now
        if self.mode is not Mode.LIVE:
            self._hold(sequence, payload)
        elif sequence == self.last + 1 or self.last < 0 and not self._can_replay:
            self._take(sequence, payload)
        elif sequence == self.last and payload == self._last_payload:
            return
        elif sequence <= self.last:
            self._counts["publisher_restarts"] += 1
            self._restart(now)
            self._follow(sequence, payload)
        else:
            self._counts["gaps"] += 1
            self._repair(now, Mode.REPAIR)
            self._follow(sequence, payload)

    def replayed(self, sequence: int, payload: bytes, now: float) -> None:
        """A batch from a replay."""
        if self.mode is Mode.LIVE:
            return
        self._deadline = now + REPLAY_TIMEOUT_S
        if self.mode is not Mode.SYNC and not self._confirmed:
            if sequence == self.last and payload == self._last_payload:
                self._confirmed = self._answered = True
                self._expected = self.last + 1
                return
            self._lost(now)
            return
        first, self._answered = not self._answered, True
        if first and sequence > self._asked:
            # What was asked for has left the publisher's history: the view begins with what is left of it.
            self._counts["history_lost"] += 1
            self._clear()
            self._expected = sequence
        elif self._expected is None:
            self._expected = sequence
        if sequence == self._expected:
            self._take(sequence, payload)
            self._expected += 1
            self._progress = True
        elif sequence > self._expected:
            self._holes = True

    def replay_ended(self, now: float) -> None:
        """The publisher's end mark."""
        if self.mode is Mode.LIVE:
            return
        if self.mode is not Mode.SYNC and not self._confirmed:
            self._lost(now)
        elif self._holes:
            self._ask(self._expected or 0, now)
        else:
            self._settle(now)

    def disconnected(self, now: float) -> None:
        """The live connection broke, and all that came over it was handed to `live`. Nothing is known until the publisher proves to be the same."""
        self._counts["disconnects"] += 1
        self._show(False)
        self._drop_buffer()
        self._doubted = False
        if self._can_replay:
            # A replay that was under way may go on at another publisher, so it begins anew.
            self._repair(now, Mode.REPAIR)
        else:
            self._clear()
            self.last = -1

    def connected(self, now: float) -> None:
        """The live connection is there (again)."""
        self._cooldown = COOLDOWN_S
        if self._request is None:
            self._show(True)
        elif self._retry_at is not None:
            self._retry_at = None
            self._restart(now)

    def tick(self, now: float) -> None:
        """Call some times a second."""
        if self.mode is not Mode.LIVE:
            if now < self._deadline:
                return
            if self._progress:
                self._ask(self._expected if self._expected is not None else self._asked, now)
            elif self.mode is Mode.PROBE:
                # The view stays in use: the publisher's thread may just be busy, and its death shows otherwise.
                self._counts["replay_failures"] += 1
                self._settle(now)
            else:
                self._failed(now)
        elif self._retry_at is not None:
            if now >= self._retry_at:
                self._retry_at = None
                self._restart(now)
        elif self._request is not None and now - self._heard >= PROBE_AFTER_S:
            self._heard = now
            self._repair(now, Mode.PROBE)

    # --- inside

    @property
    def _can_replay(self) -> bool:
        return self._request is not None and self._retry_at is None

    def _follow(self, sequence: int, payload: bytes) -> None:
        """The batch that showed the break: the first of a new view, or held until the replay is done."""
        if self.mode is Mode.LIVE:
            self._take(sequence, payload)
        else:
            self._hold(sequence, payload)

    def _take(self, sequence: int, payload: bytes) -> None:
        self._apply(payload)
        self._doubted = False
        self.last = sequence
        self._last_payload = payload

    def _hold(self, sequence: int, payload: bytes) -> None:
        self._buffer.append((sequence, payload))
        self._buffered += len(payload)
        if self._buffered > BUFFER_BYTES:
            # The replay will bring what is thrown away here, and more than it could before.
            self._counts["buffer_overflows"] += 1
            self._drop_buffer()

    def _drop_buffer(self) -> None:
        self._buffer, self._buffered = [], 0

    def _restart(self, now: float) -> None:
        """Empty the view and rebuild it from the publisher's history, as far as that can be had."""
        self._show(False)
        self._clear()
        self._drop_buffer()
        self.last, self._last_payload = -1, b""
        if self._can_replay:
            self.mode, self._expected = Mode.SYNC, None
            self._ask(0, now)
        else:
            # Without a replay the view begins with what comes next.
            self.mode = Mode.LIVE
            self._heard = now
            self._show(True)

    def _repair(self, now: float, mode: Mode) -> None:
        if not self._can_replay or self.last < 0:
            self._restart(now)
            return
        if mode is Mode.REPAIR:
            self._show(False)
        self.mode, self._confirmed, self._expected = mode, False, None
        self._ask(self.last, now)

    def _ask(self, sequence: int, now: float) -> None:
        self._holes = self._progress = self._answered = False
        self._asked = sequence
        self._deadline = now + REPLAY_TIMEOUT_S
        self._counts["replays"] += 1
        self._request(sequence)

    def _lost(self, now: float) -> None:
        """The last batch did not come back: another publisher, or it left the replay buffer."""
        self._counts["continuity_lost"] += 1
        held, self._buffer, self._buffered = self._buffer, [], 0
        self._restart(now)
        for sequence, payload in held:
            self._hold(sequence, payload)

    def _settle(self, now: float) -> None:
        """The replay is complete: live batches follow where they continue it."""
        held = self._buffer
        self._drop_buffer()
        self.mode = Mode.LIVE
        self._cooldown = COOLDOWN_S
        self._heard = now
        for index, (sequence, payload) in enumerate(held):
            # A history that was empty a moment ago, yet live begins later: the batches between came before our subscription. Asked once more.
            if sequence == self.last + 1 or self.last < 0 and self._doubted:
                self._take(sequence, payload)
            elif sequence > self.last + 1:
                self._doubted = self.last < 0
                self._repair(now, Mode.REPAIR)
                for later in held[index:]:
                    self._hold(*later)
                return
        self._show(True)

    def _failed(self, now: float) -> None:
        """No answer to a replay: the view is emptied, follows what comes live, and is rebuilt after a pause that doubles."""
        self._counts["replay_failures"] += 1
        held = self._buffer
        self._clear()
        self._drop_buffer()
        self.mode = Mode.LIVE
        self._doubted = False
        self.last, self._last_payload = -1, b""
        for sequence, payload in held:
            if self.last < 0 or sequence == self.last + 1:
                self._take(sequence, payload)
        self._retry_at = now + self._cooldown
        self._cooldown = min(2 * self._cooldown, MAX_COOLDOWN_S)
        self._heard = now
        self._show(True)
