"""A small HTTP/1.1 client on asyncio streams for the control plane: keep-alive, chunked bodies, streamed lines, TLS.

It exists because both commands must start fast and stay small; it is no part of the request path.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

MAX_HEAD = 64 * 1024
MAX_BODY = 256 * 1024 * 1024


class HttpError(Exception):
    """The connection failed or the answer was not HTTP; one line."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect, and how."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """One connection, one exchange at a time. After an error it can only be closed."""

    def __init__(self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._address, self._reader, self._writer = address, reader, writer
        self.reusable = True

    @classmethod
    async def open(cls, address: Address, timeout: float) -> Connection:
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection(address.host, address.port, ssl=address.tls, limit=MAX_HEAD), timeout)
        except asyncio.TimeoutError:
            raise HttpError(f"no connection to {address.authority} within {timeout:g} s") from None
        except ssl.SSLError as error:
            raise HttpError(f"TLS with {address.authority} failed: {error.reason or error}") from None
        except OSError as error:
            raise HttpError(f"no connection to {address.authority}: {error.strerror or error}") from None
        _notice_dead_peer(writer.get_extra_info("socket"))
        return cls(address, reader, writer)

    def close(self) -> None:
        self.reusable = False
        with contextlib.suppress(Exception):
            self._writer.transport.abort()

    async def request(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Response:
        """Send and read the whole answer. Raises HttpError; the caller bounds the time."""
        try:
            await self._send(method, path, body, headers or {})
            status, answer = await self._head()
            content = b"".join([part async for part in self._body(answer)])
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            self.close()
            raise HttpError(f"{self._address.authority} broke off: {_why(error)}") from None
        except BaseException:
            self.close()
            raise
        if answer.get("connection", "").lower() == "close":
            self.close()
        return Response(status, answer, content)

    @contextlib.asynccontextmanager
    async def stream(self, method: str, path: str, body: bytes, headers: dict[str, str] | None, timeout: float):
        """Send, wait at most *timeout* for the head, then give ``(status, lines)``; the connection is closed afterwards."""
        try:
            try:
                await self._send(method, path, body, headers or {})
                status, answer = await asyncio.wait_for(self._head(), timeout)
            except asyncio.TimeoutError:
                raise HttpError(f"{self._address.authority} sent no answer within {timeout:g} s") from None
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
                raise HttpError(f"{self._address.authority} broke off: {_why(error)}") from None
            yield status, self._lines(answer)
        finally:
            self.close()

    async def _send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._address.authority}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        await self._writer.drain()

    async def _head(self) -> tuple[int, dict[str, str]]:
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, *rest = head.decode("latin-1").split("\r\n")
        version, _, tail = first.partition(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError("the answer is not HTTP/1")
        headers = {}
        for line in rest:
            name, colon, value = line.partition(":")
            if colon:
                headers[name.strip().lower()] = value.strip()
        status = int(tail[:3])
        if 100 <= status < 200:
            return await self._head()
        return status, headers

    async def _body(self, headers: dict[str, str]) -> AsyncIterator[bytes]:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16):
                if size > MAX_BODY:
                    raise ValueError(f"a chunk of {size} bytes is too large")
                yield await self._reader.readexactly(size)
                await self._reader.readexactly(2)
            while await self._reader.readuntil(b"\r\n") != b"\r\n":
                pass
        elif "content-length" in headers:
            size = int(headers["content-length"])
            if not 0 <= size <= MAX_BODY:
                raise ValueError(f"a body of {size} bytes is too large")
            if size:
                yield await self._reader.readexactly(size)
        else:
            self.reusable = False
            while part := await self._reader.read(65536):
                yield part

    async def _lines(self, headers: dict[str, str]) -> AsyncIterator[bytes]:
        pending = b""
        try:
            async for part in self._body(headers):
                pending += part
                *lines, pending = pending.split(b"\n")
                for line in lines:
                    if line.strip():
                        yield line
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            raise HttpError(f"{self._address.authority} broke off: {_why(error)}") from None
        if pending.strip():
            yield pending


async def fetch(url_host: str, url_port: int, path: str, timeout: float, headers: Mapping[str, str] | None = None) -> Response:
    """One GET on a connection of its own, bounded by *timeout* seconds. Raises HttpError."""

    async def exchange() -> Response:
        connection = await Connection.open(Address(url_host, url_port), timeout)
        try:
            return await connection.request("GET", path, headers={"Connection": "close", **(headers or {})})
        finally:
            connection.close()

    try:
        return await asyncio.wait_for(exchange(), timeout)
    except asyncio.TimeoutError:
        raise HttpError(f"{url_host}:{url_port}{path} gave no answer within {timeout:g} s") from None


def _notice_dead_peer(sock: socket.socket | None) -> None:
    """A peer that vanished without a word is noticed after 5 + 3 × 2 s of silence, unsent data after 10 s."""
    if sock is None:
        return
    with contextlib.suppress(OSError, AttributeError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000)


def _why(error: BaseException) -> str:
    if isinstance(error, asyncio.IncompleteReadError):
        return "connection closed"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
