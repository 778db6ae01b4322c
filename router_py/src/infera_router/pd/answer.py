"""What an answer to a client is made of: why an attempt failed, the head and the frames that go out, how a stream tells of its end. Bytes only."""

from __future__ import annotations

import re

from infera_router.http import errors, wire
from infera_router.http.client import Request
from infera_router.http.wire import LENGTH, NONE, Head

MAX_FILL = 1 << 16  # what of a cut chunk is filled up so that an error event can follow it
RAW, DECHUNK, ENCHUNK = range(3)
done_at_end = re.compile(rb"(?:^|\n)data: \[DONE\]\n\n(?:\r\n(?:0\r\n(?:\r\n)?)?)?$").search
error_first = re.compile(rb'^[0-9a-fA-F]*[^\r\n]{0,40}?(?:\r\n)?(?:event: error\n)?data: (\{"(?:error|object)": ?.*?"code": ?(5\d\d).*\})\n', re.S).match
# What a decode says when the prefill is the one that failed (SGLang 0.5.22): its own state is fine.
prefill_to_blame = re.compile(rb"(?i)prefill instance|handshake failed|bootstrap|kvpoll|kv ?transfer").search


class Failure:
    """Why the last attempt ended, kept for the answer in case no other can be made."""

    __slots__ = ("reason", "text", "status", "body", "content_type", "count_as")

    def __init__(self, reason: str, text: str, status: int = 0, body: bytes | None = None, content_type: bytes = b"application/json",
                 count_as: str = "") -> None:
        self.reason, self.text, self.body, self.content_type = reason, text, body, content_type
        self.status = status or errors.status_of(reason)
        self.count_as = count_as or reason


def head_bytes(head: Head, request: Request) -> bytes:
    """The head that the client gets for an engine's: its framing as far as the client's version has it, and the request id."""
    if head.framing == LENGTH:
        framing = b"content-length: %d\r\n" % head.length
    elif request.http10 or head.framing == NONE:
        framing = b""
    else:
        framing = b"transfer-encoding: chunked\r\n"
    if not request.keep_alive:
        framing += b"connection: close\r\n"
    return b"%b%bx-infera-request-id: %b\r\n\r\n" % (head.lines, framing, request.id.encode())


def error_event(head: Head, request: Request, relay: int, owed: int, event: bytes) -> bytes:
    """The bytes that put `event` after a broken stream, in whatever framing it has; nothing where it cannot be said any more.

    `owed` is what the engine's current chunk still lacks, -1 where that is not known.
    """
    if not head.event_stream or head.framing == LENGTH:
        return b""
    event = b"\n\n" + event
    if relay == DECHUNK or (request.http10 and relay == RAW):
        return event
    fill = b""
    if relay == RAW:
        if not 0 <= owed <= MAX_FILL:
            return b""
        fill = b"\n" * (owed - 2) + b"\r\n" if owed > 2 else b"\r\n"[2 - owed:]
    return fill + wire.chunk(event) + wire.LAST_CHUNK


def content_type(head: Head) -> bytes:
    for line in head.lines.split(b"\r\n"):
        if line.startswith(b"content-type: "):
            return line[14:]
    return b"application/json"


def rest_of(tail: bytes) -> bytes:
    """What a chunked answer whose payload is complete still lacks after `tail`."""
    if tail.endswith(b"\r\n0\r\n"):
        return b"\r\n"
    return wire.LAST_CHUNK if tail.endswith(b"\r\n") else b"\r\n" + wire.LAST_CHUNK
