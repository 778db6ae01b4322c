"""HTTP/1.1 as bytes: what engines answer, what is sent to either side.

The client side, which must distrust its input, is parsed by httptools (see client.py). Engines are trusted more, and their
answers are relayed as they came, so here only the head is read and the end of the body is followed.
"""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus

NONE, LENGTH, CHUNKED, UNTIL_EOF = range(4)

MAX_HEAD = 65536
REASONS = {s.value: s.phrase.encode() for s in HTTPStatus}

# Hop-by-hop fields, the framing (written anew), and what names the software behind the router.
_DROPPED = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"te", b"trailer", b"upgrade", b"server",
     b"transfer-encoding", b"content-length", b"x-infera-request-id")
)


class WireError(Exception):
    """An engine sent something that is not HTTP/1.x."""


class Head:
    """The head of an engine's answer, ready to be sent on.

    `lines` is the status line and the kept fields, each with its CRLF; `framing` one of NONE, LENGTH, CHUNKED, UNTIL_EOF;
    `length` the body's bytes for LENGTH.
    """

    __slots__ = ("status", "lines", "framing", "length", "keep_alive", "event_stream")

    def __init__(self, status: int, lines: bytes, framing: int, length: int, keep_alive: bool, event_stream: bool) -> None:
        self.status, self.lines, self.framing, self.length = status, lines, framing, length
        self.keep_alive, self.event_stream = keep_alive, event_stream


@lru_cache(maxsize=1024)
def parse_head(raw: bytes) -> Head:
    """`raw` is everything before the empty line. Raises WireError. Cached: engines repeat their heads."""
    first, *fields = raw.split(b"\r\n")
    if not first.startswith(b"HTTP/1.") or len(first) < 12 or not first[9:12].isdigit():
        raise WireError(f"status line {first[:60]!r}")
    status = int(first[9:12])
    keep_alive = first[7:8] == b"1"
    lines = [b"HTTP/1.1 %d %b" % (status, REASONS.get(status, first[13:] or b"Unknown"))]
    length: int | None = None
    chunked = event_stream = False
    for field in fields:
        name, colon, value = field.partition(b":")
        if not colon:
            raise WireError(f"header line {field[:60]!r}")
        name, value = name.lower(), value.strip()
        if name == b"content-length":
            if not value.isdigit() or (length is not None and length != int(value)):
                raise WireError(f"Content-Length {value[:40]!r}")
            length = int(value)
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked":
                raise WireError(f"Transfer-Encoding {value[:40]!r}")
            chunked = True
        elif name == b"connection":
            options = value.lower()
            keep_alive = b"close" not in options and (keep_alive or b"keep-alive" in options)
        elif name == b"content-type":
            event_stream = value.lower().startswith(b"text/event-stream")
        if name not in _DROPPED:
            lines.append(name + b": " + value)
    lines.append(b"")
    text = b"\r\n".join(lines)
    if status < 200 or status in (204, 304):
        return Head(status, text, NONE, 0, keep_alive, False)
    if chunked:
        if length is not None:
            raise WireError("both Content-Length and Transfer-Encoding")
        return Head(status, text, CHUNKED, 0, keep_alive, event_stream)
    if length is not None:
        return Head(status, text, LENGTH, length, keep_alive, event_stream)
    return Head(status, text, UNTIL_EOF, 0, False, event_stream)


def _whole(size: int) -> bytes:
    """The size line that makes `size` bytes exactly one chunk, or something that no chunk begins with."""
    for digits in range(1, 5):
        payload = size - digits - 4
        if payload > 0 and len(b"%x" % payload) == digits:
            return b"%x\r\n" % payload
    return b"-"


# WHOLE[bytes of a read]: nearly every token of a stream comes as one whole chunk, which need not be taken apart.
LONGEST = 2048
WHOLE = tuple(_whole(size) for size in range(LONGEST))


class Framing:
    """Follows a body to its end without copying it.

    `feed` gets each block of raw body bytes and returns how many of them belong to this body, or -1 while the body goes on.
    `need` is what the current chunk (with its CRLF) or the whole body still lacks. While `even`, a read that begins with its WHOLE may be left out.
    """

    __slots__ = ("kind", "need", "_part", "_last", "even")

    def __init__(self, head: Head) -> None:
        self.even = head.framing == CHUNKED  # a size line begins with the next byte, and it is not a trailer's
        self.kind = head.framing
        self.need = head.length
        self._part = b""  # the beginning of a chunk's size line whose end has not come yet
        self._last = False  # the zero chunk was seen, trailers follow

    def empty(self) -> bool:
        return self.kind == NONE or (self.kind == LENGTH and self.need == 0)

    def owed(self) -> int:
        """Bytes that the current chunk (its CRLF included) or the body still lacks; -1 where a size line is cut in two."""
        return -1 if self._part or self._last else self.need

    def feed(self, data: bytes) -> int:
        size = len(data)
        if self.kind == CHUNKED:
            self.even = False
            if not self._part and not self._last:
                at = self.need
                while at < size:
                    end = data.find(b"\r\n", at, at + 18)
                    if end < 0:
                        return self._slow(data, at)
                    try:
                        more = int(data[at:end], 16)
                    except ValueError:
                        return self._slow(data, at)
                    if more <= 0:
                        return self._slow(data, at)
                    at = end + more + 4
                self.need = at - size
                self.even = at == size
                return -1
            return self._slow(data, self.need)
        if self.kind == LENGTH:
            if size < self.need:
                self.need -= size
                return -1
            end, self.need = self.need, 0
            return end
        return -1 if self.kind == UNTIL_EOF else 0

    def _slow(self, data: bytes, at: int) -> int:
        """Size lines cut in two, extensions, the last chunk, trailers. `at` is where the next size line starts in `data`."""
        kept = len(self._part)
        rest = self._part + data[at:]
        origin = at - kept  # position of rest[0], counted in data
        self._part = b""
        self.need = 0
        pos = 0
        while True:
            end = rest.find(b"\r\n", pos)
            if end < 0:
                if len(rest) - pos > MAX_HEAD:
                    raise WireError("chunk size line without an end")
                self._part = rest[pos:]
                return -1
            line = rest[pos:end]
            if self._last:
                pos = end + 2
                if not line:
                    return origin + pos
                continue
            digits = line.partition(b";")[0].strip()
            if not digits or len(digits) > 16 or digits.strip(b"0123456789abcdefABCDEF"):
                raise WireError(f"chunk size {line[:40]!r}")
            size = int(digits, 16)
            pos = end + 2
            if not size:
                self._last = True
                continue
            pos += size + 2
            if pos >= len(rest):
                self.need = pos - len(rest)
                self.even = not self.need
                return -1


class Dechunker:
    """Payload of a chunked body, for HTTP/1.0 clients and for answers the router reads itself."""

    __slots__ = ("_buf",)

    def __init__(self) -> None:
        self._buf = b""

    def feed(self, data: bytes) -> bytes:
        buf = self._buf + data
        out = []
        pos = 0
        while True:
            end = buf.find(b"\r\n", pos)
            if end < 0:
                break
            size = int(buf[pos:end].partition(b";")[0] or b"0", 16)
            if not size or len(buf) < end + 4 + size:
                break
            out.append(buf[end + 2:end + 2 + size])
            pos = end + 4 + size
        self._buf = buf[pos:]
        return b"".join(out)


def response(status: int, body: bytes, content_type: bytes = b"application/json", extra: bytes = b"", close: bool = False) -> bytes:
    """A whole answer of the router's own. `extra` holds finished header lines."""
    return b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b%b\r\n%b" % (
        status, REASONS.get(status, b"Unknown"), content_type, len(body), extra, b"connection: close\r\n" if close else b"", body,
    )


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


LAST_CHUNK = b"0\r\n\r\n"
