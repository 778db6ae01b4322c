"""A small HTTP/1.1 server for emulated engines: whole requests in, replies that may stream, an end of the connection that is noticed."""
from __future__ import annotations

import asyncio
import json
from typing import Any, Callable

import httptools

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 500: "Internal Server Error", 503: "Service Unavailable"}


class Exchange:
    """One request and its reply. `gone` is called when the client leaves before the reply is complete."""

    def __init__(self, connection: _Connection, method: str, path: str, headers: dict[str, str], body: bytes):
        self.connection = connection
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.gone: Callable[[], None] | None = None
        self.done = False

    def json(self) -> dict[str, Any]:
        value = json.loads(self.body or b"{}")
        if not isinstance(value, dict):
            raise ValueError("a JSON object is needed")
        return value

    def reply(self, body: Any, status: int = 200, kind: str = "application/json") -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._write(f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}\r\nContent-Type: {kind}\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw)
        self._end()

    def start_stream(self) -> None:
        self._write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        self._write(b"0\r\n\r\n")
        self._end()

    def _write(self, data: bytes) -> None:
        if not self.connection.transport.is_closing():
            self.connection.transport.write(data)

    def _end(self) -> None:
        self.done = True
        self.connection.next()


class _Connection(asyncio.Protocol):
    def __init__(self, handler: Callable[[Exchange], None]):
        self._handler = handler
        self._parser = httptools.HttpRequestParser(self)
        self._queue: list[Exchange] = []        # requests whose reply is not complete; the first one is being answered
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        queue, self._queue = self._queue, []
        for exchange in queue:
            if not exchange.done and exchange.gone is not None:
                exchange.gone()

    def on_message_begin(self) -> None:
        self._path, self._headers, self._body = "", {}, []

    def on_url(self, url: bytes) -> None:
        self._path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        exchange = Exchange(self, self._parser.get_method().decode(), self._path, self._headers, b"".join(self._body))
        self._queue.append(exchange)
        if len(self._queue) == 1:
            self._handle(exchange)

    def next(self) -> None:
        if self._queue and self._queue[0].done:
            self._queue.pop(0)
        if self._queue:
            self._handle(self._queue[0])

    def _handle(self, exchange: Exchange) -> None:
        try:
            self._handler(exchange)
        except ValueError as error:
            if not exchange.done:
                exchange.reply({"error": {"message": str(error), "type": "BadRequest", "code": 400}}, 400)


async def serve(handler: Callable[[Exchange], None], host: str, port: int) -> tuple[asyncio.Server, int]:
    """Listen; returns the server and its port."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(handler), host, port, backlog=1024)
    return server, server.sockets[0].getsockname()[1]
