"""Requests to engines, sent together at the end of the loop's round.

A write to a socket whose reader sleeps wakes it, which costs more than the write itself where that is an interrupt to another core. Written
one after the other the readers stay awake: at 32 connections that takes a quarter off a request's whole CPU (`make bench`, small_c32).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

log = logging.getLogger(__name__)

AT_ONCE = 2  # writes of a round do not wait while rounds are as small: a lone request's pair, whose workers can begin while the router goes on
TOGETHER = 64  # so many do not wait for the round's end, which bounds the delay to the handling of some thirty requests


class Outbox:
    """Only for transports on which nothing else is written before the answer: what waits here would be overtaken."""

    __slots__ = ("_loop", "_waiting", "_sent", "_at_once", "_flush")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[tuple[asyncio.WriteTransport, Sequence[bytes | memoryview]]] = []
        self._sent = 0  # in this round, with those that wait
        self._at_once = AT_ONCE
        self._flush = self.flush

    def send(self, transport: asyncio.WriteTransport, parts: Sequence[bytes | memoryview]) -> None:
        """Write `parts`, in order, now or at the end of the loop's round. A transport that closes before then gets nothing."""
        sent = self._sent
        if not sent:
            self._loop.call_soon(self._flush)
        self._sent = sent + 1
        if sent < self._at_once:
            _write(transport, parts)
            return
        self._waiting.append((transport, parts))
        if len(self._waiting) >= TOGETHER:
            self._write_out()

    def flush(self) -> None:
        """The round is over."""
        self._at_once = AT_ONCE if self._sent <= AT_ONCE else 0
        self._sent = 0
        if self._waiting:
            self._write_out()

    def _write_out(self) -> None:
        waiting, self._waiting = self._waiting, []
        for transport, parts in waiting:
            if transport.is_closing():
                continue
            try:
                _write(transport, parts)
            except Exception:  # one connection's fault, which its leg hears of, and not that of those behind it
                log.exception("a request could not be written")
                transport.abort()


def _write(transport: asyncio.WriteTransport, parts: Sequence[bytes | memoryview]) -> None:
    if len(parts) == 1:
        transport.write(parts[0])
    else:
        transport.writelines(parts)
