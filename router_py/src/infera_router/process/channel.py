"""The line between the parent and one process of `--workers N`: JSON lines over a socket pair, questions and answers in both directions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

log = logging.getLogger(__name__)

MAX_LINE = 1 << 27
_encode, _decode = msgspec.json.encode, msgspec.json.decode


class Channel:
    """`answer(question, data)` is called for the other side's questions; `ask` raises TimeoutError or ConnectionError. `gone` when it closed."""

    def __init__(self, answer: Callable[[str, Any], Awaitable[Any]], gone: Callable[[], None]) -> None:
        self._answer, self._gone = answer, gone
        self._waiting: dict[int, asyncio.Future] = {}
        self._next = 0
        self._tasks: set[asyncio.Task] = set()
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, sock: socket.socket) -> None:
        reader, self._writer = await asyncio.open_connection(sock=sock, limit=MAX_LINE)
        self._spawn(self._read(reader))

    async def ask(self, question: str, data: Any = None, timeout: float = 1.0) -> Any:
        self._next += 1
        number = self._next
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send({"ask": question, "id": number, "data": data})
            return await asyncio.wait_for(future, timeout)
        finally:
            del self._waiting[number]

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        for task in list(self._tasks):
            task.cancel()

    def _send(self, message: dict[str, Any]) -> None:
        if self._writer is None or self._writer.is_closing():
            raise ConnectionError("the other process is gone")
        self._writer.write(_encode(message) + b"\n")

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                message = _decode(line)
                if "ask" in message:
                    self._spawn(self._reply(message))
                elif (future := self._waiting.get(message["id"])) is not None and not future.done():
                    future.set_result(message["data"])
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the other process is gone"))
        self._gone()

    async def _reply(self, message: dict[str, Any]) -> None:
        try:
            data = await self._answer(message["ask"], message["data"])
        except Exception:
            log.exception("a question of the other process could not be answered: %s", message["ask"])
            data = None
        with contextlib.suppress(ConnectionError):
            self._send({"id": message["id"], "data": data})
