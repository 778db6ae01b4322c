"""The lanes of a trace over HTTP, in real time: the same turns as on the virtual clock, sent to a router as chats."""
from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools

from .figures import Figures, Record, summarise
from .parameters import Case, Parameters
from .trace import Turn, turns


class ReplayError(Exception):
    """A request that was not answered as it should be."""


class Answer(asyncio.Protocol):
    """One connection; one request at a time. `first` and `end` are loop times of the first token and of the last byte."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.status = 0
        self.body = b""
        self.first = self.end = 0.0
        self._done: asyncio.Future | None = None
        self._parser: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def ask(self, data: bytes) -> asyncio.Future:
        self._done = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._tail, self.first = [], 0.0
        self.transport.write(data)
        return self._done

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        if not self.first and b" tok" in body:
            self.first = asyncio.get_running_loop().time()
        self._tail.append(body)
        if len(self._tail) > 8 and self.first:
            del self._tail[0]

    def on_message_complete(self) -> None:
        self.status, self.body, self.end = self._parser.get_status_code(), b"".join(self._tail), asyncio.get_running_loop().time()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ReplayError(f"the connection ended in the middle of an answer ({exc})"))


@dataclass(slots=True)
class Replay:
    """speed: how much faster than the trace; scale: words sent per prompt token (see Deployment). Times of the record are the trace's."""

    parameters: Parameters
    case: Case
    weight: float
    seed: int
    router: str
    decode: str
    model: str
    speed: float = 1.0
    scale: float = 1.0
    record: Record = field(default_factory=Record)
    errors: list[str] = field(default_factory=list)
    late: float = 0.0           # seconds of the trace that the end of a step came late, on average: this machine was busy

    async def run(self) -> Figures:
        p = self.parameters
        loop = asyncio.get_running_loop()
        begin = loop.time()
        lanes = [loop.create_task(self._lane(lane, begin)) for lane in range(self.case.lanes)]
        try:
            await asyncio.sleep(p.warmup_s / self.speed)
            before = await self._changed()
            await fetch(self.decode, "/emulator/reset")
            await asyncio.sleep(p.duration_s / self.speed)
            seen = json.loads(await fetch(self.decode, "/emulator/record"))
            changed = await self._changed() - before
        finally:
            for task in lanes:
                task.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
        self.late = seen["behind"] * self.speed / (len(seen["steps"]) or 1)
        self.errors += seen["errors"]
        self.record.busiest, self.record.busiest_tokens, self.record.steps = seen["busiest"], seen["busiest_tokens"], seen["steps"]
        return summarise(self.record, self.weight, self.seed, p.duration_s, changed, seen["retracted"])

    async def _changed(self) -> int:
        """Demand decisions so far that differ from the ordinary policy's, from the router's metrics."""
        for line in (await fetch(self.router, "/metrics")).decode().splitlines():
            if line.startswith("infera_router_decode_demand_decisions_total") and 'outcome="disagree"' in line:
                return int(float(line.rpartition(" ")[2]))
        return 0

    async def _lane(self, lane: int, begin: float) -> None:
        loop, parts = asyncio.get_running_loop(), urlsplit(self.router)
        measured = begin + self.parameters.warmup_s / self.speed
        over = measured + self.parameters.duration_s / self.speed
        connection = None
        for turn in turns(self.parameters, self.seed, lane):
            await asyncio.sleep(turn.think / self.speed)
            try:
                if connection is None or connection.transport.is_closing():
                    _transport, connection = await loop.create_connection(Answer, parts.hostname, parts.port)
                sent = loop.time()
                await connection.ask(self._request(turn, lane))
                self._check(connection, turn)
            except (OSError, ReplayError, httptools.HttpParserError) as error:
                self.errors.append(f"lane {lane} turn {turn.number}: {error}")
                connection = None
                continue
            if measured <= connection.end <= over:
                s = self.speed
                self.record.request(turn.context, turn.output, (sent - begin) * s, (connection.first - begin) * s, (connection.end - begin) * s)

    def _request(self, turn: Turn, lane: int) -> bytes:
        body = json.dumps({
            "model": self.model, "messages": [{"role": "user", "content": "w " * max(int(turn.context * self.scale), 1)}], "stream": True,
            "max_completion_tokens": turn.output, "ignore_eos": True, "stream_options": {"include_usage": True}, "emulated_new_tokens": turn.new,
        }).encode()
        return (f"POST /v1/chat/completions HTTP/1.1\r\nHost: replay\r\nContent-Type: application/json\r\nX-Correlation-ID: {self.seed}-{lane}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n").encode() + body

    def _check(self, got: Answer, turn: Turn) -> None:
        if got.status != 200:
            raise ReplayError(f"status {got.status}: {got.body[:200]!r}")
        if not got.body.endswith(b"data: [DONE]\n\n") or b'"completion_tokens": %d,' % turn.output not in got.body:
            raise ReplayError(f"a stream without its usage or end: {got.body[-200:]!r}")


async def fetch(url: str, path: str, timeout: float = 30.0) -> bytes:
    """GET; raises ReplayError for anything but 200."""
    parts = urlsplit(url)
    connection: Any
    _transport, connection = await asyncio.get_running_loop().create_connection(Answer, parts.hostname, parts.port)
    connection.first = 1.0

    def keep(body: bytes) -> None:
        connection._tail.append(body)

    connection.on_body = keep
    try:
        await asyncio.wait_for(connection.ask(f"GET {path} HTTP/1.1\r\nHost: replay\r\n\r\n".encode()), timeout)
        if connection.status != 200:
            raise ReplayError(f"{url}{path}: status {connection.status}")
        return connection.body
    finally:
        connection.transport.close()


async def wait_ready(url: str, seconds: float) -> None:
    """Until the router's /ready answers 200. Raises ReplayError when the time is over."""
    end = time.monotonic() + seconds
    while True:
        try:
            await fetch(url, "/ready")
            return
        except (OSError, ReplayError, asyncio.TimeoutError):
            if time.monotonic() > end:
                raise ReplayError(f"{url}/ready was not 200 within {seconds:g} s") from None
            await asyncio.sleep(0.1)
