"""One request's life: pick, both legs, their common end.

Before the first client byte a worker's fault cancels the other leg, ends the lease and picks again without that worker; afterwards nothing is
ever repeated. Everything here is synchronous and driven by the connections, so no await can stand between an end and its release.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import getrandbits
from time import monotonic
from typing import TYPE_CHECKING, Any

from infera_router.http import errors, wire
from infera_router.http.client import Request
from infera_router.http.upstream import Leg
from infera_router.http.wire import CHUNKED, UNTIL_EOF, Dechunker, Head
from infera_router.observe import logs
from infera_router.pd import envelope
from infera_router.pd.answer import DECHUNK, ENCHUNK, RAW, Failure, content_type, done_at_end, error_event, error_first, head_bytes, prefill_to_blame, rest_of
from infera_router.pd.orphans import leave
from infera_router.pd.stream import UNCOUNTED, Stream
from infera_router.policy.api import NoTarget, Pick

if TYPE_CHECKING:
    from infera_router.observe.metrics import Histogram
    from infera_router.pd.core import Core
    from infera_router.pd.routes import Route

log = logging.getLogger(__name__)

MAX_ERROR_BODY = 1 << 20


class Exchange:
    """A request from its last byte to the end of its answer. Owner of its legs, and what its client connection talks to."""

    __slots__ = ("core", "request", "route", "envelope", "body", "facts", "pick", "prefill", "decode", "rid", "rid_sent", "excluded",
                 "retries", "failure", "started", "over", "mode", "head", "parts", "size", "relay", "dechunker", "stream",
                 "dispatched", "task", "paused", "first", "prepared", "__weakref__")

    def __init__(self, core: Core, request: Request, route: Route) -> None:
        self.core, self.request, self.route = core, request, route
        self.envelope: envelope.Envelope | None = None
        self.body = b""
        self.facts = None
        self.prepared = None
        self.pick: Pick | None = None
        self.prefill: Leg | None = None
        self.decode: Leg | None = None
        self.rid = ""
        self.rid_sent = False
        self.excluded: frozenset[str] = frozenset()
        self.retries = 0
        self.failure: Failure | None = None
        self.started = self.over = self.paused = False
        self.mode = "none"
        self.head: Head | None = None
        self.parts: list[bytes] | None = None  # an error answer that is being collected
        self.size = 0
        self.relay = RAW
        self.dechunker: Dechunker | None = None
        self.dispatched = request.at
        self.first = 0.0
        self.stream: Stream | None = None  # once bytes of the answer's body went out
        self.task = None
        core.live[self] = None

    # ---- to the workers

    def begin(self) -> None:
        core, request = self.core, self.request
        raw = request.body
        known = core.known(self.route.prepare, raw)
        try:
            self.envelope, self.body = envelope.read(raw, known.stem if known is not None else None)
            session = core.session(request, self.envelope) if core.session is not None else None
        except envelope.BadBody as bad:
            self.fail(Failure("bad_request", bad.args[0]))
            return
        request.body = b""
        if core.preparer is not None and self.route.prepare is not None:
            if self.body is not raw:
                known = None
            self.task = core.loop.create_task(self._prepare(session, known))
        else:
            self.facts = core.plain_facts(self.envelope, session)
            self._attempt()

    async def _prepare(self, session: str | None, known: Any) -> None:
        try:
            self.facts, self.prepared = await self.core.prepare(self.route.prepare, self.envelope, self.body, session, known)
        except Exception:  # sizes and hashes are advice: a fault in them never fails a request
            log.exception("preparing a request failed; it is routed on load", extra=logs.extra(self.request.id))
            self.facts = self.core.plain_facts(self.envelope, session)
        self.task = None
        if not self.over:
            self._attempt()

    def _attempt(self) -> None:
        core = self.core
        now = monotonic()
        excluded = self.excluded | core.held if core.held else self.excluded
        try:
            if self.route.count_only:
                pick = core.policy.pick_one(self.facts, excluded, now)
            else:
                pick = core.policy.pick(self.facts, excluded, now)
        except NoTarget as none:
            self._nowhere(none)
            return
        self.pick = pick
        self.dispatched = now
        if pick.prefill is not None and pick.decode is not None:
            mode = "pd"
            if not self._send_pd(pick):
                return
        else:
            mode = "mixed"
            self._send_one(pick)
        if self.mode != mode:
            inflight = core.inflight
            if self.mode != "none":
                inflight[(self.mode,)] -= 1
            inflight[(mode,)] = inflight.get((mode,), 0) + 1
            self.mode = mode
        core.picked(pick)

    def _send_pd(self, pick: Pick) -> bool:
        core = self.core
        if self.envelope.many:
            # SGLang 0.5.22 gives all choices of a prompt, and its own warm-up of it, the same room.
            self.fail(Failure("bad_request", "n: a prefill/decode pair makes one choice for each prompt; send the request n times",
                              count_as="choices_in_pd"))
            return False
        prefill, decode = core.wire(pick.prefill), core.wire(pick.decode)
        if prefill.bootstrap is None or not prefill.protocol or prefill.protocol != decode.protocol:
            reason = "bootstrap_address_missing" if prefill.bootstrap is None else "protocol_mismatch"
            core.store.add("infera_pd_bootstrap_failures_total", (reason,))
            log.error("prefill %s (protocol %s, bootstrap %s) and decode %s (protocol %s) cannot work together", prefill.worker_id,
                      prefill.protocol, "given" if prefill.bootstrap else "missing", decode.worker_id, decode.protocol,
                      extra=logs.extra(self.request.id))
            self.fail(Failure("protocol_mismatch", "the workers of this model are not set up to work together", count_as=reason))
            return False
        room = getrandbits(63)
        if prefill.rank is not None:
            # the prefill's own balancer takes room modulo ranks
            room = room - room % prefill.ranks + prefill.rank
            if room >= 1 << 63:
                room -= prefill.ranks
        body, route = self.body, self.route
        at, comma = envelope.cut(body)
        common = b'%b%b%d%b' % (comma, prefill.bootstrap, room, prefill.prefill_rank)
        common += self._rid(room)
        headers = core.forwarded(self.request)
        self.prefill = Leg(self, "prefill", prefill.worker_id, prefill.pool, envelope.leg(
            route.path, prefill.authority, prefill.rank_header + headers, body, at, common + prefill.rank_member + b"}"))
        self.decode = Leg(self, "decode", decode.worker_id, decode.pool, envelope.leg(
            route.path, decode.authority, decode.rank_header + headers, body, at, common + decode.rank_member + b"}"))
        if self.paused:
            self.decode.pause()
        self.prefill.start()
        self.decode.start()
        return True

    def _send_one(self, pick: Pick) -> None:
        core = self.core
        target = core.wire(pick.mixed or pick.prefill)
        body = self.body
        at, comma = envelope.cut(body)
        tail = self._rid(getrandbits(63)) + target.rank_member
        if tail:
            tail = comma + tail[1:]
        leg = self.decode = Leg(self, "mixed", target.worker_id, target.pool, envelope.leg(
            self.route.path, target.authority, target.rank_header + core.forwarded(self.request), body, at, tail + b"}"))
        if self.paused:
            leg.pause()
        leg.start()

    def _rid(self, room: int) -> bytes:
        """The member that names the request to its engines; nothing where the route has none or the caller gave one."""
        self.rid_sent = False
        if not self.route.rid:
            return b""
        given = self.envelope.rid
        if self.envelope.has_rid:
            self.rid = given or ""
            self.rid_sent = given is not None and not self.envelope.many
            return b""
        self.rid = "ir-%016x" % room
        self.rid_sent = not self.envelope.many
        return b',"rid":"%b"' % self.rid.encode()

    # ---- from the workers

    def leg_head(self, leg: Leg, head: Head) -> None:
        self.core.dispatch_histogram(leg.role, leg.worker_id).observe(monotonic() - leg.sent_at)
        if head.status >= 400:
            self.parts = []
            self.size = 0
            if leg is self.decode:
                self.head = head
        elif leg is self.decode:
            self.head = head

    def leg_data(self, leg: Leg, data: bytes) -> None:
        if leg is self.decode:
            if self.head.status >= 400:
                self._collect(leg, data)
            else:
                self._first_bytes(leg, data)
        elif leg.head.status >= 400 and not self.started:
            self._collect(leg, data)

    @property
    def last(self) -> float:
        """When this request last moved (monotonic): its own last byte, or the last one of its answer."""
        return self.stream.last if self.stream is not None else max(self.request.at, self.first)

    @property
    def tail(self) -> bytes:
        return self.stream.tail() if self.stream is not None else b""

    def _collect(self, leg: Leg, data: bytes) -> None:
        self.size += len(data)
        if self.size > MAX_ERROR_BODY:
            leg.cancel()
            self._answered_badly(leg)
        else:
            self.parts.append(data)

    def _first_bytes(self, leg: Leg, data: bytes) -> None:
        head = self.head
        if head.event_stream:
            # SGLang can report a failed transfer as the first event of a 200; that is a fault like any other.
            bad = error_first(data[:8192])
            if bad is not None:
                leg.cancel()
                self._fault(leg, "event", Failure("engine_error", "the engine failed this request", int(bad[2]), None, count_as="error_event"),
                            bad[1])
                return
        gaps = self._commit()
        write = self._writer()
        if self.relay == RAW:
            write(head_bytes(self.head, self.request) + data)
            if head.event_stream:
                write = self.request.conn.send_more
        else:
            write(head_bytes(self.head, self.request))
            write = self._reframed
            write(data)
        stream = self.stream = Stream(write, gaps, self.first, data)
        leg.sink = stream.more
        leg.whole = stream.token if self.prepared is None else stream.kept

    def _commit(self) -> Histogram:
        """The first byte goes to the client: from here on nothing is repeated. Returns where the gaps between its reads are counted."""
        core, head = self.core, self.head
        self.started = True
        self.request.answered = True
        now = self.first = monotonic()
        core.policy.record_success(self.decode.worker_id, now)
        gaps = UNCOUNTED
        if head.event_stream:
            core.ttft[self.mode].observe(now - self.request.at)
            gaps = core.itl[self.mode]
        if head.framing == CHUNKED and self.request.http10:
            self.relay, self.dechunker = DECHUNK, Dechunker()
        elif head.framing == UNTIL_EOF and not self.request.http10:
            self.relay = ENCHUNK
        return gaps

    def _writer(self) -> Callable[[bytes], None]:
        """Tokens go out at once, whole answers with the others of the loop's round, which is cheaper. One answer has one way throughout."""
        conn = self.request.conn
        return conn.send if self.head.event_stream else conn.transport.write

    def _reframed(self, data: bytes) -> None:
        write = self._writer()
        if self.relay == DECHUNK:
            payload = self.dechunker.feed(data)
            if payload:
                write(payload)
        else:
            write(wire.chunk(data))

    def leg_done(self, leg: Leg) -> None:
        if leg is self.decode:
            if self.head.status >= 400:
                self._answered_badly(leg)
                return
            if not self.started:
                self._commit()
                self._writer()(head_bytes(self.head, self.request))
            if self.relay == ENCHUNK:
                self._writer()(wire.LAST_CHUNK)
            self.finish("ok")
        elif leg is self.prefill:
            if leg.head.status >= 400:
                if not self.started:
                    self._answered_badly(leg)
                return
            now = self.core.moved[leg.worker_id] = monotonic()
            self.core.policy.record_success(leg.worker_id, now)
            if self.pick is not None:
                self.pick.lease.prefill_done()

    def leg_failed(self, leg: Leg, kind: str, detail: str) -> None:
        if leg is self.decode and self.started:
            self._broken(leg, kind, detail)
        elif not self.started:
            self._fault(leg, kind, Failure("leg_failed", f"the {leg.role} worker could not be reached" if kind == "connect"
                                           else f"the {leg.role} worker broke off", count_as=f"{leg.role}_{kind}"), detail.encode())
        else:
            self.core.store.add("infera_leg_failures_total", (leg.role, leg.worker_id, kind))

    def _answered_badly(self, leg: Leg) -> None:
        """A leg's whole answer is an error: 4xx is the caller's, 5xx the worker's."""
        head, body = leg.head, b"".join(self.parts or ())
        if head.framing == CHUNKED:
            body = Dechunker().feed(body)
        status = head.status
        if status < 500:
            self.fail(Failure("bad_request", "", status, body, content_type(head), count_as="engine_4xx"))
            return
        self._fault(leg, str(status), Failure("engine_error", "the engine failed this request", status, count_as="engine_5xx"), body)

    def _fault(self, leg: Leg, kind: str, failure: Failure, detail: bytes) -> None:
        """A worker's fault before the first client byte: once more without it, or its answer."""
        core, pick = self.core, self.pick
        blamed = leg
        if leg is self.decode and self.prefill is not None and kind not in ("connect", "reset", "eof") and prefill_to_blame(detail):
            blamed = self.prefill
        core.store.add("infera_leg_failures_total", (blamed.role, blamed.worker_id, kind))
        core.policy.record_fault(blamed.worker_id, monotonic(), pick)
        log.warning("%s leg on %s failed (%s): %s", leg.role, leg.worker_id, kind, detail[:500].decode("utf-8", "replace"),
                    extra=logs.extra(self.request.id))
        self.failure = failure
        self._drop_legs()
        if self.retries >= core.settings.request_max_retries or core.draining_hard:
            self.fail(failure)
            return
        self.retries += 1
        core.store.add("infera_request_retries_total", (failure.count_as,))
        self.excluded = self.excluded | {blamed.worker_id}
        self._attempt()

    def worker_lost(self, worker_id: str, why: str) -> None:
        """The worker is gone or makes no progress: a leg on it that has not answered counts as failed."""
        if self.over or self.started:
            return
        for leg in (self.prefill, self.decode):
            if leg is not None and leg.worker_id == worker_id and not leg.ended:
                self._fault(leg, why, Failure("leg_failed", f"the {leg.role} worker stopped answering", count_as=f"{leg.role}_{why}"), b"")
                return

    def _broken(self, leg: Leg, kind: str, detail: str) -> None:
        """The stream broke after the first byte: say so inside it, once, then close."""
        core, request = self.core, self.request
        if self.head.event_stream and done_at_end(self.tail):
            if self.relay == RAW and not self.tail.endswith(wire.LAST_CHUNK):
                self._writer()(rest_of(self.tail))
            self.finish("ok", keep=False)
            return
        log.warning("the %s on %s broke off mid-answer (%s): %s", leg.role, leg.worker_id, kind, detail, extra=logs.extra(request.id))
        core.store.add("infera_stream_breaks_total", (kind,))
        core.policy.record_fault(leg.worker_id, monotonic())
        self._error_event(leg, "engine_error", "the engine broke off this answer")
        self.finish("broken", keep=False, reason="stream_broken")

    def _error_event(self, leg: Leg, reason: str, text: str) -> None:
        """One event that says what happened; a plain answer is cut short instead."""
        event = errors.event(reason, text, self.route.anthropic, self.request.id)
        data = error_event(self.head, self.request, self.relay, leg.owed(), event)
        if data:
            self._writer()(data)

    # ---- from the client

    def client_gone(self) -> None:
        if self.over:
            return
        if self.started and self.head.event_stream and done_at_end(self.tail):
            # It has all there was to say; only the end of the framing is missing.
            self.decode.cancel()
            self.finish("ok", keep=False)
            return
        stage = "stream" if self.started else "waiting" if self.pick is not None else "preparing"
        self.core.store.add("infera_request_cancellations_total", (stage,))
        self.finish("cancelled", keep=False, cancel=True)

    def client_paused(self) -> None:
        self.paused = True
        if self.decode is not None and not self.decode.ended:
            self.decode.pause()

    def client_resumed(self) -> None:
        self.paused = False
        if self.decode is not None and not self.decode.ended:
            self.decode.resume()

    # ---- ends

    def expire(self, reason: str, text: str) -> None:
        """A time limit or the router's own end ends this request."""
        if self.over:
            return
        if self.started:
            self._error_event(self.decode, reason, text)
            self.core.store.add("infera_stream_breaks_total", (reason,))
            self.finish(reason, keep=False, cancel=True, reason=reason)
        else:
            self.request.keep_alive = False
            self.fail(Failure(reason, text))

    def crash(self) -> None:
        """A fault of the router itself: end the request whatever state it is in."""
        if self.over:
            return
        if self.started:
            self.finish("error", keep=False, cancel=True, reason="internal")
        else:
            self.fail(Failure("internal", "internal error"))

    def _nowhere(self, none: NoTarget) -> None:
        core = self.core
        if self.failure is not None:
            self.fail(self.failure)
            return
        if none.kind == "model_required":
            self.fail(Failure("bad_request", f"model is missing and several are served: {', '.join(core.policy.models)}"))
            return
        model = self.facts.model
        if none.kind == "no_worker" and model is not None and core.policy.models and model not in core.known_models:
            self.fail(Failure("model_not_found", f"the model {model[:200]!r} does not exist; served: {', '.join(core.policy.models)}"))
            return
        text = none.text()
        if none.kind == "excluded" and core.held and not self.excluded:
            text = "every prefill worker of this model has stopped making progress and is out of rotation"
        self.fail(Failure("no_worker", text, count_as=f"no_{none.missing_role or 'worker'}"))

    def fail(self, failure: Failure) -> None:
        """Answer an error. Nothing has been sent to the client yet."""
        if self.over:
            return
        request = self.request
        self._end(failure.count_as if failure.status >= 500 or failure.reason == "timeout" else "client_error", failure.count_as)
        self._drop_legs()
        extra = b"retry-after: 1\r\n" if failure.status in (429, 503) else b""
        body = failure.body
        if body is None:
            body = errors.body(failure.reason, failure.text, self.route.anthropic, request.id)
        request.respond(failure.status, body, failure.content_type, extra)

    def finish(self, outcome: str, keep: bool = True, cancel: bool = False, reason: str = "") -> None:
        if self.over:
            return
        self._end(outcome, reason)
        if cancel:
            self._drop_legs()
        else:
            prefill = self.prefill
            if prefill is not None and not prefill.ended:
                leave(self.core, self, prefill, None)
        self.prefill = self.decode = None
        self.request.end(keep and (not self.request.http10 or self.relay == RAW))

    def _end(self, outcome: str, reason: str) -> None:
        """The one place where a request ends: its lease first, then the counting."""
        self.over = True
        pick, self.pick = self.pick, None
        if pick is not None:
            pick.lease.release()
        core = self.core
        del core.live[self]
        if self.task is not None:
            self.task.cancel()
            self.task = None
        mode = self.mode
        if mode != "none":
            core.inflight[(mode,)] -= 1
        core.ended(mode, outcome, monotonic() - self.request.at, reason)
        if self.prepared is not None and outcome == "ok":
            core.observe_reply(self)

    def _drop_legs(self) -> None:
        """Cancel what runs: the lease ends first, then the engines are told."""
        pick, self.pick = self.pick, None
        if pick is not None:
            pick.lease.release()
        prefill, decode = self.prefill, self.decode
        self.prefill = self.decode = None
        self.head = self.parts = None
        if decode is not None or prefill is not None:
            leave(self.core, self, prefill, decode)
