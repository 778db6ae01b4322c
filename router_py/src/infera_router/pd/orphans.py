"""Legs that outlive their request: how engines are told to stop, and how long they may go on.

A decode is always stopped: its connection is closed and its request aborted by id. A prefill is stopped the same way unless its pipeline has
several stages: aborts in bursts have left such stages disagreeing about their queue (sglang issues 34572, 30476, 26912), and a prefill whose
decode has gone waits for it. There both legs go on until the prefill is done, and only then is the decode stopped.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from infera_router.http.upstream import EnginePool, Leg
from infera_router.http.wire import Head

if TYPE_CHECKING:
    from infera_router.pd.core import Core
    from infera_router.pd.exchange import Exchange

log = logging.getLogger(__name__)

ABORT_TIMEOUT_S = 5.0
# SGLang 0.5.22 sends one abort per request to its schedulers and no second. One that comes while the prompt is still tokenized is lost, and
# under DP attention it overtakes a request that rank 0 has not got, so a young request is named only when it is this old.
RIPE_S = 1.0


def leave(core: Core, exchange: Exchange, prefill: Leg | None, decode: Leg | None) -> None:
    """Part a request from its legs; `decode` is None when it has ended and only the prefill's answer is still awaited."""
    rid = exchange.rid if exchange.rid_sent else ""
    waiting = prefill is not None and not prefill.ended
    if waiting and prefill.conn is None and decode is not None:
        # Not sent yet, so nothing needs to end by itself: a prefill without its decode would wait for it until a timeout.
        prefill.cancel()
        waiting = False
    if decode is not None and waiting and not decode.ended and not exchange.started and not core.may_abort_prefill(prefill.worker_id):
        Orphans(core, prefill, decode, rid)  # the decode is sent even now, if it was not: the prefill waits for it
        return
    if decode is not None:
        stop(core, decode, rid)
    if waiting:
        # Without its decode a prefill cannot end: only `never` leaves it to its timeout then.
        widowed = decode is not None and not exchange.started and core.settings.prefill_abort != "never"
        if decode is None or not widowed and not core.may_abort_prefill(prefill.worker_id):
            Orphans(core, prefill, None, rid)
        else:
            stop(core, prefill, rid)


def stop(core: Core, leg: Leg, rid: str) -> None:
    """Close the leg and abort its request by id, where the engine may have it."""
    if leg.ended:
        return
    sent = leg.conn is not None
    leg.cancel()
    if rid and sent:
        unripe = leg.sent_at + RIPE_S - monotonic()
        if unripe > 0:
            core.later(unripe, abort_unless_in_use, core, leg.role, leg.pool, rid)
        else:
            abort(core, leg.role, leg.pool, rid)


def abort_unless_in_use(core: Core, role: str, pool: EnginePool, rid: str) -> None:
    """A caller's own id may be with the engine again: the request was picked anew, or sent again."""
    if not any(exchange.rid == rid for exchange in core.live):
        abort(core, role, pool, rid)


def abort(core: Core, role: str, pool: EnginePool, rid: str) -> None:
    body = msgspec.json.encode({"rid": rid})
    head = b"POST /abort_request HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (
        pool.authority, len(body))
    _Abort(core, role, pool, [head + body])


class _Abort:
    """One abort call; its answer is only counted."""

    __slots__ = ("core", "leg", "timer")

    def __init__(self, core: Core, role: str, pool: EnginePool, parts: list) -> None:
        self.core = core
        self.leg = Leg(self, role, "", pool, parts)
        core.orphans.add(self)
        self.timer = core.loop.call_later(ABORT_TIMEOUT_S, self.close, "timeout")
        self.leg.start()

    def leg_head(self, leg: Leg, head: Head) -> None:
        pass

    def leg_data(self, leg: Leg, data: bytes) -> None:
        pass

    def leg_done(self, leg: Leg) -> None:
        self.close("ok" if leg.head.status < 300 else "refused")

    def leg_failed(self, leg: Leg, kind: str, detail: str) -> None:
        self.close(kind)

    def close(self, result: str = "stopped") -> None:
        if self in self.core.orphans:
            self.core.orphans.discard(self)
            self.timer.cancel()
            self.core.store.add("infera_aborts_total", (self.leg.role, result))
            self.leg.cancel()

    def shutdown(self) -> None:
        """The router ends now; the call has been sent, its answer does not matter."""
        self.close()

    crash = shutdown


class Orphans:
    """A prefill that is left to end by itself, with the decode that it delivers to where that still runs."""

    __slots__ = ("core", "prefill", "decode", "rid", "timer")

    def __init__(self, core: Core, prefill: Leg, decode: Leg | None, rid: str) -> None:
        self.core, self.prefill, self.decode, self.rid = core, prefill, decode, rid
        prefill.hand_to(self)
        if decode is not None:
            decode.hand_to(self)
            decode.resume()
        core.orphans.add(self)
        core.orphaned += 1
        timeout = core.settings.prefill_drain_timeout
        self.timer = core.loop.call_later(timeout, self._overdue) if timeout else None

    def leg_head(self, leg: Leg, head: Head) -> None:
        self.core.dispatch_histogram(leg.role, leg.worker_id).observe(monotonic() - leg.sent_at)

    def leg_data(self, leg: Leg, data: bytes) -> None:
        if leg is self.decode:
            self._stop_decode()  # its first token: the prefill has delivered

    def leg_done(self, leg: Leg) -> None:
        self._leg_over(leg)

    def leg_failed(self, leg: Leg, kind: str, detail: str) -> None:
        self._leg_over(leg)

    def _leg_over(self, leg: Leg) -> None:
        if leg is self.prefill:
            self._stop_decode()
            self.close()
        else:
            self.decode = None

    def _stop_decode(self) -> None:
        decode, self.decode = self.decode, None
        if decode is not None:
            stop(self.core, decode, self.rid)

    def _overdue(self) -> None:
        log.warning("the prefill on %s has not ended %g s after its request did; its connection is closed", self.prefill.worker_id,
                    self.core.settings.prefill_drain_timeout)
        self.shutdown()

    def shutdown(self) -> None:
        """Stop both legs now."""
        self._stop_decode()
        stop(self.core, self.prefill, self.rid)
        self.close()

    crash = shutdown

    def close(self) -> None:
        if self in self.core.orphans:
            self.core.orphans.discard(self)
            self.core.orphaned -= 1
            if self.timer is not None:
                self.timer.cancel()
