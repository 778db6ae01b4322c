"""The fault engine: one listening port, one role, requests that wait for their other leg and suffer what they were told to."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools

from infera_emulator.faults.replies import Reply

INFERENCE = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/generate"))
KINDS = """
ok                answer
status:N          answer with status N and a JSON error
reset close       end the connection before any answer byte (RST, FIN)
hang              never answer
halfhead garbage  a head that breaks off, bytes that are no HTTP
event:N           a 200 stream whose first event is an error with code N, as SGLang reports a failed transfer
cut:K rst:K       end in the middle of chunk K, between chunks K and K+1 with RST
stall:K           send K chunks, then nothing
late:K            everything but the terminating chunk, then RST
slow:MS           wait MS milliseconds before the answer
big:N             a stream of N chunks of 16 KiB
oneshot eof       a 'Connection: close' answer, a body that ends with the connection
fin               a whole answer, then FIN without having said so
continue          a 100 (Continue) before the answer
"""


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str = "ok"
    arg: int = 0

    @classmethod
    def parse(cls, text: Any) -> Fault:
        kind, _, arg = str(text or "ok").partition(":")
        return cls(kind, int(arg or 0))


class Rooms:
    """Where the two legs of a request find each other; shared by all engines of one process."""

    def __init__(self) -> None:
        self.waiting: dict[int, tuple[str, Call]] = {}
        self.mismatches: list[str] = []

    def meet(self, room: int, role: str, call: Call) -> Call | None:
        """The other leg when it is there; else this one waits."""
        other = self.waiting.get(room)
        if other is None or other[0] == role:
            self.waiting[room] = (role, call)
            return None
        del self.waiting[room]
        prefill, decode = (call, other[1]) if role == "prefill" else (other[1], call)
        for name in ("bootstrap_host", "bootstrap_port", "bootstrap_room", "disagg_prefill_dp_rank"):
            if prefill.body.get(name) != decode.body.get(name):
                self.mismatches.append(f"room {room}: {name} differs")
        if prefill.body.get("bootstrap_port") != prefill.engine.bootstrap_port:
            self.mismatches.append(f"room {room}: bootstrap_port is not the prefill's")
        ranks = prefill.engine.ranks
        if ranks > 1 and room % ranks != prefill.rank:
            self.mismatches.append(f"room {room}: not on rank {prefill.rank} of {ranks}")
        return other[1]

    def leave(self, call: Call) -> None:
        if self.waiting.get(call.room, (None, None))[1] is call:
            del self.waiting[call.room]


class FaultEngine:
    """A worker. `script(path, body)` may return a fault for a request; None leaves it to the body.

    `idle_close` seconds: an idle connection is closed then; 0 closes right after each answer without saying so, None never.
    """

    def __init__(self, role: str = "mixed", rooms: Rooms | None = None, ranks: int = 1, step: float = 0.0, idle_close: float | None = None,
                 script: Callable[[str, dict], Fault | None] | None = None, bootstrap_port: int = 0) -> None:
        self.role, self.rooms, self.ranks, self.step, self.idle_close, self.script = role, rooms or Rooms(), ranks, step, idle_close, script
        self.port = 0
        self.bootstrap_port = bootstrap_port
        self.seen: list[tuple[str, dict, dict[str, str]]] = []
        self.keep_seen = 200
        self.computed = 0
        self.requests = self.aborts = self.abandoned = self.connections_made = 0
        self.aborted: list[str] = []
        self.running: dict[Call, None] = {}
        self.connections: set[_Connection] = set()
        self.frozen = False  # loads stay what they are and nothing is answered: a stalled scheduler
        self.silent = False  # /v1/loads is not answered either
        self.queues: dict[str, int] = {}  # what /v1/loads says of queues instead of the truth
        self._server: asyncio.Server | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> FaultEngine:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self, loop), host, port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        if not self.bootstrap_port:
            self.bootstrap_port = self.port + 300
        self.host = host
        return self

    @property
    def worker_id(self) -> str:
        return f"{self.host}:{self.port}"

    def record(self, model: str = "fake", **more: Any) -> dict[str, Any]:
        """Its worker record."""
        meta: dict[str, Any] = {}
        if self.role != "mixed":
            params = {"bootstrap_addr": f"{self.host}:{self.bootstrap_port}"} if self.role == "prefill" else {}
            meta = {"protocol": "sglang-bootstrap", "params": params}
        return {"schema": 1, "worker_id": self.worker_id, "url": f"http://{self.worker_id}", "model_name": model, "engine": "sglang",
                "status": "active", "disagg_mode": self.role, "disagg_meta": meta, "dp_rank": None,
                "dp_size": self.ranks if self.ranks > 1 else None, "request_transport": "http", **more}

    def loads(self) -> dict[str, Any]:
        waiting = sum(1 for call in self.running if call.stage == "waiting")
        mode = {"prefill": "prefill", "decode": "decode"}.get(self.role, "null")
        return {"loads": [{"dp_rank": 0, "num_running_reqs": len(self.running) - waiting, "num_waiting_reqs": waiting,
                           "total_prefill_uncached_tokens": self.computed,
                           "disaggregation": {"mode": mode, "prefill_bootstrap_queue_reqs": waiting, "prefill_inflight_queue_reqs": 0,
                                             **self.queues}}]}

    def drop_connections(self) -> None:
        """Reset everything, as a killed process does."""
        for connection in list(self.connections):
            connection.reset()

    async def stop(self, reset: bool = True) -> None:
        if self._server is not None:
            self._server.close()
        if reset:
            self.drop_connections()
        await asyncio.sleep(0)


class Call:
    """One inference request at one engine."""

    __slots__ = ("engine", "connection", "path", "body", "room", "rank", "fault", "stage", "task", "rid", "__weakref__")

    def __init__(self, engine: FaultEngine, connection: _Connection, path: str, body: dict, headers: dict[str, str]) -> None:
        self.engine, self.connection, self.path, self.body = engine, connection, path, body
        self.room = body.get("bootstrap_room", -1)
        rank = headers.get("x-data-parallel-rank")
        self.rank = int(rank) if rank is not None else body.get("routed_dp_rank", 0)
        self.rid = body.get("rid") if isinstance(body.get("rid"), str) else ""
        fault = engine.script(path, body) if engine.script is not None else None
        if fault is None:
            named = body.get("fault")
            fault = Fault.parse(named.get(engine.role) if isinstance(named, dict) else named)
        self.fault = fault
        self.stage = "waiting"
        self.task: asyncio.Task | None = None

    def begin(self) -> None:
        engine = self.engine
        engine.running[self] = None
        kind = self.fault.kind
        if engine.frozen or kind == "hang":
            return
        if kind in ("status", "reset", "close", "halfhead", "garbage"):
            self._fail(kind)
            return
        if engine.role == "mixed" or self.path.endswith("count_tokens"):
            self.answer()
            return
        other = engine.rooms.meet(self.room, engine.role, self)
        if other is not None:
            other.answer()
            self.answer()

    def _fail(self, kind: str) -> None:
        connection = self.connection
        if kind == "status":
            status = self.fault.arg
            message = {"object": "error", "message": f"made to fail at {self.engine.worker_id}", "type": "Made", "code": status}
            connection.reply(status, json.dumps({"error": message}).encode())
            self.end()
            return
        self.end()
        if kind == "reset":
            connection.reset()
        elif kind == "close":
            connection.transport.close()
        elif kind == "halfhead":
            connection.transport.write(b"HTTP/1.1 200 OK\r\ncontent-ty")
            connection.transport.close()
        else:
            connection.transport.write(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
            connection.transport.close()

    def answer(self) -> None:
        if self.stage != "waiting":
            return
        self.stage = "running"
        self.engine.computed += 1
        self.task = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        try:
            fault = self.fault
            if fault.kind == "slow":
                await asyncio.sleep(fault.arg / 1000)
            if fault.kind == "continue":
                self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            try:
                reply = Reply(self.path, self.body, self.rid or "made-up")
            except (TypeError, ValueError, KeyError, AttributeError):
                self.connection.reply(400, b'{"error":{"message":"the body makes no sense","code":400}}')
                return
            if self.body.get("stream") is True:
                await self._stream(reply)
            else:
                self._whole(reply)
        finally:
            self.end()

    def _whole(self, reply: Reply) -> None:
        connection, kind = self.connection, self.fault.kind
        body = reply.whole()
        if kind in ("cut", "rst", "late"):
            connection.head(200, b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body))
            connection.transport.write(body[:len(body) // 2])
            connection.reset_after_flush()
        elif kind == "stall":
            connection.head(200, b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body))
            connection.transport.write(body[:len(body) // 2])
            self.stage = "stalled"
        elif kind == "eof":
            connection.head(200, b"content-type: application/json\r\nconnection: close\r\n")
            connection.transport.write(body)
            connection.transport.close()
        else:
            connection.reply(200, body, close=kind == "oneshot", silent=kind == "fin")

    async def _stream(self, reply: Reply) -> None:
        connection, fault = self.connection, self.fault
        write = connection.write_chunk
        if fault.kind == "eof":
            connection.head(200, b"content-type: text/event-stream\r\nconnection: close\r\n")
            connection.transport.write(b"".join(reply.events()))
            connection.transport.close()
            return
        connection.head(200, b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
                        + (b"connection: close\r\n" if fault.kind == "oneshot" else b""))
        if fault.kind == "event":
            error = {"object": "error", "message": f"Lost connection with prefill instance {self.engine.worker_id}", "code": fault.arg}
            write(b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
            write(b"data: [DONE]\n\n")
            connection.finish()
            return
        if fault.kind == "big":
            for _ in range(fault.arg):
                await connection.room()
                write(b"data: " + b"x" * 16376 + b"\n\n")
            write(b"data: [DONE]\n\n")
            connection.finish()
            return
        for number, event in enumerate(reply.events()):
            if number == fault.arg and fault.kind in ("cut", "rst", "stall"):
                if fault.kind == "stall":
                    self.stage = "stalled"
                    return
                if fault.kind == "cut":
                    connection.transport.write(b"%x\r\n" % len(event) + event[:len(event) // 2])
                connection.reset_after_flush()
                return
            write(event)
            if self.engine.step:
                await asyncio.sleep(self.engine.step)
        if fault.kind == "late":
            connection.reset_after_flush()
            return
        connection.finish(close=fault.kind == "oneshot", silent=fault.kind == "fin")

    def end(self) -> None:
        if self.stage == "stalled":
            return
        if self.stage != "over":
            self.stage = "over"
            self.engine.running.pop(self, None)
            self.engine.rooms.leave(self)
            if self.connection.call is self:
                self.connection.call = None

    def stop(self) -> None:
        """Its client has gone, or named it in an abort."""
        if self.stage == "stalled":
            self.stage = "running"
        if self.task is not None:
            self.task.cancel()
        self.end()


class _Connection(asyncio.Protocol):
    def __init__(self, engine: FaultEngine, loop: asyncio.AbstractEventLoop) -> None:
        self.engine, self.loop = engine, loop
        self.parser = httptools.HttpRequestParser(self)
        self.call: Call | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._writable: asyncio.Future | None = None
        self._paused = False
        self._begin()

    def _begin(self) -> None:
        self.path, self.parts, self.headers = "", [], {}

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.engine.connections.add(self)
        self.engine.connections_made += 1
        self._idle()

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.connections.discard(self)
        if self.timer is not None:
            self.timer.cancel()
        if self._writable is not None and not self._writable.done():
            self._writable.cancel()
        if self.call is not None:
            self.engine.abandoned += 1
            self.call.stop()
        self.parser = None

    def _idle(self) -> None:
        if self.engine.idle_close:
            self.timer = self.loop.call_later(self.engine.idle_close, self.transport.close)

    def data_received(self, data: bytes) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.path += url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode("latin-1")

    def on_body(self, part: bytes) -> None:
        self.parts.append(part)

    def on_message_complete(self) -> None:
        path, raw, headers = self.path.partition("?")[0], b"".join(self.parts), self.headers
        self._begin()
        engine = self.engine
        if path in INFERENCE:
            engine.requests += 1
            body = json.loads(raw)
            if not isinstance(body.get("bootstrap_room", 0), int):
                self.reply(400, b'{"error":{"message":"bootstrap_room","code":400}}')
                return
            if len(engine.seen) < engine.keep_seen:
                engine.seen.append((path, body, headers))
            self.call = Call(engine, self, path, body, headers)
            self.call.begin()
        elif path == "/abort_request":
            rid = json.loads(raw)["rid"]
            engine.aborts += 1
            engine.aborted.append(rid)
            for call in [c for c in engine.running if c.rid == rid]:
                call.stop()
            self.reply(200, b"")
        elif path == "/v1/loads" and engine.silent:
            pass
        elif path == "/v1/loads":
            self.reply(200, json.dumps(engine.loads()).encode())
        elif path == "/health_generate" and engine.frozen:
            pass
        elif path in ("/health", "/health_generate"):
            self.reply(200, b"")
        else:
            self.reply(404, b'{"error":"not found"}')

    def head(self, status: int, lines: bytes) -> None:
        self.transport.write(b"HTTP/1.1 %d X\r\ndate: Tue, 01 Dec 2026 00:00:00 GMT\r\nserver: made-up\r\n%b\r\n" % (status, lines))

    def reply(self, status: int, body: bytes, close: bool = False, silent: bool = False) -> None:
        self.head(status, b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body) + (b"connection: close\r\n" if close else b""))
        self.transport.write(body)
        self._after(close or silent)

    def write_chunk(self, payload: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(payload), payload))

    def finish(self, close: bool = False, silent: bool = False) -> None:
        self.transport.write(b"0\r\n\r\n")
        self._after(close or silent)

    def _after(self, close: bool) -> None:
        if close or self.engine.idle_close == 0:
            self.transport.close()
        else:
            self._idle()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    async def room(self) -> None:
        """Wait until the socket takes more."""
        if self._paused:
            self._writable = self.loop.create_future()
            await self._writable
        else:
            await asyncio.sleep(0)

    def reset(self) -> None:
        """End with RST, unsent bytes lost."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            except OSError:
                pass
        self.transport.abort()

    def reset_after_flush(self) -> None:
        """RST once what was written has had time to leave."""
        self.loop.call_later(0.003, self.reset)
