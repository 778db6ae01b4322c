"""One process of `--workers N`, as its App sees the others: its place, its share of the ledger, and their pages."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import Any

from infera_router.process.board import Board
from infera_router.process.channel import Channel
from infera_router.process.parent import VARIABLE


class Place:
    """What the parent passed on to this process."""

    def __init__(self, text: str) -> None:
        value = json.loads(text)
        self.index: int = value["index"]
        self.processes: int = value["processes"]
        self.region: int = value["region"]
        self.listener = socket.socket(fileno=value["listener"])
        self.channel = socket.socket(fileno=value["channel"])
        self.inbox = socket.socket(fileno=value["inbox"])
        self.board = Board(value["board"], self.processes, self.index)
        self.others = {index: socket.socket(fileno=fd) for index, fd in enumerate(value["others"])}

    @classmethod
    def from_environment(cls) -> Place | None:
        text = os.environ.pop(VARIABLE, "")
        return cls(text) if text else None


class Siblings:
    """The line to the parent. `dump` gives what this process counted; `gone` is called when the parent has died."""

    def __init__(self, dump: Callable[[], dict], gone: Callable[[], None]) -> None:
        self._dump = dump
        self._channel = Channel(self._answer, gone)

    async def open(self, sock: socket.socket) -> None:
        await self._channel.open(sock)

    async def _answer(self, question: str, data: Any) -> Any:
        return self._dump()

    async def serving(self) -> None:
        await self._channel.ask("serving", timeout=5.0)

    async def all(self) -> dict[str, Any]:
        """`dumps` of every process that could be asked, this one's first of all; `retired` counters; `restarts` of processes."""
        return await self._channel.ask("dumps", self._dump(), timeout=3.0)

    def close(self) -> None:
        self._channel.close()
