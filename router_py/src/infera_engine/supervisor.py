"""The life of one engine: start, wait for health, register, watch, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import logging
import signal
import socket
import time
import uuid

from infera_router.fleet.etcd import EtcdClient
from infera_router.fleet.http1 import HttpError, fetch
from infera_router.fleet.record import ACTIVE, DRAINING, WorkerRecord, dump

from infera_engine import serverinfo
from infera_engine.ask import EngineArgs
from infera_engine.child import Child, become_reaper, exit_code, reap_orphans
from infera_engine.drain import wait_until_empty
from infera_engine.kvplane import WILDCARDS
from infera_engine.register import Registration
from infera_engine.settings import EngineSettings

log = logging.getLogger(__name__)

HEALTH_POLL_FIRST, HEALTH_POLL = 0.25, 2.0
HEALTH_TIMEOUT = 25.0  # SGLang's own bound for /health is 20 s
TELL_EVERY = 30.0
REAP_EVERY = 5.0


class _Ready(enum.Enum):
    YES = "ready"
    DIED = "died"
    LATE = "late"
    STOP = "stop"


class Supervisor:
    """``run`` returns the exit status. *host* is the address of the record, *stop* is set by the first SIGTERM, *hurry* by the second."""

    def __init__(self, settings: EngineSettings, args: EngineArgs, host: str) -> None:
        self._settings, self._args, self._host = settings, args, host
        bind = args.values["host"] or "127.0.0.1"
        self._local = "127.0.0.1" if bind in WILDCARDS else bind
        self._port: int = args.values["port"]
        key = args.values.get("api_key")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.stop, self.hurry = asyncio.Event(), asyncio.Event()
        self._client = EtcdClient(settings.etcd)
        self._registration = Registration(self._client, settings.etcd_prefix, settings.lease_ttl)
        self._child: Child | None = None
        self._died: asyncio.Future[int] | None = None

    async def run(self) -> int:
        self._handle_signals()
        become_reaper()
        if not self._args.follower and (taken := _cannot_bind(self._args.values["host"] or "127.0.0.1", self._port)):
            # Started all the same, the other's /health would pass for ours and its record would be overwritten.
            log.error("SGLang's --port %d on %s: %s; stop what holds it, or give another port", self._port, self._args.values["host"], taken)
            return 1
        command = [self._settings.python, "-m", "sglang.launch_server", *self._args.argv]
        try:
            self._child = await Child.start(command)
        except OSError as error:
            log.error("SGLang could not be started with %s: %s", command[0], error.strerror)
            return 1
        log.info("started sglang %s as process %d: %s", self._args.version, self._child.pid, " ".join(_shown(command)))
        self._died = asyncio.ensure_future(self._child.wait())
        reaper = asyncio.ensure_future(self._reap())
        try:
            return await (self._follow() if self._args.follower else self._serve())
        finally:
            reaper.cancel()
            await self._client.close()

    # ---- phases

    async def _serve(self) -> int:
        record = serverinfo.before_start(self._args, self._host, uuid.uuid4().hex, time.time())
        self._registration.publish(record)
        outcome = await self._wait_ready()
        if outcome is _Ready.YES:
            outcome = await self._activate(record)
        if outcome is _Ready.YES:
            await self._first(self._died, self.stop)
            outcome = _Ready.DIED if self._died.done() else _Ready.STOP
        if outcome is _Ready.DIED:
            return await self._child_died()
        if outcome is _Ready.LATE:
            log.error("SGLang was not ready within %g s (--ready-timeout); stopping it", self._settings.ready_timeout)
            await self._registration.withdraw()
            await self._child.stop(self._settings.stop_timeout)
            return 1
        return await self._shut_down()

    async def _follow(self) -> int:
        """A node of a multi-node engine that serves nothing: no record, no drain."""
        log.info("node rank %s: not registered, the engine's first node is", self._args.values["node_rank"])
        await self._first(self._died, self.stop)
        if self._died.done():
            return await self._child_died()
        await self._child.stop(self._settings.stop_timeout)
        return 0

    async def _wait_ready(self) -> _Ready:
        begin = told = time.monotonic()
        limit = self._settings.ready_timeout
        poll = HEALTH_POLL_FIRST
        log.info("waiting for SGLang's /health on %s:%d, at most %g s", self._local, self._port, limit)
        while True:
            if await self._healthy(min(HEALTH_TIMEOUT, max(1.0, begin + limit - time.monotonic()))):
                log.info("SGLang is healthy after %.1f s", time.monotonic() - begin)
                return _Ready.YES
            if self._died.done():
                return _Ready.DIED
            if self.stop.is_set():
                return _Ready.STOP
            now = time.monotonic()
            if now - begin >= limit:
                return _Ready.LATE
            if now - told >= TELL_EVERY:
                told = now
                log.info("still waiting for SGLang's /health: %.0f of at most %g s", now - begin, limit)
            await self._first(self._died, self.stop, timeout=poll)
            poll = min(poll * 1.3, HEALTH_POLL)

    async def _healthy(self, timeout: float) -> bool:
        probe = asyncio.ensure_future(fetch(self._local, self._port, "/health", timeout, self._headers))
        await self._first(self._died, self.stop, probe)
        if not probe.done():
            probe.cancel()
        with contextlib.suppress(HttpError, asyncio.CancelledError):
            return (await probe).status == 200
        return False

    async def _activate(self, record: WorkerRecord) -> _Ready:
        """Complete the record from the running server, and say active."""
        while not self._died.done() and not self.stop.is_set():
            try:
                info = await serverinfo.read_server_info(self._local, self._port, self._headers, 20.0)
            except HttpError as error:
                log.warning("%s; trying again", error)
                await self._first(self._died, self.stop, timeout=HEALTH_POLL)
                continue
            ready = serverinfo.when_ready(record, info, self._args)
            # A draining from outside or by SIGUSR1 that came while the model loaded must survive.
            draining = self._registration.record is not None and self._registration.record.status == DRAINING
            ready = _with_status(ready, DRAINING if draining else ACTIVE)
            self._registration.publish(ready)
            log.info("record: %s", dump(ready).decode())
            return _Ready.YES
        return _Ready.DIED if self._died.done() else _Ready.STOP

    async def _child_died(self) -> int:
        status = self._died.result()
        log.error("SGLang ended by itself: %s", f"signal {-status}" if status < 0 else f"exit status {status}")
        await self._registration.withdraw()
        await self._child.sweep(self._settings.stop_timeout)
        return exit_code(status) or 1

    async def _shut_down(self) -> int:
        """SIGTERM: draining, wait for the engine to be empty, delete the record, stop."""
        record = self._registration.record
        served = record is not None and record.status in (ACTIVE, DRAINING)
        if served and self._settings.drain_timeout > 0:
            log.info("draining for at most %g s", self._settings.drain_timeout)
            self._registration.set_status(DRAINING)
            empty = asyncio.ensure_future(wait_until_empty(
                self._local, self._port, self._args.mode, self._headers, self._settings.drain_timeout, self._settings.drain_settle))
            await self._first(self._died, self.hurry, empty)
            empty.cancel()
        if self._died.done():
            return await self._child_died()
        await self._registration.withdraw()
        await self._child.stop(self._settings.stop_timeout)
        log.info("stopped")
        return 0

    # ---- signals and waiting

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request_stop)
        loop.add_signal_handler(signal.SIGUSR1, self._set_draining, True)
        loop.add_signal_handler(signal.SIGUSR2, self._set_draining, False)

    def request_stop(self) -> None:
        if self.stop.is_set():
            log.warning("asked to stop again: not waiting for requests any longer")
            self.hurry.set()
        self.stop.set()

    def _set_draining(self, on: bool) -> None:
        record = self._registration.record
        if self.stop.is_set() or record is None or record.status not in (ACTIVE, DRAINING):
            log.warning("%s ignored: the engine is %s", "SIGUSR1" if on else "SIGUSR2",
                        "stopping" if self.stop.is_set() else "not active yet")
            return
        log.info("%s by signal", "draining" if on else "active again")
        self._registration.set_status(DRAINING if on else ACTIVE)

    async def _first(self, *things: asyncio.Future | asyncio.Event, timeout: float | None = None) -> None:
        """Wait until one of the futures or events is done."""
        waits = [asyncio.ensure_future(thing.wait()) if isinstance(thing, asyncio.Event) else thing for thing in things]
        try:
            await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for thing, wait in zip(things, waits, strict=True):
                if isinstance(thing, asyncio.Event):
                    wait.cancel()

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(REAP_EVERY)
            reap_orphans(self._child.pid)


def _cannot_bind(host: str, port: int) -> str | None:
    """Why SGLang could not listen there, or None."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _with_status(record: WorkerRecord, status: str) -> WorkerRecord:
    return dataclasses.replace(record, status=status)


def _shown(command: list[str]) -> list[str]:
    """The command for the log, without an API key."""
    shown, hide = [], False
    for token in command:
        name, equals, _ = token.partition("=")
        shown.append("***" if hide else f"{name}=***" if equals and name.endswith("api-key") else token)
        hide = token in ("--api-key", "--admin-api-key")
    return shown
