"""Connections to engines: pooled, watched for their end, and one exchange at a time on each.

A `Leg` is one request to one engine. It ends exactly once, by `leg_done` or `leg_failed` of its owner, or silently by `cancel`.
SGLang closes idle connections after 5 s, so ours are closed after 3 s and asked for EOF before reuse; a leg whose *reused* connection
breaks before any answer byte is sent once more, unchanged, on a fresh one.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from infera_router.http.outbox import Outbox
from infera_router.http.wire import LONGEST, MAX_HEAD, NONE, UNTIL_EOF, WHOLE, Framing, Head, WireError, parse_head

log = logging.getLogger(__name__)

IDLE_S = 3.0
SWEEP_S = 0.25
# A host that vanished without a word is noticed after about 20 s, also while its answer is waited for.
SOCKET_OPTIONS = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
                  (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10), (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 3),
                  (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3), (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000))
PEEK_AFTER_S = 0.005  # an idle time in which the event loop has surely not looked at the socket yet need not be asked for


class Owner(Protocol):
    """What a leg tells its owner. `leg_head` comes once, for the final answer; `leg_data` gives raw body bytes as they came.

    `crash`: one of the others raised, which is a fault of the router; the owner ends whatever state it is in.
    """

    def leg_head(self, leg: Leg, head: Head) -> None: ...
    def leg_data(self, leg: Leg, data: bytes) -> None: ...
    def leg_done(self, leg: Leg) -> None: ...
    def leg_failed(self, leg: Leg, kind: str, detail: str) -> None: ...
    def crash(self) -> None: ...


class Leg:
    """One request to one engine. `parts` are the bytes to send, kept until the first answer byte in case they must be sent again.

    kinds of failure: connect, reset, eof, protocol.
    """

    __slots__ = ("owner", "role", "worker_id", "pool", "parts", "conn", "task", "head", "ended", "sent_at", "fresh", "paused", "mark", "sink", "whole")

    def __init__(self, owner: Owner, role: str, worker_id: str, pool: EnginePool, parts: Sequence[bytes | memoryview]) -> None:
        self.owner, self.role, self.worker_id, self.pool = owner, role, worker_id, pool
        self.parts: Sequence[bytes | memoryview] | None = parts
        self.conn: EngineConnection | None = None
        self.task: asyncio.Task | None = None
        self.head: Head | None = None
        self.ended = False
        self.fresh = False
        self.paused = False
        # Both may be set to shorter ways once it is clear what the answer is; `whole` gets reads that are exactly one chunk, without the leg.
        self.sink = owner.leg_data
        self.whole: Callable[[bytes], None] | None = None
        self.mark = 0  # after a break in mid-body: bytes that the current chunk still owes, -1 where its size is not known
        self.sent_at = monotonic()

    def hand_to(self, owner: Owner) -> None:
        """From here on another owner is told of everything."""
        self.owner, self.sink, self.whole = owner, owner.leg_data, None
        if self.conn is not None:
            self.conn.whole = None

    def start(self) -> None:
        conn = self.pool.take(self.sent_at)
        if conn is None:
            self._connect()
        else:
            conn.begin(self)

    def _connect(self) -> None:
        self.fresh = True
        self.task = self.pool.loop.create_task(self.pool.connect(self))

    def broken(self, kind: str, detail: str) -> None:
        """The connection broke. Repeats once where the engine cannot have seen the request for certain; else it is a failure."""
        self.conn = None
        if self.ended:
            return
        if not self.fresh and self.parts is not None and kind in ("reset", "eof"):
            self.pool.stats.repeats += 1
            self._connect()
            return
        self.ended = True
        try:
            self.owner.leg_failed(self, kind, detail)
        except Exception:
            log.exception("the end of a leg could not be handled")
            self.owner.crash()

    def cancel(self) -> None:
        """Close the connection and say nothing more; the engine sees its client go."""
        if self.ended:
            return
        self.ended = True
        self.parts = None
        if self.task is not None:
            self.task.cancel()
            self.task = None
        conn, self.conn = self.conn, None
        if conn is not None:
            conn.leg = conn.whole = None
            conn.close()

    def owed(self) -> int:
        """Bytes that the current chunk or the body still lacks, also after a break; -1 where that is not known."""
        return self.mark if self.conn is None else self.conn.owed()

    def pause(self) -> None:
        self.paused = True
        if self.conn is not None and not self.ended:
            self.conn.pause()

    def resume(self) -> None:
        self.paused = False
        if self.conn is not None and not self.ended:
            self.conn.resume()


class Stats:
    """Counters of all pools together."""

    __slots__ = ("opened", "reused", "repeats", "stale")

    def __init__(self) -> None:
        self.opened = self.reused = self.repeats = self.stale = 0


class EngineConnection(asyncio.Protocol):
    __slots__ = ("pool", "transport", "_poll", "leg", "whole", "idle_since", "_head", "_framing", "_reusable", "_paused", "lost")

    def __init__(self, pool: EnginePool) -> None:
        self.pool = pool
        self.transport: asyncio.Transport | None = None
        self.leg: Leg | None = None
        # The leg's, while a chunk may begin: what else a token would touch has gone cold when hundreds of streams run.
        self.whole: Callable[[bytes], None] | None = None
        self.idle_since = 0.0
        self._head = b""
        self._framing: Framing | None = None
        self._reusable = True
        self._paused = False
        self._poll: select.poll | None = None
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        sock = transport.get_extra_info("socket")
        for level, option, value in SOCKET_OPTIONS:
            sock.setsockopt(level, option, value)
        self.pool.open += 1
        self.pool.stats.opened += 1

    def begin(self, leg: Leg) -> None:
        self.leg = leg
        leg.conn = self
        self.pool.send(self.transport, leg.parts)

    def data_received(self, data: bytes) -> None:
        whole = self.whole
        if whole is not None:
            size = len(data)
            if size < LONGEST and data.startswith(WHOLE[size]):
                whole(data)
                return
            self.whole = None
        leg = self.leg
        if leg is None:
            self._drop()  # bytes that nobody asked for: what follows on this connection cannot be trusted
            return
        framing = self._framing
        if framing is None:
            self._read_head(leg, data)
            return
        try:
            end = framing.feed(data)
        except WireError as error:
            self._wrong(leg, str(error))
            return
        if end < 0:
            leg.sink(leg, data)
            if framing.even and self.leg is leg:
                self.whole = leg.whole
            return
        if end < len(data):
            self._reusable = False
            data = data[:end]
        if data:
            leg.sink(leg, data)
        self._finish(leg)

    def _read_head(self, leg: Leg, data: bytes) -> None:
        if self._head:
            data = self._head + data
        else:
            leg.parts = None  # an answer byte came: this request is never sent again on another connection
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > MAX_HEAD:
                self._wrong(leg, "head without an end")
            else:
                self._head = data
            return
        try:
            head = parse_head(data[:end])
        except WireError as error:
            self._wrong(leg, str(error))
            return
        rest = data[end + 4:]
        if head.status < 200:
            self._head = b""
            if head.status == 101:
                self._wrong(leg, "101 was not asked for")
            elif rest:
                self._read_head(leg, rest)
            return
        self._head = b""
        self._reusable = head.keep_alive
        leg.head = head
        framing = self._framing = Framing(head)
        leg.owner.leg_head(leg, head)
        if self.leg is not leg:  # the owner cancelled it
            return
        if framing.empty():
            if rest or head.framing == NONE and head.length:
                self._reusable = False
            self._finish(leg)
        elif rest:
            self.data_received(rest)

    def _finish(self, leg: Leg) -> None:
        if self.leg is not leg:
            return
        self.leg = self.whole = self._framing = None
        if leg.ended:
            self.close()
            return
        leg.ended = True
        leg.conn = None
        if self._paused:
            self.resume()
        if self._reusable and not self.lost:
            self.pool.give(self)
        else:
            self.close()
        try:
            leg.owner.leg_done(leg)
        except Exception:
            log.exception("the end of a leg could not be handled")
            leg.owner.crash()

    def _wrong(self, leg: Leg, detail: str) -> None:
        self.leg = self.whole = self._framing = None
        self.close()
        leg.broken("protocol", detail)

    def eof_received(self) -> None:
        self.pool.forget(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.pool.forget(self)
        self.pool.open -= 1
        leg, framing = self.leg, self._framing
        self.leg = self.whole = self._framing = None
        if leg is None or leg.ended:
            return
        if exc is None and framing is not None and framing.kind == UNTIL_EOF:
            leg.ended = True
            leg.conn = None
            leg.owner.leg_done(leg)
            return
        if framing is not None:
            leg.mark = framing.owed()
        leg.broken("eof" if exc is None else "reset", "" if exc is None else str(exc))

    def owed(self) -> int:
        return -1 if self._framing is None else self._framing.owed()

    def ended_by_peer(self) -> bool:
        """True when EOF, an error or stray bytes wait in the socket."""
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(self._poll.poll(0))

    def pause(self) -> None:
        if not self._paused and not self.lost:
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._paused and not self.lost:
            self._paused = False
            self.transport.resume_reading()

    def _drop(self) -> None:
        self.pool.forget(self)
        self.close()

    def close(self) -> None:
        """Abort: nothing that is still unsent matters to anybody."""
        if self.transport is not None and not self.lost:
            self.transport.abort()


class EnginePool:
    """Idle connections to one engine, newest last."""

    def __init__(self, engines: Engines, host: str, port: int) -> None:
        self.engines, self.host, self.port = engines, host, port
        self.loop = engines.loop
        self.stats = engines.stats
        self.send = engines.outbox.send
        self.idle: list[EngineConnection] = []
        self.open = 0
        self.retired = False
        self.authority = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode()

    def take(self, now: float) -> EngineConnection | None:
        idle = self.idle
        while idle:
            conn = idle.pop()
            age = now - conn.idle_since
            if age < PEEK_AFTER_S or (age < IDLE_S and not conn.ended_by_peer()):
                self.stats.reused += 1
                return conn
            self.stats.stale += 1
            conn.close()
        return None

    def give(self, conn: EngineConnection) -> None:
        if self.retired:
            conn.close()
            return
        conn.idle_since = monotonic()
        self.idle.append(conn)
        self.engines.wake()

    def forget(self, conn: EngineConnection) -> None:
        if conn.leg is None:
            try:
                self.idle.remove(conn)
            except ValueError:
                pass

    async def connect(self, leg: Leg) -> None:
        """Open a connection and begin the leg on it; runs as the leg's task, which `Leg.cancel` may cancel at any moment."""
        late = False

        def give_up() -> None:
            nonlocal late
            late = True
            task.cancel()

        task = leg.task
        timer = self.loop.call_later(self.engines.connect_timeout, give_up)
        detail = ""
        try:
            conn = await self._open()
        except OSError as error:
            conn, detail = None, error.strerror or str(error)
        except asyncio.CancelledError:
            if not late:
                raise
            conn, detail = None, f"no connection within {self.engines.connect_timeout:g} s"
        finally:
            timer.cancel()
        leg.task = None
        if conn is None:
            leg.broken("connect", detail)
        elif leg.ended:
            conn.close()
        else:
            conn.begin(leg)
            if leg.paused:
                conn.pause()

    async def _open(self) -> EngineConnection:
        conn = EngineConnection(self)
        try:
            # by address: uvloop's way over a socket of one's own costs 200 us more
            await self.loop.create_connection(lambda: conn, self.host, self.port)
        except BaseException:
            conn.close()
            raise
        return conn

    def close(self) -> None:
        self.retired = True
        while self.idle:
            self.idle.pop().close()


class Engines:
    """The pools of all engines, by worker id."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connect_timeout: float = 5.0, clock: Callable[[], float] = monotonic) -> None:
        self.loop, self.connect_timeout, self._clock = loop, connect_timeout, clock
        self.stats = Stats()
        self.outbox = Outbox(loop)
        self._pools: dict[str, EnginePool] = {}
        self._timer: asyncio.TimerHandle | None = None

    def pool(self, worker_id: str, host: str, port: int) -> EnginePool:
        pool = self._pools.get(worker_id)
        if pool is None or pool.host != host or pool.port != port:
            if pool is not None:
                pool.close()
            pool = self._pools[worker_id] = EnginePool(self, host, port)
        return pool

    def retire(self, worker_id: str) -> None:
        """The worker left: its idle connections are closed, busy ones close when they end."""
        pool = self._pools.pop(worker_id, None)
        if pool is not None:
            pool.close()

    def wake(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now = self._clock()
        left = False
        for pool in self._pools.values():
            idle = pool.idle
            while idle and now - idle[0].idle_since > IDLE_S - SWEEP_S:
                idle.pop(0).close()
            left = left or bool(idle)
        if left:
            self.wake()

    def open_connections(self) -> int:
        return sum(pool.open for pool in self._pools.values())

    def idle_connections(self) -> int:
        return sum(len(pool.idle) for pool in self._pools.values())

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
