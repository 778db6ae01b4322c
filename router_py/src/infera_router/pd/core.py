"""What all requests of one process share: the policy, the engines' pools, what is running, what is counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from infera_router.fleet.pool import Pool, Snapshot
from infera_router.http.client import Request
from infera_router.http.upstream import EnginePool, Engines
from infera_router.observe.metrics import Histogram, Store
from infera_router.pd import envelope, hints
from infera_router.policy.affinity import SessionError, session_of
from infera_router.policy.api import Pick, RequestFacts
from infera_router.policy.engine import Policy
from infera_router.policy.targets import Target

if TYPE_CHECKING:
    from infera_router.pd.exchange import Exchange
    from infera_router.settings import Settings

log = logging.getLogger(__name__)

# Request headers that engines get; everything else stays here, so that no rank, room or credential of the fleet can be set from outside.
_FORWARDED = frozenset((b"traceparent", b"tracestate", b"x-request-id", b"anthropic-version", b"anthropic-beta", b"accept", b"accept-language"))


class Wire:
    """A target as bytes: what of a leg is the same for every request that goes there."""

    __slots__ = ("worker_id", "pool", "authority", "protocol", "rank", "ranks", "rank_header", "rank_member", "prefill_rank", "bootstrap",
                 "picks")

    def __init__(self, target: Target, pool: EnginePool) -> None:
        record = target.worker
        self.worker_id, self.pool, self.authority = record.worker_id, pool, pool.authority
        self.protocol = record.protocol
        self.rank, self.ranks = target.rank, record.ranks
        self.rank_header = self.rank_member = self.prefill_rank = b""
        if target.rank is not None:
            # the header is what chat, completions, responses and messages obey, the member what /generate obeys (SGLang 0.5.22)
            self.rank_header = b"x-data-parallel-rank: %d\r\n" % target.rank
            self.rank_member = b',"routed_dp_rank":%d' % target.rank
            self.prefill_rank = b',"disagg_prefill_dp_rank":%d' % target.rank
        self.bootstrap: bytes | None = None
        if record.bootstrap_host and record.bootstrap_port:
            self.bootstrap = b'"bootstrap_host":"%b","bootstrap_port":%d,"bootstrap_room":' % (
                record.bootstrap_host.encode("ascii", "ignore"), record.bootstrap_port)


class Core:
    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop, pool: Pool, policy: Policy, preparer: Any = None) -> None:
        self.settings, self.loop, self.fleet, self.policy, self.preparer = settings, loop, pool, policy, preparer
        self.engines = Engines(loop, settings.connect_timeout)
        self.store = Store()
        self.live: dict[Exchange, None] = {}  # in the order of arrival
        self.orphans: set[Any] = set()
        self.orphaned = 0
        self.inflight: dict[tuple[str, ...], float] = self.store.table("infera_request_inflight")
        self.known_models: set[str] = set()
        self.moved: dict[str, float] = {}  # worker -> when a prefill leg last ended there
        self.held: frozenset[str] = frozenset()  # workers that no request may go to, even where there is no other
        self.draining = False
        self.draining_hard = False
        self.session: Callable[[Request, envelope.Envelope], str | None] | None = None
        if settings.policy.session_affinity != "off":
            self.session = self._session
        self.ttft = {mode: self.store.histogram("infera_time_to_first_token_seconds", (mode,)) for mode in ("pd", "mixed")}
        self.itl = {mode: self.store.histogram("infera_inter_token_latency_seconds", (mode,)) for mode in ("pd", "mixed")}
        for mode in ("pd", "mixed"):
            self.inflight[(mode,)] = 0
        self._wires: dict[Target, Wire] = {}
        self._dispatch: dict[tuple[str, str], Histogram] = {}
        self._ended: dict[tuple[str, str], Histogram] = {}
        self._requests = self.store.table("infera_requests_total")
        self._picks = self.store.table("infera_router_picks_total")
        self._timers: set[asyncio.TimerHandle] = set()
        self._watched: dict[str, asyncio.Task] = {}
        pool.subscribe(self._fleet_changed)
        self._fleet_changed(Snapshot(), pool.snapshot)

    # ---- the fleet

    def _fleet_changed(self, old: Snapshot, new: Snapshot) -> None:
        self.policy.update(new)
        self._wires.clear()
        self.known_models.update(self.policy.models)
        for worker_id, record in old.workers.items():
            now = new.workers.get(worker_id)
            if now is None or now.url != record.url or now.generation != record.generation:
                self.engines.retire(worker_id)
                self.held = self.held - {worker_id}
                if any(leg is not None and leg.worker_id == worker_id for ex in self.live for leg in (ex.prefill, ex.decode)):
                    self._look_after(worker_id, record.host, record.port)
            if now is None:
                self.moved.pop(worker_id, None)
                for key in [k for k in self._dispatch if k[1] == worker_id]:
                    del self._dispatch[key]
                    self.store.drop("infera_pd_dispatch_duration_seconds", key)

    def _look_after(self, worker_id: str, host: str, port: int) -> None:
        """A worker left etcd while requests wait for it. If nothing listens there either, they are failed now and not by their timeouts."""
        if worker_id not in self._watched:
            task = self.loop.create_task(self._probe(worker_id, host, port))
            self._watched[worker_id] = task
            task.add_done_callback(lambda _: self._watched.pop(worker_id, None))

    async def _probe(self, worker_id: str, host: str, port: int) -> None:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), 1.0)
        except (OSError, asyncio.TimeoutError):
            self.worker_lost(worker_id, "gone")
        else:
            writer.close()

    def worker_lost(self, worker_id: str, why: str) -> int:
        """Fail what waits for a worker, so that it is retried elsewhere or answered; returns how many requests that were."""
        hit = [ex for ex in self.live if not ex.started and any(
            leg is not None and leg.worker_id == worker_id and not leg.ended for leg in (ex.prefill, ex.decode))]
        for exchange in hit:
            exchange.worker_lost(worker_id, why)
        return len(hit)

    def hold(self, worker_id: str, reason: str) -> None:
        self.policy.breaker.hold(worker_id, reason)
        self.held = self.held | {worker_id}

    def let_in(self, worker_id: str) -> None:
        self.policy.breaker.let_in(worker_id)
        self.held = self.held - {worker_id}

    def wire(self, target: Target) -> Wire:
        wire = self._wires.get(target)
        if wire is None:
            record = target.worker
            wire = self._wires[target] = Wire(target, self.engines.pool(record.worker_id, record.host, record.port))
        return wire

    def may_abort_prefill(self, worker_id: str) -> bool:
        """By --prefill-abort; auto: only a pipeline of one stage, see docs/router-cancellation.md."""
        mode = self.settings.prefill_abort
        if mode != "auto":
            return mode == "always"
        record = self.fleet.snapshot.workers.get(worker_id)
        return record is None or record.pp_size <= 1

    # ---- facts of a request

    def _session(self, request: Request, env: envelope.Envelope) -> str | None:
        body = None
        if env.cache_key is not None:
            body = {"prompt_cache_key": envelope.scalar(env.cache_key)}
        try:
            return session_of([(k.decode("latin-1"), v.decode("latin-1")) for k, v in request.headers], body,
                              self.settings.policy.session_affinity_headers)
        except SessionError as error:
            raise envelope.BadBody(str(error)) from None

    def plain_facts(self, env: envelope.Envelope, session: str | None) -> RequestFacts:
        return RequestFacts(env.model or None, None, None, session)

    def known(self, route: str | None, body: bytes) -> Any:
        """The conversation that a chat body surely continues (its `stem`: bytes and members that were let through before), or None."""
        known = getattr(self.preparer, "known", None)
        return known(route, body) if known is not None else None

    async def prepare(self, route: str, env: envelope.Envelope, body: bytes, session: str | None, known: Any) -> tuple[RequestFacts, Any]:
        prepared = await self.preparer.facts(route, body, known, env.members)
        facts = RequestFacts(env.model or None, prepared.tokens, prepared.pages, session)
        if env.retention is not None:
            facts.cost_scale = hints.cost_scale(envelope.scalar(env.retention))
        # A prompt with images is never sized, so a large text-only body need not be searched for them.
        if prepared.error is not None and hints.may_hold_images(body):
            facts.images = await self.loop.run_in_executor(None, hints.images, body)
        return facts, prepared

    def forwarded(self, request: Request) -> bytes:
        """Header lines that both legs get."""
        out = b"x-infera-request-id: %b\r\n" % request.id.encode()
        for name, value in request.headers:
            if name in _FORWARDED:
                out += b"%b: %b\r\n" % (name, value)
        return out

    def observe_reply(self, exchange: Exchange) -> None:
        """Compare the prompt's size with the engine's own count, where the reply has one. Both legs render alike, or PD itself would fail."""
        check = getattr(self.preparer, "check", None)
        if check is not None:
            legs = [leg.worker_id for leg in (exchange.decode, exchange.prefill) if leg is not None]
            check.reply(legs, exchange.prepared.prompt_tokens, exchange.tail)

    # ---- counting

    def picked(self, pick: Pick) -> None:
        picks = self._picks
        for role, target in (("prefill", pick.prefill), ("decode", pick.decode), ("mixed", pick.mixed)):
            if target is not None:
                key = (role, target.worker.worker_id)
                picks[key] = picks.get(key, 0) + 1
        if pick.blocks:
            for role, hit in (("prefill", pick.prefill_hit), ("decode", pick.decode_hit)):
                self.store.histogram("infera_router_pick_request_blocks", (role,)).observe(pick.blocks)
                self.store.histogram("infera_router_pick_cache_hits", (role,)).observe(hit)

    def dispatch_histogram(self, leg: str, worker_id: str) -> Histogram:
        key = (leg, worker_id)
        found = self._dispatch.get(key)
        if found is None:
            found = self._dispatch[key] = self.store.histogram("infera_pd_dispatch_duration_seconds", key)
        return found

    def ended(self, mode: str, outcome: str, seconds: float, reason: str) -> None:
        key = (mode, outcome)
        self._requests[key] = self._requests.get(key, 0) + 1
        histogram = self._ended.get(key)
        if histogram is None:
            histogram = self._ended[key] = self.store.histogram("infera_request_duration_seconds", key)
        histogram.observe(seconds)
        if reason:
            self.store.add("infera_request_errors_total", (reason,))

    # ---- time

    def sweep(self) -> None:
        """Once a second: time limits and leases that are too old."""
        settings = self.settings
        now = monotonic()
        if settings.request_timeout or settings.request_idle_timeout:
            for exchange in list(self.live):
                if settings.request_timeout and now - exchange.request.at > settings.request_timeout:
                    exchange.expire("timeout", f"the request took longer than {settings.request_timeout:g} s")
                elif settings.request_idle_timeout and exchange.decode is not None and not exchange.paused:
                    if now - max(exchange.last, exchange.dispatched) > settings.request_idle_timeout:
                        exchange.expire("timeout", f"the engine sent nothing for {settings.request_idle_timeout:g} s")

    def later(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        """call_later that ends with the router."""

        def run() -> None:
            self._timers.discard(handle)
            call(*args)

        handle = self.loop.call_later(seconds, run)
        self._timers.add(handle)

    def close(self) -> None:
        """Nothing runs any more after this."""
        self.abort_all()
        for handle in self._timers:
            handle.cancel()
        self._timers.clear()
        for task in list(self._watched.values()):
            task.cancel()
        self.engines.close()

    def abort_all(self) -> None:
        """The drain's time is over: end what still runs."""
        self.draining_hard = True
        for exchange in list(self.live):
            exchange.expire("draining", "the router is shutting down")
        for orphan in list(self.orphans):
            orphan.shutdown()
