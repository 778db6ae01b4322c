"""etcd over its v3 JSON gateway (paths ``/v3/``, etcd 3.4 and later): several endpoints, TLS, user and password.

Every call tries the endpoints in turn, beginning with the one that answered last, and raises EtcdUnavailable when none did.
A store that answered "no" is EtcdError and is not asked again elsewhere.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import ssl
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from infera_router.fleet.http1 import Address, Connection, HttpError

log = logging.getLogger(__name__)

CONNECT_TIMEOUT = 2.0
CALL_TIMEOUT = 4.0
_IDLE_CONNECTIONS = 2
# gRPC codes: Unavailable, DeadlineExceeded, Internal, Unknown are about this member now; another may answer.
_TRY_ANOTHER = frozenset({2, 4, 13, 14})


class EtcdError(Exception):
    """etcd refused the call; ``code`` is its gRPC code."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


class EtcdUnavailable(EtcdError):
    """No endpoint gave an answer; the message has each one's reason."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 14)


class EtcdAuthError(EtcdError):
    """The user, the password or the permission is wrong."""


class LeaseNotFound(EtcdError):
    """The lease has expired or was revoked."""


class Compacted(EtcdError):
    """The watch's start revision is no longer in the history; ``revision`` is the oldest that is."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"history before revision {revision} was compacted", 11)
        self.revision = revision


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """Where etcd is. *endpoints* are URLs; files are paths, empty where not used."""

    endpoints: tuple[str, ...] = ("http://127.0.0.1:2379",)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    user: str | None = None
    password_file: str | None = None


@dataclass(frozen=True, slots=True)
class KeyValue:
    """*lease* is 0 for a key that stays for good."""

    key: str
    value: bytes
    mod_revision: int
    lease: int


@dataclass(frozen=True, slots=True)
class RangeResult:
    """*revision* of the store that the answer shows, and the *cluster* it came from; *count* of keys in the range."""

    revision: int
    cluster: int
    count: int
    items: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A put (*item* is the new value) or a delete (*item* has the key and the delete's revision only)."""

    deleted: bool
    item: KeyValue


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """Events of one message, in order; without any it says that the watch stands, or that the store has reached *revision*."""

    revision: int
    events: tuple[WatchEvent, ...]


class EtcdClient:
    """One client per event loop. Calls may run side by side."""

    def __init__(self, settings: EtcdSettings, connect_timeout: float = CONNECT_TIMEOUT, call_timeout: float = CALL_TIMEOUT) -> None:
        self._settings = settings
        self._connect_timeout, self._call_timeout = connect_timeout, call_timeout
        tls = _tls_context(settings) if any(url.startswith("https:") for url in settings.endpoints) else None
        self._addresses = [_address(url, tls) for url in settings.endpoints]
        self._idle: list[list[Connection]] = [[] for _ in self._addresses]
        self._current = 0
        self._token: str | None = None

    @property
    def endpoint(self) -> str:
        """The endpoint that is asked first."""
        return self._settings.endpoints[self._current]

    def skip_endpoint(self) -> None:
        """Ask another endpoint first from now on."""
        self._current = (self._current + 1) % len(self._addresses)

    async def close(self) -> None:
        for idle in self._idle:
            while idle:
                idle.pop().close()

    # ---- keys

    async def range(self, prefix: str, limit: int = 0, newest_first: bool = False) -> RangeResult:
        """All keys that start with *prefix*, read linearizably; with *limit* only so many, *newest_first* by their last change."""
        body: dict[str, Any] = {"key": _b64(prefix), "range_end": _b64(_prefix_end(prefix))}
        if limit:
            body["limit"] = str(limit)
        if newest_first:
            body |= {"sort_order": "DESCEND", "sort_target": "MOD"}
        return _range_result(await self._call("/v3/kv/range", body))

    async def get(self, key: str) -> KeyValue | None:
        items = _range_result(await self._call("/v3/kv/range", {"key": _b64(key)})).items
        return items[0] if items else None

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Returns the revision. Raises LeaseNotFound when *lease* is gone."""
        answer = await self._call("/v3/kv/put", {"key": _b64(key), "value": _b64(value), "lease": str(lease)})
        return _header(answer, "revision")

    async def delete(self, key: str) -> int:
        """Returns how many keys were deleted (0 or 1)."""
        return int((await self._call("/v3/kv/deleterange", {"key": _b64(key)})).get("deleted", 0))

    async def delete_unchanged(self, key: str, mod_revision: int) -> bool:
        """Delete while the key's last change is *mod_revision*; False when it has changed since."""
        answer = await self._call("/v3/kv/txn", {
            "compare": [{"key": _b64(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(mod_revision)}],
            "success": [{"request_delete_range": {"key": _b64(key)}}],
        })
        return bool(answer.get("succeeded"))

    # ---- leases

    async def grant(self, ttl: int) -> int:
        """A new lease of *ttl* seconds; returns its id."""
        return int((await self._call("/v3/lease/grant", {"TTL": str(ttl), "ID": "0"}))["ID"])

    async def keepalive(self, lease: int) -> int:
        """Renew; returns the seconds left. 0 or less: the lease is gone."""
        answer = await self._call("/v3/lease/keepalive", {"ID": str(lease)})
        return int(answer.get("result", {}).get("TTL", 0))

    async def time_to_live(self, lease: int) -> int:
        """Seconds left without renewing; -1 when the lease does not exist."""
        return int((await self._call("/v3/lease/timetolive", {"ID": str(lease)})).get("TTL", 0))

    async def revoke(self, lease: int) -> None:
        """End the lease, which deletes its keys; fine when it is gone already."""
        try:
            await self._call("/v3/lease/revoke", {"ID": str(lease)})
        except LeaseNotFound:
            pass

    # ---- watch

    async def watch(self, prefix: str, start_revision: int) -> AsyncIterator[WatchBatch]:
        """Every change of the prefix from *start_revision* on; the first batch is empty and says that the watch stands.

        Ends only by an exception: Compacted, EtcdUnavailable when the stream broke, EtcdError otherwise.
        """
        body = json.dumps({"create_request": {
            "key": _b64(prefix), "range_end": _b64(_prefix_end(prefix)), "start_revision": str(start_revision), "progress_notify": True,
        }}).encode()
        index = self._current
        try:
            connection = await Connection.open(self._addresses[index], self._connect_timeout)
            async with connection.stream("POST", "/v3/watch", body, await self._headers(), self._call_timeout) as (status, lines):
                async for line in lines:
                    message = json.loads(line)
                    if status != 200 or "error" in message:
                        raise self._watch_fault(_fault("/v3/watch", status, message))
                    result = message.get("result", {})
                    if result.get("canceled"):
                        raise self._watch_fault(_cancelled(result))
                    yield WatchBatch(_header(result, "revision"), tuple(map(_event, result.get("events", ()))))
            raise HttpError("the stream ended")
        except (HttpError, json.JSONDecodeError) as error:
            self._failed(index)
            raise EtcdUnavailable(f"watch: {error}") from None

    # ---- calls

    async def _call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(body).encode()
        for attempt in (1, 2):
            try:
                return await self._call_any(path, data, await self._headers())
            except _TokenRefused as refused:
                self._token = None
                if attempt == 2 or not self._settings.user:
                    raise EtcdAuthError(f"{path}: {refused}", refused.code) from None
        raise AssertionError("unreachable")

    async def _call_any(self, path: str, data: bytes, headers: dict[str, str]) -> dict[str, Any]:
        faults = []
        first = self._current
        for step in range(len(self._addresses)):
            index = (first + step) % len(self._addresses)
            try:
                answer = await self._exchange(index, path, data, headers)
            except (HttpError, _MemberFault) as fault:
                faults.append(f"{self._settings.endpoints[index]}: {fault}")
                continue
            self._current = index
            return answer
        raise EtcdUnavailable("; ".join(faults))

    async def _exchange(self, index: int, path: str, data: bytes, headers: dict[str, str]) -> dict[str, Any]:
        try:
            response = await asyncio.wait_for(self._send(index, path, data, headers), self._call_timeout)
        except asyncio.TimeoutError:
            raise HttpError(f"no answer within {self._call_timeout:g} s") from None
        try:
            answer = json.loads(response.body)
        except ValueError:
            raise HttpError(f"status {response.status} with a body that is not JSON; is this etcd's client port?") from None
        if response.status == 200 and "error" not in answer:
            return answer
        raise _fault(path, response.status, answer)

    async def _send(self, index: int, path: str, data: bytes, headers: dict[str, str]):
        idle = self._idle[index]
        while idle:
            connection = idle.pop()
            try:
                return await self._on(connection, idle, path, data, headers)
            except HttpError:
                continue  # closed by the other side while it was idle; calls here may be repeated safely
        connection = await Connection.open(self._addresses[index], self._connect_timeout)
        return await self._on(connection, idle, path, data, headers)

    async def _on(self, connection: Connection, idle: list[Connection], path: str, data: bytes, headers: dict[str, str]):
        response = await connection.request("POST", path, data, headers)
        if connection.reusable and len(idle) < _IDLE_CONNECTIONS:
            idle.append(connection)
        else:
            connection.close()
        return response

    def _failed(self, index: int) -> None:
        if self._current == index:
            self.skip_endpoint()

    def _watch_fault(self, fault: Exception) -> Exception:
        if isinstance(fault, _TokenRefused):
            self._token = None
        return EtcdUnavailable(f"watch: {fault}") if isinstance(fault, _TokenRefused | _MemberFault) else fault

    # ---- users

    async def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self._settings.user:
            if self._token is None:
                self._token = await self._authenticate()
            if self._token:
                headers["Authorization"] = self._token
        return headers

    async def _authenticate(self) -> str:
        body = json.dumps({"name": self._settings.user, "password": _read_password(self._settings.password_file)}).encode()
        try:
            answer = await self._call_any("/v3/auth/authenticate", body, {"Content-Type": "application/json"})
        except EtcdUnavailable:
            raise
        except (_TokenRefused, EtcdError) as error:
            if "authentication is not enabled" in str(error):
                return ""
            raise EtcdAuthError(f"user {self._settings.user!r} was refused: {error}", 16) from None
        return answer["token"]


class _TokenRefused(Exception):
    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class _MemberFault(Exception):
    """This member cannot answer now."""


def _fault(path: str, status: int, answer: dict[str, Any]) -> Exception:
    inner = answer.get("error")
    source = inner if isinstance(inner, dict) else answer
    message = str(source.get("message") or (inner if isinstance(inner, str) else "") or f"status {status}")
    code = int(source.get("grpc_code") or source.get("code") or 2)
    lowered = message.lower()
    if code == 16 or "invalid auth token" in lowered or "user name is empty" in lowered or "revision of auth store is old" in lowered:
        return _TokenRefused(message, code)
    if "permission denied" in lowered or "authentication failed" in lowered:
        return EtcdAuthError(f"{path}: {message}", code)
    if "lease not found" in lowered:
        return LeaseNotFound(message, code)
    if code in _TRY_ANOTHER and "authentication is not enabled" not in lowered:
        return _MemberFault(message)
    return EtcdError(f"{path}: {message}", code)


def _cancelled(result: dict[str, Any]) -> Exception:
    oldest = int(result.get("compact_revision", 0))
    if oldest:
        return Compacted(oldest)
    return _fault("/v3/watch", 200, {"message": result.get("cancel_reason") or "cancelled without a reason", "code": 14})


def _range_result(answer: dict[str, Any]) -> RangeResult:
    return RangeResult(_header(answer, "revision"), _header(answer, "cluster_id"), int(answer.get("count", 0)),
                       tuple(map(_key_value, answer.get("kvs", ()))))


def _event(raw: dict[str, Any]) -> WatchEvent:
    return WatchEvent(raw.get("type", "PUT") == "DELETE", _key_value(raw["kv"]))


def _key_value(raw: dict[str, Any]) -> KeyValue:
    return KeyValue(base64.b64decode(raw["key"]).decode("utf-8", "replace"), base64.b64decode(raw.get("value", "")),
                    int(raw.get("mod_revision", 0)), int(raw.get("lease", 0)))


def _header(answer: dict[str, Any], name: str) -> int:
    return int(answer.get("header", {}).get(name, 0))


def _b64(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def _prefix_end(prefix: str) -> bytes:
    """The first key after all that start with *prefix*."""
    data = bytearray(prefix.encode())
    while data:
        if data[-1] < 0xFF:
            data[-1] += 1
            return bytes(data)
        data.pop()
    return b"\0"


def _address(url: str, tls: ssl.SSLContext | None) -> Address:
    scheme, _, authority = url.partition("://")
    host, _, port = authority.rpartition(":")
    return Address(host.strip("[]"), int(port), tls if scheme == "https" else None)


def _tls_context(settings: EtcdSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.ca_file)
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    return context


def _read_password(path: str | None) -> str:
    """The file's content without its last line end; read at every login, so that a changed password needs no restart."""
    if path is None:
        return ""
    try:
        with open(path, encoding="utf-8") as stream:
            if stat.S_IMODE(os.fstat(stream.fileno()).st_mode) & 0o077:
                log.warning("etcd password file %s can be read by others; chmod 600 it", path)
            return stream.read().removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise EtcdAuthError(f"password file {path}: {error}", 16) from None
