"""The listening socket goes from a running router to its successor on the same address, so that no connection is refused or reset.

Both meet at an abstract Unix socket named after the address: it belongs to the network namespace, so containers on the host's network need no
common folder. The successor gets the very same listening socket, serves, and says so; then the old process stops accepting, goes on with what
it has, and waits for its SIGTERM. Until then nothing has changed for it: a successor that fails costs nothing.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Callable

from infera_router.fleet.options import UsageError
from infera_router.settings import Settings

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
SERVE_S = 60.0  # how long a successor may take to get its view of the fleet


def _name(settings: Settings) -> bytes:
    return f"\0infera-router/{settings.host}/{settings.port}".encode()


def _same_user(sock: socket.socket) -> bool:
    """Abstract sockets have no file permissions, so both sides ask the kernel who the other is."""
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return uid in (0, os.geteuid())


class Taken:
    """A socket that its owner is ready to give up; `commit` makes it ours alone."""

    def __init__(self, channel: socket.socket, listener: socket.socket, serving: bool) -> None:
        self._channel, self.listener = channel, listener
        self.serving = serving  # the old router was ready, so this one has to be before it takes over

    def commit(self) -> None:
        """We serve; returns when the old process has stopped accepting. Without its word it is asked by nobody to go on."""
        with contextlib.suppress(OSError):
            self._channel.sendall(b"serving\n")
            self._channel.recv(16)
        self._channel.close()


def take(settings: Settings) -> Taken | None:
    """Ask the router that listens on this address for its socket; None where there is none. Blocks, at most TIMEOUT_S."""
    if not settings.handover or not settings.port:
        return None
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.settimeout(TIMEOUT_S)
    try:
        channel.connect(_name(settings))
    except OSError:
        channel.close()
        return None
    try:
        if not _same_user(channel):
            raise UsageError(f"--port: {settings.port} on {settings.host} is held by a router of another user; stop it or use --handover off")
        channel.sendall(b"take\n")
        data, ancillary, _, _ = channel.recvmsg(16, socket.CMSG_SPACE(4))
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[:len(payload) // 4 * 4])
        if not fds:
            raise OSError("no socket came")
    except OSError as error:
        channel.close()
        log.warning("the router on port %d does not hand its socket over (%s)", settings.port, error)
        return None
    except UsageError:
        channel.close()
        raise
    listener = socket.socket(fileno=fds[0])
    listener.setblocking(False)
    return Taken(channel, listener, data.startswith(b"ready"))


class Offer:
    """What a running router offers its successor. `ready` says whether it serves, `gone` is called when its socket has another owner."""

    def __init__(self, settings: Settings, listener: socket.socket, ready: Callable[[], bool], gone: Callable[[], None]) -> None:
        self._settings, self._listener, self._ready, self._gone = settings, listener.dup(), ready, gone
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        if not self._settings.handover or not self._settings.port:
            return
        door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            door.bind(_name(self._settings))
        except OSError as error:
            door.close()
            log.warning("no successor can take this port over (%s)", error.strerror)
            return
        self._server = await asyncio.start_unix_server(self._answer, sock=door)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self._listener.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        try:
            if not _same_user(sock) or await asyncio.wait_for(reader.readline(), TIMEOUT_S) != b"take\n" or self._server is None:
                return
            # a duplicate: the transport's own socket object refuses sendmsg
            with socket.socket(fileno=os.dup(sock.fileno())) as raw:
                raw.sendmsg([b"ready" if self._ready() else b"idle"],
                            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self._listener.fileno()]).tobytes())])
            if await asyncio.wait_for(reader.readline(), SERVE_S + TIMEOUT_S) != b"serving\n" or self._server is None:
                log.warning("a successor asked for this router's port and went away without serving; this one goes on")
                return
            log.info("another process serves this port from now on; this one ends what it has and then waits for SIGTERM")
            self.close()
            self._gone()
            writer.write(b"done\n")
            await writer.drain()
        except (OSError, asyncio.TimeoutError) as error:
            log.warning("handing the port over failed (%s); this router goes on", error or "too slow")
        finally:
            writer.close()
