"""The worker record: what an engine says of itself in etcd, and the only definition of its fields.

Key ``<prefix><host>:<port>``, value one JSON object. Unknown fields are ignored and optional fields may be absent, so that
routers and supervisors of neighbouring versions can live together. docs/etcd.md has the table for people.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

SCHEMA = 1
DEFAULT_PREFIX = "/infera/workers/"
PROTOCOL = "sglang-bootstrap"

STARTING = "starting"
ACTIVE = "active"
DRAINING = "draining"

MIXED = "mixed"
PREFILL = "prefill"
DECODE = "decode"
MODES = (MIXED, PREFILL, DECODE)


class RecordError(ValueError):
    """A record that cannot be used; ``reason`` is one line for the log."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """One engine. Endpoints are those of rank 0 (rank r adds r to the port); sizes are counts; times are Unix seconds."""

    worker_id: str
    url: str
    model_name: str
    engine: str = "sglang"
    status: str = ACTIVE
    disagg_mode: str = MIXED
    protocol: str | None = None
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    dp_rank: int | None = None
    dp_size: int | None = None
    kv_events_endpoint: str | None = None
    kv_replay_endpoint: str | None = None
    kv_topic: str | None = None
    kv_block_size: int | None = None
    page_size: int | None = None
    pp_size: int = 1
    tp_size: int = 1
    generation: str | None = None
    request_transport: str = "http"
    started_at: float | None = None
    schema: int = SCHEMA

    @property
    def ranks(self) -> int:
        """How many data-parallel ranks can be addressed; 1 when the engine has no ranks."""
        return self.dp_size or 1

    @property
    def routable(self) -> bool:
        return self.status == ACTIVE

    @property
    def host(self) -> str:
        """Host of ``url`` without IPv6 brackets."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 80


def parse(key: str, value: bytes | str, prefix: str | None = None) -> WorkerRecord:
    """Read a record stored under *key*.

    With *prefix* the rest of the key has to be the worker_id exactly; without it the key only has to end with it.
    Raises RecordError for anything a router could not act on.
    """
    try:
        data = json.loads(value)
    except (ValueError, UnicodeDecodeError) as error:
        raise RecordError(f"{key}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise RecordError(f"{key}: a JSON object is needed, not {type(data).__name__}")
    read = _Fields(key, data)

    schema = read.integer("schema", SCHEMA, minimum=0)
    if schema != SCHEMA:
        raise RecordError(f"{key}: schema {schema} is not understood, this version reads schema {SCHEMA}")
    worker_id = read.text("worker_id")
    if (key != prefix + worker_id) if prefix is not None else not key.endswith(worker_id):
        raise RecordError(f"{key}: worker_id {worker_id!r} is not the one in the key")
    url = read.text("url")
    _check_url(key, url)
    transport = read.text("request_transport", "http")
    if transport != "http":
        raise RecordError(f"{key}: request_transport {transport!r} is not supported, only http")
    mode = read.text("disagg_mode", MIXED)
    if mode not in MODES:
        raise RecordError(f"{key}: disagg_mode {mode!r} is none of {', '.join(MODES)}")
    protocol, host, port = _read_meta(key, mode, data.get("disagg_meta"))
    status = data.get("status", ACTIVE)
    return WorkerRecord(
        worker_id=worker_id,
        url=url.rstrip("/"),
        model_name=read.text("model_name"),
        engine=read.text("engine", "sglang"),
        status=status if isinstance(status, str) else repr(status),
        disagg_mode=mode,
        protocol=protocol,
        bootstrap_host=host,
        bootstrap_port=port,
        dp_rank=read.integer("dp_rank", None, minimum=0),
        dp_size=read.integer("dp_size", None, minimum=1),
        kv_events_endpoint=read.text("kv_events_endpoint", None),
        kv_replay_endpoint=read.text("kv_replay_endpoint", None),
        kv_topic=read.text("kv_topic", None, empty=True),
        kv_block_size=read.integer("kv_block_size", None, minimum=1),
        page_size=read.integer("page_size", None, minimum=1),
        pp_size=read.integer("pp_size", 1, minimum=1),
        tp_size=read.integer("tp_size", 1, minimum=1),
        generation=read.text("generation", None),
        request_transport=transport,
        started_at=read.number("started_at"),
        schema=schema,
    )


def dump(record: WorkerRecord) -> bytes:
    """The JSON value of *record*; ``parse`` of it gives an equal record."""
    meta: dict[str, Any] = {}
    if record.disagg_mode != MIXED:
        params: dict[str, str] = {}
        if record.bootstrap_host and record.bootstrap_port:
            params["bootstrap_addr"] = join_address(record.bootstrap_host, record.bootstrap_port)
        meta = {"protocol": record.protocol or PROTOCOL, "params": params}
    names = (
        "schema worker_id url model_name engine status disagg_mode dp_rank dp_size kv_events_endpoint kv_replay_endpoint kv_topic "
        "kv_block_size page_size pp_size tp_size generation request_transport started_at"
    ).split()
    data = {name: getattr(record, name) for name in names}
    data["disagg_meta"] = meta
    return json.dumps(data, separators=(",", ":"), sort_keys=True).encode()


def join_address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` as a pair. Raises ValueError with the reason."""
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{address!r}: {error}") from None
    if not host or not port or parts.path or parts.query or parts.username is not None:
        raise ValueError(f"{address!r} is not host:port")
    return host, port


def _check_url(key: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        fine = parts.scheme == "http" and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        fine = False
    if not fine or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise RecordError(f"{key}: url {url!r} is not http://host:port")


def _read_meta(key: str, mode: str, meta: Any) -> tuple[str | None, str | None, int | None]:
    """(protocol, bootstrap host, bootstrap port) of a disagg_meta object."""
    if mode == MIXED:
        return None, None, None
    if meta is None:
        meta = {}
    if not isinstance(meta, dict):
        raise RecordError(f"{key}: disagg_meta has to be an object")
    protocol = meta.get("protocol", PROTOCOL)
    if protocol != PROTOCOL:
        raise RecordError(f"{key}: disagg_meta.protocol {protocol!r} is not supported, only {PROTOCOL}")
    if mode == DECODE:
        return protocol, None, None
    params = meta.get("params")
    address = params.get("bootstrap_addr") if isinstance(params, dict) else None
    if not isinstance(address, str):
        raise RecordError(f"{key}: a prefill needs disagg_meta.params.bootstrap_addr")
    try:
        host, port = split_address(address)
    except ValueError as error:
        raise RecordError(f"{key}: bootstrap_addr {error}") from None
    return protocol, host, port


_NEEDED = object()


class _Fields:
    """Typed reads of a JSON object; null counts as absent, a wrong type is a RecordError that names the field."""

    def __init__(self, key: str, data: dict[str, Any]) -> None:
        self._key, self._data = key, data

    def _get(self, name: str, default: Any) -> Any:
        value = self._data.get(name)
        if value is None:
            if default is _NEEDED:
                raise RecordError(f"{self._key}: {name} is missing")
            return default
        return value

    def text(self, name: str, default: Any = _NEEDED, empty: bool = False) -> Any:
        value = self._get(name, default)
        if value is not default and (not isinstance(value, str) or not (value or empty)):
            raise RecordError(f"{self._key}: {name} has to be text, not {value!r}")
        return value

    def integer(self, name: str, default: Any, minimum: int) -> Any:
        value = self._get(name, default)
        if value is not default and (type(value) is not int or value < minimum):
            raise RecordError(f"{self._key}: {name} has to be an integer of at least {minimum}, not {value!r}")
        return value

    def number(self, name: str) -> float | None:
        value = self._get(name, None)
        if value is None:
            return None
        if type(value) not in (int, float):
            raise RecordError(f"{self._key}: {name} has to be a number, not {value!r}")
        return float(value)
