"""Accepting for one of several processes: evenly, by handing connections over (see board.py)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any

from infera_router.process.board import Board, fetch, hand

log = logging.getLogger(__name__)

AT_ONCE = 64
SHORT_OF_FILES_S = 0.2  # pause after accept failed for want of descriptors


class Acceptor:
    """Stands in for asyncio's Server where the listening socket is shared."""

    def __init__(self, loop: asyncio.AbstractEventLoop, listener: socket.socket, factory: Callable[[], asyncio.Protocol], ssl: Any, board: Board,
                 inbox: socket.socket, others: dict[int, socket.socket]) -> None:
        self.loop, self.listener, self.factory, self.ssl = loop, listener, factory, ssl
        self.board, self.inbox, self.others = board, inbox, others
        self._tasks: set[asyncio.Task] = set()
        self._closed = False
        loop.add_reader(listener, self._accept)
        loop.add_reader(inbox, self._fetch)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                sock, _ = self.listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("no connection can be accepted: %s", error.strerror)
                self.loop.remove_reader(self.listener)
                self.loop.call_later(SHORT_OF_FILES_S, self._again)
                return
            to = self.board.better()
            if to != self.board.index:
                self.board.given(to, 1)
                if hand(self.others[to], self.board.index, sock.fileno()):
                    sock.close()
                    continue
                self.board.given(to, -1)
            self._serve(sock)

    def _again(self) -> None:
        if not self._closed:
            self.loop.add_reader(self.listener, self._accept)

    def _fetch(self) -> None:
        for _ in range(AT_ONCE):
            got = fetch(self.inbox)
            if got is None:
                return
            origin, sock = got
            self.board.received(origin)
            self._serve(sock)

    def _serve(self, sock: socket.socket) -> None:
        self.board.count(1)  # given back by the connection's end
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        protocol = self.factory()
        task = self.loop.create_task(self.loop.connect_accepted_socket(lambda: protocol, sock, ssl=self.ssl))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._begun(done, protocol))

    def _begun(self, task: asyncio.Task, protocol: Any) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is not None:  # its TLS handshake failed
            if protocol.transport is None:
                self.board.count(-1)

    def close(self) -> None:
        """Accept nothing more; what is in the inbox is still served."""
        if not self._closed:
            self._closed = True
            self.loop.remove_reader(self.listener)
            self.listener.close()

    def stop(self) -> None:
        self.close()
        self.loop.remove_reader(self.inbox)
        for task in self._tasks:
            task.cancel()
