"""What the router reads of a body, and how a leg's fields get into it without parsing it again.

A body is checked to be one JSON object and only the members below are taken out of it; the rest is never built. The leg's own members are
spliced in before the last brace, where they win over any earlier one of the same name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec import Raw

# A client must not steer ranks or rooms: with a value these members are refused, null is harmless (it is what engines assume).
_STEERING = frozenset((
    "bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key", "routed_dp_rank", "data_parallel_rank",
    "disagg_prefill_dp_rank", "disagg_prefill_dp_size",
))
_TAKEN = frozenset(("model", "rid", "stream", "n", "sampling_params", "prompt_cache_key", "prompt_cache_retention"))
# What follows a known item: another one, or the end of the messages.
_ITEMS = re.compile(rb"[ \t\r\n]*(?:(,)[ \t\r\n]*+(?!\])|\])").match
# Bodies at least this long are sent as pieces instead of being copied together.
JOIN_BELOW = 16384


class BadBody(Exception):
    """args[0] is the text for the client."""


class Envelope:
    """Members of a request body that the router looks at. `rid` is the caller's own, kept when it is a usable string.

    `members`: all of the body that is sent on, as they stand in it, where all were read.
    """

    __slots__ = ("model", "stream", "rid", "has_rid", "many", "cache_key", "retention", "members")

    def __init__(self, model: str | None, stream: bool, rid: str | None, has_rid: bool, many: bool, cache_key: Raw | None,
                 retention: Raw | None = None, members: dict[str, Raw] | None = None) -> None:
        self.model, self.stream, self.rid, self.has_rid = model, stream, rid, has_rid
        self.cache_key, self.retention = cache_key, retention  # prompt_cache_key and prompt_cache_retention as they stand in the body
        self.members = members
        self.many = many  # n > 1: the engine makes several requests of it, under ids of its own


_members = msgspec.json.Decoder(dict[str, Raw]).decode
_value = msgspec.json.decode
_name = msgspec.json.encode


def read(body: bytes, known: tuple[memoryview, Mapping[str, object]] | None = None) -> tuple[Envelope, bytes]:
    """The envelope, and the body to send on: the same bytes unless it held router-private (`_...`) members. Raises BadBody.

    `known`: what `body` begins with, from its brace to the end of an item of its messages, and the members in it before the messages, as an
    earlier body that was let through had them. Then only what follows is read.
    """
    whole = None
    try:
        members = None if known is None else _after(body, *known)
        if members is None:
            members = whole = _members(body)
    except msgspec.ValidationError:
        raise BadBody("the body has to be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadBody("the body is not valid JSON") from None
    except RecursionError:
        raise BadBody("the body is nested too deeply") from None
    if not _STEERING.isdisjoint(members):
        for name in _STEERING.intersection(members):
            if bytes(members[name]) != b"null":
                raise BadBody(f"{name} is set by the router and cannot be given")
    for name in members:
        if name[:1] == "_":
            body, whole = _without_private(members), None
            break
    get = members.get
    raw = get("model")
    model = None
    if raw is not None:
        model = scalar(raw)
        if model is not None and not isinstance(model, str):
            raise BadBody("model has to be a string")
    raw = get("rid")
    has_rid, rid = False, None
    if raw is not None:
        rid = scalar(raw)
        has_rid = rid is not None
        if not isinstance(rid, str) or not rid or len(rid) > 256:
            rid = None
    raw = get("stream")
    stream = raw is not None and bytes(raw) == b"true"
    raw = get("n")
    if raw is None and (sampling := get("sampling_params")) is not None and b'"n"' in bytes(sampling):
        raw = _choices(sampling)
    many = raw is not None and bytes(raw) not in (b"1", b"null")
    return Envelope(model, stream, rid, has_rid, many, get("prompt_cache_key"), get("prompt_cache_retention"), whole), body


def _after(body: bytes, begun: memoryview, before: Mapping[str, object]) -> dict[str, Raw] | None:
    """All members that an envelope takes, where the messages' known items need no second look; None where they do."""
    items = _ITEMS(body, len(begun))
    if items is None:
        return None
    rest = _members(b'{"":[%b' % body[items.end():] if items[1] else b'{"":[]%b' % body[items.end():])
    for name in rest:
        if name[:1] == "_":
            return None
    found = {name: Raw(_name(value)) for name, value in before.items() if name in _TAKEN}
    found.update(rest)
    return found


def scalar(raw: Raw) -> object:
    try:
        return _value(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadBody("the body is not valid JSON") from None


def _choices(sampling: Raw) -> Raw | None:
    """`n` of a /generate body's sampling parameters; of a list's first, since SGLang wants all the same."""
    value = scalar(sampling)
    if isinstance(value, list) and value:
        value = value[0]
    return Raw(_name(value["n"])) if isinstance(value, dict) and "n" in value else None


def _without_private(members: dict[str, Raw]) -> bytes:
    kept = (_name(name) + b":" + bytes(value) for name, value in members.items() if name[:1] != "_")
    return b"{" + b",".join(kept) + b"}"


def cut(body: bytes) -> tuple[int, bytes]:
    """Where the leg's members go, and what stands before them: a comma, or nothing in an empty object."""
    at = body.rindex(b"}")
    if at < 1024 and body[:at].rstrip() == b"{" or body[at - 1:at] in b" \t\r\n" and body[:at].rstrip()[-1:] == b"{":
        return at, b""
    return at, b","


def leg(path: bytes, authority: bytes, headers: bytes, body: bytes, at: int, tail: bytes) -> list[bytes | memoryview]:
    """The bytes of one leg: `body` up to `at`, then `tail`, which ends with the closing brace."""
    head = b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n" % (
        path, authority, at + len(tail), headers,
    )
    if at < JOIN_BELOW:
        return [head + body[:at] + tail]
    return [head, memoryview(body)[:at], tail]
