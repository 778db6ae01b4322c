"""API keys: read from a file, compared in constant time, exchanged as a whole on reload."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import stat

log = logging.getLogger(__name__)


class KeyFileError(Exception):
    """The key file cannot be used; one line that names it."""


class ApiKeys:
    """The keys of one file: a line each, blank lines and `#` comments left out.

    Only digests are kept, all are compared for every request, so neither the time nor a core dump tells a key.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._digests = _read(path)

    def __len__(self) -> int:
        return len(self._digests)

    def reload(self) -> None:
        """Take the file's keys over; a file that cannot be used leaves the old ones in force and raises KeyFileError."""
        self._digests = _read(self.path)

    def allows(self, authorization: bytes | None, x_api_key: bytes | None) -> bool:
        """`Authorization: Bearer KEY` (OpenAI clients) or `X-API-Key: KEY` (Anthropic clients)."""
        given = x_api_key
        if authorization is not None and authorization[:7].lower() == b"bearer ":
            given = authorization[7:]
        if not given:
            return False
        digest = hashlib.sha256(given.strip()).digest()
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(known, digest)
        return found


def _read(path: str) -> tuple[bytes, ...]:
    try:
        with open(path, "rb") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            lines = [line.strip() for line in stream.read().splitlines()]
    except OSError as error:
        raise KeyFileError(f"--api-key-file: {path!r} cannot be read: {error.strerror}") from None
    if mode & 0o077:
        log.warning("API key file %s can be read by others; chmod 600 it", path)
    keys = [line for line in lines if line and not line.startswith(b"#")]
    if not keys:
        raise KeyFileError(f"--api-key-file: {path!r} holds no key; put one per line")
    for number, key in enumerate(keys, 1):
        if len(key) < 8 or any(not 33 <= byte <= 126 for byte in key):
            raise KeyFileError(f"--api-key-file: key {number} of {path!r} is shorter than 8 characters or has blanks or control characters")
    return tuple(hashlib.sha256(key).digest() for key in keys)
