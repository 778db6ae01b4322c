"""The router as a whole: what a connection's requests reach, what runs beside them, how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from time import monotonic
from typing import Any
from urllib.parse import parse_qs, unquote

from infera_router import gauges, pages
from infera_router.fleet.etcd import EtcdClient
from infera_router.fleet.options import UsageError
from infera_router.fleet.pool import Pool
from infera_router.fleet.watch import FleetWatch
from infera_router.http import errors
from infera_router.http.client import ClientConnection, ClientLimits, Request
from infera_router.http.keys import ApiKeys, KeyFileError
from infera_router.observe import ids, logs
from infera_router.observe.metrics import merge
from infera_router.pd.audit import LedgerAudit
from infera_router.pd.core import Core
from infera_router.pd.exchange import Exchange
from infera_router.pd.routes import ENGINE_ROUTES
from infera_router.pd.stalls import StallWatch
from infera_router.policy.engine import Policy
from infera_router.process.acceptor import Acceptor
from infera_router.process.siblings import Place, Siblings
from infera_router.settings import Settings

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset((b"/health", b"/ready"))
GET_PATHS = frozenset((b"/health", b"/ready", b"/metrics", b"/v1/models", b"/v1/workers", b"/v1/admin/demand"))


class App:
    """One process of the router. `start` on its own loop, then `stop`."""

    def __init__(self, settings: Settings, preparer_for: Any = None, ledger: Any = None, affinity: Any = None, place: Place | None = None) -> None:
        self.settings = settings
        try:
            self.keys = ApiKeys(settings.api_key_file) if settings.api_key_file else None
        except KeyFileError as error:
            raise UsageError(str(error)) from None
        self.fleet = Pool()
        self.limits = ClientLimits(settings.max_body_bytes, settings.max_header_bytes, settings.client_keepalive_timeout,
                                   settings.client_read_timeout)
        self.connections: set[ClientConnection] = set()
        self.started, self.started_wall = monotonic(), time.time()
        self.servers: list[Any] = []
        self.place, self.siblings = place, None
        self.retiring = False  # another router serves the port: what is connected here is served to its end
        self.on_orphaned: Callable[[], None] = lambda: None  # the parent of this process died
        self._preparer_for, self._ledger, self._affinity = preparer_for, ledger, affinity
        self._etcd: EtcdClient | None = None
        self._watch: FleetWatch | None = None
        self._tasks: list[asyncio.Task] = []
        self._busy: set[asyncio.Task] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._warned = 0.0

    # ---- life

    async def start(self, discover: bool = True) -> None:
        """Everything but listening: follow the fleet, until its first view is there or etcd has had its chance.

        Without `discover` nothing is asked of etcd: whoever owns the App fills its fleet.
        """
        settings = self.settings
        loop = asyncio.get_running_loop()
        self.loop = loop
        preparer = self._preparer_for(settings, self.fleet) if self._preparer_for is not None else None
        view = getattr(preparer, "view", None)
        trusted = preparer.check.trusted if preparer is not None and hasattr(preparer, "check") else None
        policy = Policy(settings.policy, views=view, ledger=self._ledger, affinity=self._affinity, trusted=trusted)
        self.core = Core(settings, loop, self.fleet, policy, preparer)
        if self.place is not None:
            self.siblings = Siblings(self.dump, lambda: self.on_orphaned())
            await self.siblings.open(self.place.channel)
        if discover:
            self._etcd = EtcdClient(settings.etcd)
            self._watch = FleetWatch(self._etcd, self.fleet, settings.etcd_prefix)
            self._tasks.append(loop.create_task(self._watch.run()))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._watch.synced.wait(), 2.0)
        self.audit: LedgerAudit | None = None
        if settings.demand_audit_interval and settings.policy.decode_input_demand != "off" and (self.place is None or self.place.index == 0):
            self.audit = LedgerAudit(self.core, settings.demand_audit_interval)
            self._tasks.append(loop.create_task(self.audit.run()))
        if settings.prefill_stall_timeout:
            self._tasks.append(loop.create_task(StallWatch(self.core).run()))
        self._timer = loop.call_later(1.0, self._every_second)

    async def listen(self, sock: socket.socket, ssl_context: Any = None) -> None:
        """Take connections from a listening socket, which several processes may share."""
        place = self.place
        if place is None:
            self.servers.append(await self.loop.create_server(self._connection, sock=sock, backlog=self.settings.backlog, ssl=ssl_context))
        else:
            self.servers.append(Acceptor(self.loop, sock, self._connection, ssl_context, place.board, place.inbox, place.others))
            await self.siblings.serving()

    def _connection(self) -> ClientConnection:
        return ClientConnection(self, self.limits, self.connections)

    def closed(self) -> None:
        """A client connection has ended."""
        if self.place is not None:
            self.place.board.count(-1)

    def _every_second(self) -> None:
        self._timer = self.loop.call_later(1.0, self._every_second)
        now = monotonic()
        for connection in list(self.connections):
            connection.expire(now)
        self.core.sweep()
        age, target = self.core.policy.oldest_lease(now)
        if age > self.settings.lease_warn_s and now - self._warned > 60:
            self._warned = now
            log.warning("a lease on %s is %.0f s old; if no request is that old, it is a leak", target, age)

    def retire(self) -> None:
        """Another router has this port now: accept nothing more, and ask those who are connected to connect anew after their next answer."""
        self.retiring = True
        for server in self.servers:
            server.close()

    async def drain(self) -> None:
        """No new requests; running ones get the drain's time, then are ended with an error."""
        self.core.draining = True
        for connection in list(self.connections):
            connection.finish_soon()
        end = monotonic() + self.settings.drain_timeout
        if self.core.live:
            log.info("draining: %d requests run, at most %g s", len(self.core.live), self.settings.drain_timeout)
        while self.core.live and monotonic() < end:
            await asyncio.sleep(0.02)
        if self.core.live:
            log.warning("the drain's time is over; %d requests are ended", len(self.core.live))
        self.core.abort_all()

    async def stop(self) -> None:
        """Close everything; whatever still runs is ended."""
        for server in self.servers:
            server.close()
            if isinstance(server, Acceptor):
                server.stop()
        self.core.abort_all()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks + list(self._busy):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._busy, return_exceptions=True)
        deadline = monotonic() + 1.0
        while self.connections and monotonic() < deadline:
            for connection in list(self.connections):
                if not connection.transport.is_closing():
                    connection.transport.close()
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()
        self.core.close()
        if self.core.preparer is not None:
            self.core.preparer.close()
        if self._etcd is not None:
            await self._etcd.close()
        if self.siblings is not None:
            self.siblings.close()

    def reload(self) -> None:
        """SIGHUP: the key file again."""
        if self.keys is not None:
            try:
                self.keys.reload()
                log.info("%d API keys in force", len(self.keys))
            except KeyFileError as error:
                log.error("%s; the old keys stay in force", error)

    @property
    def synced(self) -> bool:
        return self._watch is None or self._watch.synced.is_set()

    @property
    def loading(self) -> bool:
        """Whether the tokenizer is still being read: requests are answered, but routed on load."""
        return getattr(self.core.preparer, "loading", False)

    @property
    def ready(self) -> bool:
        return not self.core.draining and self.synced and not self.loading and self.core.policy.servable

    # ---- requests

    def refuse_early(self, request: Request) -> tuple[str, str] | None:
        """Why a request will not be served whatever its body says; asked before a large body is read."""
        if not self._allowed(request):
            return "unauthorized", "a valid API key is needed"
        if self.core.draining:
            return "draining", "the router is shutting down"
        if request.path not in ENGINE_ROUTES and request.path not in GET_PATHS:
            return "not_found", "no such route"
        return None

    def _allowed(self, request: Request) -> bool:
        if self.keys is None or request.path in OPEN_PATHS or (request.path == b"/metrics" and not self.settings.metrics_auth):
            return True
        return self.keys.allows(request.header(b"authorization"), request.header(b"x-api-key"))

    def handle(self, request: Request) -> Exchange | None:
        given = request.header(ids.HEADER)
        request.id = ids.accept(given) if given is not None else ids.new()
        if self.keys is not None and not self._allowed(request):
            self._error(request, "unauthorized", "a valid API key is needed", b"www-authenticate: Bearer\r\n")
            return None
        route = ENGINE_ROUTES.get(request.path)
        if route is None:
            self._page(request)
            return None
        core = self.core
        if request.method != b"POST":
            self._error(request, "method_not_allowed", "this route takes POST", b"allow: POST\r\n")
            return None
        if core.draining:
            request.keep_alive = False
            self._error(request, "draining", "the router is shutting down", b"retry-after: 1\r\n")
            return None
        limit = self.settings.max_concurrent_requests
        if limit and len(core.live) >= limit:
            core.ended("none", "rejected", 0.0, "admission_limit")
            self._error(request, "overloaded", "too many requests at once", b"retry-after: 1\r\n")
            return None
        if self.retiring:
            request.keep_alive = False
        exchange = Exchange(core, request, route)
        try:
            exchange.begin()
        except Exception:
            log.exception("a request failed inside the router", extra=logs.extra(request.id))
            exchange.crash()
        return exchange

    def _error(self, request: Request, reason: str, text: str, extra: bytes = b"") -> None:
        route = ENGINE_ROUTES.get(request.path)
        body = errors.body(reason, text, route is not None and route.anthropic, request.id)
        request.respond(errors.status_of(reason), body, extra=extra)

    def _page(self, request: Request) -> None:
        path = request.path
        if request.method not in (b"GET", b"HEAD"):
            known = path in GET_PATHS
            self._error(request, "method_not_allowed" if known else "not_found", "this route takes GET" if known else "no such route",
                        b"allow: GET, HEAD\r\n" if known else b"")
            return
        if path == b"/health":
            request.respond(*pages.health(self))
        elif path == b"/ready":
            request.respond(*pages.ready(self))
        elif path == b"/v1/models":
            request.respond(*pages.models(self))
        elif path.startswith(b"/v1/models/") and (found := pages.model(self, unquote(path[11:].decode("latin-1")))) is not None:
            request.respond(*found)
        elif path == b"/v1/workers":
            self._spawn(request, self._workers(request))
        elif path == b"/v1/admin/demand":
            self._spawn(request, self._demand(request))
        elif path == b"/metrics":
            self._spawn(request, self._metrics(request))
        elif path.startswith(b"/v1/admin/cache-view/") and (found := self._cache(request)) is not None:
            request.respond(*found)
        else:
            self._error(request, "not_found", "no such route")

    def _cache(self, request: Request) -> tuple[int, bytes] | None:
        query = parse_qs(request.query().decode("latin-1"))
        rank = query.get("dp_rank", [""])[0]
        return pages.cache(self, unquote(request.path[21:].decode("latin-1")), int(rank) if rank.isdigit() else None, query.get("pages") == ["1"])

    def _spawn(self, request: Request, answer: Any) -> None:
        task = self.loop.create_task(answer)
        self._busy.add(task)
        task.add_done_callback(lambda done: self._answered(request, done))

    def _answered(self, request: Request, task: asyncio.Task) -> None:
        self._busy.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a page failed", exc_info=task.exception(), extra=logs.extra(request.id))
            if not request.answered:
                self._error(request, "internal", "internal error")

    # ---- pages for all processes

    def dump(self) -> dict[str, Any]:
        """What this process knows, as plain data, for whichever process is asked."""
        return {"store": gauges.collect(self).dump(), "breakers": pages.breakers(self), "demand": pages.booked(self)}

    async def _everywhere(self) -> dict[str, Any]:
        if self.siblings is None:
            return {"dumps": [self.dump()], "retired": None, "restarts": 0}
        try:
            return await self.siblings.all()
        except (asyncio.TimeoutError, ConnectionError) as error:
            log.warning("the other processes could not be asked (%s); this page is of one process", error or "no answer in time")
            return {"dumps": [self.dump()], "retired": None, "restarts": 0}

    async def _workers(self, request: Request) -> None:
        found = await self._everywhere()
        request.respond(200, pages.dump({"workers": pages.workers(self, [dump["breakers"] for dump in found["dumps"]])}))

    async def _demand(self, request: Request) -> None:
        found = await self._everywhere()
        request.respond(200, pages.dump(pages.demand(self, [dump["demand"] for dump in found["dumps"]])))

    async def _metrics(self, request: Request) -> None:
        from infera_router.observe import exposition  # costs 50 ms and 10 MB, which only those who scrape should pay

        found = await self._everywhere()
        store = merge([dump["store"] for dump in found["dumps"]] + ([found["retired"]] if found["retired"] else []))
        store.set("infera_router_processes", (), len(found["dumps"]))
        store.set("infera_router_process_restarts_total", (), found["restarts"])
        request.respond(200, exposition.page(store), exposition.CONTENT_TYPE)
