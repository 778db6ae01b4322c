"""Request ids: the caller's where it is harmless, else one of ours."""

from __future__ import annotations

import re
import secrets
from itertools import count

HEADER = b"x-infera-request-id"
_FINE = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}").fullmatch
# 96 random bits for the process, then a counter: unique like a UUID, and cheap.
_prefix = secrets.token_hex(12)
_counter = count(1)


def reseed() -> None:
    """A new prefix, for a process that was forked."""
    global _prefix
    _prefix = secrets.token_hex(12)


def new() -> str:
    return "%s%08x" % (_prefix, next(_counter))


def accept(given: bytes) -> str:
    """The caller's id if it is short and plain enough for a header, a log line and an engine; else a new one."""
    return given.decode("ascii") if _FINE(given) else new()
