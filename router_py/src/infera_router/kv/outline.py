"""A chat body's JSON, parsed only where it is new.

The next request of a conversation repeats the bytes of the last one up to the end of its last message. Those bytes are compared
(memory speed) and only what follows is parsed. The result equals a full parse, duplicate keys included.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import orjson

from .errors import Unknown

# Possessive: a name may have megabytes, and every place to go back to would be kept.
_MEMBER = re.compile(rb'[ \t\r\n]*+[{,][ \t\r\n]*+("(?:[^"\\]++|\\.)*+")[ \t\r\n]*+:[ \t\r\n]*+', re.DOTALL)
_SPACE = re.compile(rb"[ \t\r\n]*")
_top = msgspec.json.Decoder(dict[str, msgspec.Raw])
# Stands for the messages of a remainder; a body cannot guess it.
_REST = "rest-" + secrets.token_hex(8)


class Outline(NamedTuple):
    """`fields`: every member but the messages. `messages`: those after the known ones. `end`: offset after the last message, or 0."""

    fields: dict[str, Any]
    messages: list
    end: int


class Stem(NamedTuple):
    """What is kept of a body: its bytes up to the end of the last message, uncopied, and the members before the messages."""

    raw: memoryview
    head: dict[str, Any]


def _messages_end(document: bytes, key: str, members: Mapping[str, msgspec.Raw] | None = None) -> tuple[int, list[str]]:
    """(offset after the last item of `key`, which is an array, keys before it); (0, []) where that cannot be told for sure, or there is no item.

    `members`: of the document, unread; reading it once more is saved where they are known.
    """
    position = 0
    before = []
    for name, raw in (_top.decode(document) if members is None else members).items():
        member = _MEMBER.match(document, position)
        if member is None or msgspec.json.decode(member[1]) != name:
            return 0, []
        position = member.end()
        if not document.startswith(raw, position):  # a key that occurs twice
            return 0, []
        if name != key:
            before.append(name)
            position += len(memoryview(raw))
            continue
        end = _space_start(document, position + len(memoryview(raw)) - 1)
        return (end, before) if end > position + 1 else (0, [])
    return 0, []


def _space_start(document: bytes, end: int) -> int:
    """Where the white space before `end` begins."""
    while True:
        part = document[max(0, end - 64):end]
        kept = len(part.rstrip(b" \t\r\n"))
        end -= len(part) - kept
        if kept or not end:
            return end


def parse(body: bytes, members: Mapping[str, msgspec.Raw] | None = None) -> tuple[Outline, Stem | None]:
    """The whole body, and what of it can be reused. Raises Unknown for a body that is no JSON object with messages.

    `members`: of the body, unread, where they are known.
    """
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Unknown("json") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("messages"), list):
        raise Unknown("invalid")
    try:
        end, before = _messages_end(body, "messages", members)
    except (msgspec.DecodeError, ValueError, RecursionError):
        end, before = 0, []
    stem = Stem(memoryview(body)[:end], {key: fields[key] for key in before}) if end else None
    messages = fields.pop("messages")
    return Outline(fields, messages, end), stem


def resume(body: bytes, stem: Stem) -> tuple[Outline, Stem | None] | None:
    """The same for a body that is known to start with stem.raw: only new messages are parsed. None where a full parse is needed."""
    known = len(stem.raw)
    start = _SPACE.match(body, known).end()
    mark = body[start:start + 1]
    if mark == b",":
        start += 1
    elif mark != b"]":
        return None
    opening = b'{"' + _REST.encode() + b'":['
    document = opening + body[start:]
    try:
        fields = orjson.loads(document)
    except orjson.JSONDecodeError:
        return None
    messages = fields.pop(_REST, None)
    if not isinstance(messages, list) or "messages" in fields or mark == b"," and not messages:
        return None
    end = known
    if messages:
        try:
            inner, _ = _messages_end(document, _REST)
        except (msgspec.DecodeError, ValueError, RecursionError):
            inner = 0
        end = inner - len(opening) + start if inner else 0
    fresh = Stem(memoryview(body)[:end], stem.head) if end else None
    return Outline({**stem.head, **fields}, messages, end), fresh
