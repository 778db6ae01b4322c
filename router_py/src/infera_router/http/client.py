"""The client's side of HTTP/1.x: one class holds a connection, another one request of it.

httptools (llhttp in its strict mode) parses; what it lets through and a router must not is refused here. Requests on one connection are
answered in their order. Everything received or queued is bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from os import write
from time import monotonic
from typing import Protocol

import httptools

from infera_router.http import errors, wire

log = logging.getLogger(__name__)

MAX_TARGET = 8192
MAX_HEADERS = 128
PIPELINED = 8
WRITE_HIGH = 65536
EARLY_CHECK = 65536  # bytes of body from which a request that will be refused is refused before the body is read
_CHECKED = frozenset((b"content-length", b"host", b"transfer-encoding", b"content-encoding", b"expect"))


class Handler(Protocol):
    """What a connection needs of the router."""

    def handle(self, request: Request) -> Exchange | None: ...
    def refuse_early(self, request: Request) -> tuple[str, str] | None: ...
    def closed(self) -> None: ...


class Exchange(Protocol):
    """A request that is being served: what its connection tells it."""

    def client_gone(self) -> None: ...
    def client_paused(self) -> None: ...
    def client_resumed(self) -> None: ...


@dataclass(slots=True)
class ClientLimits:
    """Bytes and seconds; a request's head and body must each make progress within `read_timeout`."""

    max_body: int = 64 << 20
    max_header: int = 65536
    keepalive_timeout: float = 350.0
    read_timeout: float = 60.0


class Request:
    """One request. `headers` are (lower-case name, value) in order; `target` is raw; `path` has no query."""

    __slots__ = ("conn", "method", "target", "path", "headers", "body", "keep_alive", "http10", "id", "at", "answered")

    def __init__(self, conn: ClientConnection, method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], http10: bool) -> None:
        self.conn, self.method, self.target, self.headers, self.http10 = conn, method, target, headers, http10
        self.path = target.partition(b"?")[0]
        self.body = b""
        self.keep_alive = True
        self.id = ""
        self.at = 0.0
        self.answered = False

    def header(self, name: bytes) -> bytes | None:
        """The first field of that (lower-case) name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]

    def query(self) -> bytes:
        return self.target.partition(b"?")[2]

    def write(self, data: bytes) -> None:
        self.answered = True
        self.conn.transport.write(data)

    def respond(self, status: int, body: bytes, content_type: bytes = b"application/json", extra: bytes = b"", close: bool = False) -> None:
        """Answer as a whole and end. HEAD gets no body."""
        close = close or not self.keep_alive
        if self.id:
            extra += b"x-infera-request-id: %b\r\n" % self.id.encode("latin-1")
        data = wire.response(status, body, content_type, extra, close)
        if self.method == b"HEAD":
            data = data[:len(data) - len(body)] if body else data
        self.write(data)
        self.end(not close)

    def end(self, keep: bool = True) -> None:
        """The answer is complete (`keep`), or the connection must be closed to show that it is not going on."""
        self.conn.request_ended(self, keep)


class ClientConnection(asyncio.Protocol):
    __slots__ = ("handler", "limits", "connections", "transport", "paused", "_parser", "_request", "_body", "_size", "_header_size",
                 "_target", "_headers", "_ready", "_active", "_exchange", "_since", "_deaf", "_held", "_in_headers", "_rejected",
                 "_owed", "_fd")

    def __init__(self, handler: Handler, limits: ClientLimits, connections: set[ClientConnection]) -> None:
        self.handler, self.limits, self.connections = handler, limits, connections
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.paused = False
        self._fd = -1  # the socket, while nothing waits before what is sent next
        self._parser = httptools.HttpRequestParser(self)
        self._ready: deque[Request] = deque()
        self._active: Request | None = None
        self._exchange: Exchange | None = None
        self._rejected: _Refused | None = None
        self._deaf = False  # nothing more is read from this client
        self._owed = 0  # body bytes of a declined upgrade that are still to come
        self._held = False  # reading is paused because enough requests wait
        self._since = monotonic()
        self._reset()

    def _reset(self) -> None:
        self._request: Request | None = None
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._size = 0
        self._header_size = 0
        self._in_headers = False

    # ---- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        transport.set_write_buffer_limits(high=WRITE_HIGH)
        if transport.get_extra_info("sslcontext") is None:
            self._fd = transport.get_extra_info("socket").fileno()
        self.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._since = monotonic()
        if self._owed:
            self._take_owed(data)
            return
        if self._request is None:
            self._in_headers = True
            self._header_size += len(data)
        try:
            self._parser.feed_data(data)
            if self._in_headers and self._header_size > self.limits.max_header:
                self._refuse(_Refused("headers_too_large", "the request's head is larger than the router takes"))
        except httptools.HttpParserUpgrade as offer:
            self._decline(data[offer.args[0]:])
        except _Refused as refused:
            self._refuse(refused)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__ or error.__cause__
            if not isinstance(cause, _Refused):
                log.error("a parser callback failed", exc_info=error)
                cause = _Refused("internal", "internal error")
            self._refuse(cause)
        except httptools.HttpParserError:
            self._refuse(_Refused("bad_request", "malformed HTTP"))
        if self._active is None and (self._ready or self._rejected):
            self._next()

    def _decline(self, rest: bytes) -> None:
        """An offer to change the protocol (h2c, websocket) is not taken: the request is answered in HTTP/1.1, then the connection closes.

        The parser stops before the body of such a request, so it is taken here, if its length is known.
        """
        request = self._ready.pop() if self._ready else None
        if request is None or request.header(b"transfer-encoding") is not None or request.method == b"CONNECT":
            self._refuse(_Refused("bad_request", "malformed HTTP"))
            return
        request.keep_alive = False
        self._request = request
        self._owed = int(request.header(b"content-length") or 0)
        self._body = []
        self._take_owed(rest)

    def _take_owed(self, data: bytes) -> None:
        self._body.append(data[:self._owed])
        self._owed -= len(self._body[-1])
        if not self._owed:
            request = self._request
            request.body = b"".join(self._body)
            request.at = self._since
            self._reset()
            self._deaf = True
            self._ready.append(request)
            if self._active is None:
                self._next()

    def send(self, data: bytes) -> None:
        """Send at once: the transport would wait for the end of the loop's round, when a token of each of many streams has gone cold.

        What the socket does not take is the transport's, and so is everything after it, which keeps the order. So is all of it where a client that asks
        ahead has not read its last answer yet. What the transport got in this very round would not show in its size: one answer has one way throughout.
        """
        if self._fd >= 0 and self.transport.get_write_buffer_size():
            self._fd = -1
        self.send_more(data)

    def send_more(self, data: bytes) -> None:
        """The same for an answer that `send` has begun: nothing of it, nor before it, waits in the transport unless `send` has turned to that."""
        fd = self._fd
        if fd >= 0:
            try:
                sent = write(fd, data)
            except OSError:  # full, or broken, which the transport will report
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
            self._fd = -1
        self.transport.write(data)

    def eof_received(self) -> None:
        return None  # closes the transport; connection_lost follows

    def connection_lost(self, exc: Exception | None) -> None:
        self._fd = -1
        self.connections.discard(self)
        self.handler.closed()
        self._deaf = True
        self._ready.clear()
        exchange, self._exchange, self._active = self._exchange, None, None
        self._request = self._parser = None
        if exchange is not None:
            exchange.client_gone()

    def pause_writing(self) -> None:
        self.paused = True
        if self._exchange is not None:
            self._exchange.client_paused()

    def resume_writing(self) -> None:
        self.paused = False
        if self._exchange is not None:
            self._exchange.client_resumed()

    # ---- httptools

    def on_message_begin(self) -> None:
        self._reset()
        self._in_headers = True

    def on_url(self, url: bytes) -> None:
        self._target += url
        if len(self._target) > MAX_TARGET:
            raise _Refused("headers_too_large", "the request's target is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_headers = False
        parser, headers = self._parser, self._headers
        version = parser.get_http_version()
        request = self._request = Request(self, parser.get_method(), self._target, headers, version == "1.0")
        request.keep_alive = version == "1.1" and parser.should_keep_alive()
        if version not in ("1.1", "1.0"):
            raise _Refused("bad_request", "malformed HTTP")
        size = length = hosts = 0
        expects = chunked = False
        for name, value in headers:
            size += len(name) + len(value) + 4
            if name not in _CHECKED:
                continue
            if name == b"content-length":
                if not value.isdigit():
                    raise _Refused("bad_request", "malformed HTTP")
                length = int(value)
            elif name == b"host":
                hosts += 1
            elif name == b"transfer-encoding":
                chunked = True
                if value.lower() != b"chunked" or request.http10:
                    raise _Refused("bad_request", "malformed HTTP")
            elif name == b"content-encoding":
                if value.lower() != b"identity":
                    raise _Refused("unsupported_media", "a compressed request body is not supported")
            else:
                expects = True
                if value.lower() != b"100-continue":
                    raise _Refused("expectation_failed", "only Expect: 100-continue is supported")
        if hosts != 1 and not (request.http10 and not hosts):
            raise _Refused("bad_request", "malformed HTTP")
        if size > self.limits.max_header or len(headers) > MAX_HEADERS:
            raise _Refused("headers_too_large", "the request's head is larger than the router takes")
        if length > self.limits.max_body:
            raise _Refused("too_large", f"the body is larger than {self.limits.max_body} bytes")
        if expects or chunked or length > EARLY_CHECK:
            reason = self.handler.refuse_early(request)
            if reason is not None:
                raise _Refused(*reason)
            if expects and not request.http10 and self._active is None and not self._ready:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > self.limits.max_body:
            raise _Refused("too_large", f"the body is larger than {self.limits.max_body} bytes")
        self._body.append(body)

    def on_message_complete(self) -> None:
        request, parts = self._request, self._body
        request.body = parts[0] if len(parts) == 1 else b"".join(parts)
        request.at = self._since
        self._ready.append(request)
        self._reset()
        if len(self._ready) >= PIPELINED and not self._held:
            self._held = True
            self.transport.pause_reading()

    # ---- requests

    def _next(self) -> None:
        """Serve what waits, in order, until one takes time."""
        while self._ready and self._active is None and not self.transport.is_closing():
            request = self._active = self._ready.popleft()
            exchange = self.handler.handle(request)
            if self._active is request:  # not answered at once
                self._exchange = exchange
                if self.paused and exchange is not None:
                    exchange.client_paused()
                return
        if self._ready or self._active is not None or self.transport.is_closing():
            return
        if self._rejected is not None:
            reason, text = self._rejected.args
            self.transport.write(wire.response(errors.status_of(reason), errors.body(reason, text), close=True))
            self.close()
        elif self._held:
            self._held = False
            self.transport.resume_reading()

    def request_ended(self, request: Request, keep: bool) -> None:
        if self._active is not request:
            return
        self._active = self._exchange = None
        self._since = monotonic()
        if not keep or not request.keep_alive:
            self.close()
        elif self._ready or self._held or self._rejected is not None:
            asyncio.get_running_loop().call_soon(self._next)

    def _refuse(self, refused: _Refused) -> None:
        """What came cannot be read, so where the next request begins is unknown: answer those before it, then this, and close."""
        self._deaf = True
        self._rejected = refused
        self._request = None

    def close(self) -> None:
        """Send what is written, then close."""
        self._deaf = True
        self._fd = -1
        self._ready.clear()
        if not self.transport.is_closing():
            self.transport.close()

    def abort(self) -> None:
        self._deaf = True
        self._fd = -1
        self.transport.abort()

    @property
    def busy(self) -> bool:
        return self._active is not None or bool(self._ready)

    def finish_soon(self) -> None:
        """The router stops: an idle connection is closed now, a busy one after its answer."""
        if self._active is not None:
            self._active.keep_alive = False
        elif not self._ready and self._request is None:
            self.close()

    def expire(self, now: float) -> None:
        """End a connection that has been silent too long: an idle one without a word, a half-sent request with 408."""
        if self._deaf or self._active is not None or self._held:
            return
        silent = now - self._since
        if self._request is not None or self._in_headers:
            if silent > self.limits.read_timeout:
                self._refuse(_Refused("request_timeout", "the request did not arrive in time"))
                self._next()
        elif silent > self.limits.keepalive_timeout:
            self.close()


class _Refused(Exception):
    """args: reason (see errors.TABLE) and text."""
