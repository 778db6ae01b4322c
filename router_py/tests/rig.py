"""A router and fault engines in one process, and a client that says what came over the wire."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from dataclasses import dataclass, field, replace
from typing import Any

import uvloop
from infera_emulator.faults import FaultEngine, Rooms
from infera_router.app import App
from infera_router.fleet.record import parse
from infera_router.policy.api import PolicySettings
from infera_router.settings import Settings

DEMAND = PolicySettings(decode_input_demand="on", decode_request_weight=1000.0)


def run(coroutine: Any) -> Any:
    """Run on the loop that the router uses."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    raw: bytes  # body as it came, chunk framing included
    body: bytes
    complete: bool  # the body ended as its framing says

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int, **kwargs: Any) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24, **kwargs))

    def send(self, path: str = "/v1/chat/completions", body: Any = None, method: str = "POST", headers: dict[str, str] | None = None,
             version: str = "1.1") -> None:
        raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/{version}", "Host: test"] + [f"{k}: {v}" for k, v in (headers or {}).items()]
        if body is not None:
            lines.append(f"Content-Length: {len(raw)}")
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)

    async def head(self) -> tuple[int, dict[str, str]]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *rest = head.split("\r\n")
        return int(first.split()[1]), {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in rest if line)}

    async def answer(self) -> Answer:
        status, headers = await self.head()
        if status == 100:
            status, headers = await self.head()
        raw, body, complete = bytearray(), bytearray(), True
        try:
            if headers.get("transfer-encoding") == "chunked":
                while True:
                    line = await self.reader.readuntil(b"\r\n")
                    size = int(line, 16)
                    part = await self.reader.readexactly(size + 2)
                    raw += line + part
                    body += part[:-2]
                    if not size:
                        break
            elif "content-length" in headers:
                body = raw = bytearray(await self.reader.readexactly(int(headers["content-length"])))
            elif status not in (204, 304):
                body = raw = bytearray(await self.reader.read())
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            partial = getattr(error, "partial", b"")
            raw, body, complete = raw + partial, body + partial, False
        return Answer(status, headers, bytes(raw), bytes(body), complete)

    async def closed(self, timeout: float = 2.0) -> bool:
        """Whether the router closes this connection."""
        try:
            return await asyncio.wait_for(self.reader.read(1), timeout) == b""
        except ConnectionError:
            return True
        except asyncio.TimeoutError:
            return False

    def close(self, reset: bool = False) -> None:
        if reset:
            sock = self.writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.writer.transport.abort()
        else:
            self.writer.close()


@dataclass
class Rig:
    """`async with Rig(...)`: a router over engines of the given roles; `engines["prefill"][0]` and so on."""

    prefills: int = 1
    decodes: int = 1
    mixed: int = 0
    prefill_ranks: int = 1
    decode_ranks: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    policy: PolicySettings = DEMAND
    engine: dict[str, Any] = field(default_factory=dict)
    records: dict[str, Any] = field(default_factory=dict)
    ledger: Any = None

    async def __aenter__(self) -> Rig:
        self.rooms = Rooms()
        self.engines: dict[str, list[FaultEngine]] = {"prefill": [], "decode": [], "mixed": []}
        for role, count in (("prefill", self.prefills), ("decode", self.decodes), ("mixed", self.mixed)):
            ranks = {"prefill": self.prefill_ranks, "decode": self.decode_ranks, "mixed": 1}[role]
            for _ in range(count):
                self.engines[role].append(await FaultEngine(role, self.rooms, ranks, **self.engine).start())
        self.app = App(Settings(policy=self.policy, **self.settings), ledger=self.ledger)
        self.register()
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        sock.listen(1024)
        sock.setblocking(False)
        self.port = sock.getsockname()[1]
        await self.app.start(discover=False)
        await self.app.listen(sock)
        self.before = asyncio.all_tasks()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.app.stop()
        for engine in self.all():
            await engine.stop()
        await asyncio.sleep(0)

    def all(self) -> list[FaultEngine]:
        return [engine for engines in self.engines.values() for engine in engines]

    def register(self, without: FaultEngine | None = None, **changes: Any) -> None:
        records = {}
        for engine in self.all():
            if engine is not without:
                value = {**engine.record(), "generation": f"g-{engine.port}", **self.records.get(engine.role, {})}
                records[engine.worker_id] = replace(parse("/infera/workers/" + engine.worker_id, json.dumps(value).encode()), **changes)
        self.app.fleet.apply(records)

    async def client(self) -> Client:
        return await Client.open(self.port)

    async def ask(self, body: Any = None, path: str = "/v1/chat/completions", method: str = "POST", headers: dict[str, str] | None = None) -> Answer:
        client = await self.client()
        client.send(path, body, method, headers)
        answer = await asyncio.wait_for(client.answer(), 20)
        client.close()
        return answer

    def chat(self, stream: bool = False, fault: Any = None, **more: Any) -> dict[str, Any]:
        body: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "stream": stream, **more}
        if fault is not None:
            body["fault"] = fault
        return body

    async def settle(self, timeout: float = 5.0) -> None:
        """Wait until nothing runs any more, then check that nothing is left behind."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while loop.time() < end and not self.quiet():
            await asyncio.sleep(0.01)
        assert self.quiet(), self.state()

    def quiet(self) -> bool:
        core = self.app.core
        return not (core.live or core.orphans or core.policy.open_leases or any(engine.running for engine in self.all())
                    or any(h.requests or h.tokens or h.unknown for h in core.policy.demand()) or any(core.inflight.values()))

    def state(self) -> dict[str, Any]:
        core = self.app.core
        return {"live": len(core.live), "orphans": len(core.orphans), "leases": core.policy.open_leases, "demand": core.policy.demand(),
                "inflight": core.inflight, "running": {e.worker_id: [(c.path, c.fault, c.stage) for c in e.running] for e in self.all()}}

    def metric(self, name: str, *labels: str) -> float:
        """One value of a counter or gauge, 0 where there is none."""
        return self.app.core.store.numbers.get(name, {}).get(labels, 0)
