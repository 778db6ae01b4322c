"""Random life cycles of requests: what engines do, what clients do, who leaves when. All drawn from one seeded generator."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections import Counter
from typing import Any

PREFILL = ["ok"] * 12 + ["status:400", "status:500", "status:503", "reset", "close", "hang", "halfhead", "garbage", "slow:8", "oneshot", "fin", "eof"]
DECODE = PREFILL + ["ok"] * 6 + ["cut:2", "rst:2", "cut:0", "late", "stall:0", "stall:3", "event:500", "event:503", "continue", "big:40"]
CLIENT = ["read"] * 8 + ["half_request", "no_wait", "wait_a_bit", "mid_stream", "never_read", "reset", "half_close", "keep_alive", "pipeline", "garbage"]
PATHS = ["/v1/chat/completions"] * 4 + ["/v1/completions", "/v1/responses", "/v1/messages", "/generate", "/v1/messages/count_tokens"]


class Wire(asyncio.Protocol):
    """A client connection that can do what it should not."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.closed = False
        self.waiter: asyncio.Future | None = None
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def until(self, done: Any, timeout: float) -> bool:
        """Wait for `done(buffer)`, the end of the connection, or the time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while not self.closed and not done(self.buffer):
            self.waiter = loop.create_future()
            timer = loop.call_at(end, self._wake)
            await self.waiter
            timer.cancel()
            if loop.time() >= end:
                return False
        return not self.closed

    def reset(self) -> None:
        sock = self.transport.get_extra_info("socket")
        if sock is not None and not self.closed:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.transport.abort()


def whole(buffer: bytes) -> bool:
    """A complete answer is there."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = bytes(buffer[:end]).lower()
    at = head.find(b"content-length: ")
    if at >= 0:
        length = int(head[at + 16:].split(b"\r\n")[0])
        return len(buffer) >= end + 4 + length
    return buffer.endswith(b"0\r\n\r\n")


def request(rng: random.Random, stream: bool) -> bytes:
    path = rng.choice(PATHS)
    body: dict[str, Any] = {"model": "fake", "stream": stream, "max_tokens": rng.choice((1, 4, 12)),
                            "fault": {"prefill": rng.choice(PREFILL), "decode": rng.choice(DECODE)}}
    if rng.random() < 0.02:
        body["routed_dp_rank"] = 1
    if rng.random() < 0.02:
        body["model"] = "absent"
    if rng.random() < 0.1:
        body["pad"] = "x" * rng.choice((1000, 40_000, 200_000))
    raw = json.dumps(body).encode()
    if rng.random() < 0.02:
        raw = raw[:-3]
    return b"POST %b HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(raw)) + raw


async def life(rng: random.Random, port: int, seen: Counter) -> None:
    """One request from its first byte to the end of its connection."""
    loop = asyncio.get_running_loop()
    how = rng.choice(CLIENT)
    data = request(rng, rng.random() < 0.6)
    try:
        _, wire = await loop.create_connection(Wire, "127.0.0.1", port)
    except OSError:
        seen["refused"] += 1
        return
    patience = 0.25
    write = wire.transport.write
    if how == "half_request":
        write(data[:rng.randrange(1, len(data))])
        await asyncio.sleep(0)
    elif how == "garbage":
        write(rng.randbytes(rng.randrange(1, 200)))
        await wire.until(whole, 0.05)
    elif how == "no_wait":
        write(data)
    elif how == "wait_a_bit":
        write(data)
        await asyncio.sleep(rng.random() * 0.01)
    elif how == "mid_stream":
        write(data)
        await wire.until(lambda b: len(b) > 300, patience)
    elif how == "never_read":
        wire.transport.pause_reading()
        write(data)
        await asyncio.sleep(rng.random() * 0.05)
    elif how == "half_close":
        write(data)
        wire.transport.write_eof()
        await wire.until(whole, patience)
    elif how == "reset":
        write(data)
        await asyncio.sleep(rng.random() * 0.01)
        wire.reset()
    elif how == "keep_alive":
        for _ in range(3):
            wire.buffer.clear()
            write(request(rng, rng.random() < 0.5))
            if not await wire.until(whole, patience):
                break
            seen["kept"] += 1
    elif how == "pipeline":
        write(data + request(rng, False) + request(rng, True))
        await wire.until(whole, patience)
    else:
        write(data)
        if await wire.until(whole, patience):
            seen[bytes(wire.buffer[9:12]).decode()] += 1
    seen[how] += 1
    wire.transport.abort()
