"""Where an engine publishes its KV events: decided before the start, read back from the running server. Pure."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from typing import Any

EVENTS_OFFSET = 310
REPLAY_OFFSET = 340
TOPIC = "kv-events"
WILDCARDS = ("", "0.0.0.0", "::", "*")


class KvPlaneError(ValueError):
    """Ports that cannot be; one line that names the option."""


def wanted(mode: str, role: str) -> bool:
    """Whether events are published: *mode* is on, off or auto; auto leaves a decode out, whose radix cache is off by default."""
    return mode == "on" or (mode == "auto" and role != "decode")


def config(http_port: int, ranks: int, host: str, events_port: int | None, replay_port: int | None, topic: str,
           bind_supported: bool) -> str:
    """The value of ``--kv-events-config``: rank r publishes on the events port + r and replays on the replay port + r.

    The sockets listen where HTTP listens, if that is an IPv4 address and this SGLang can be told to bind it.
    """
    events = events_port or http_port + EVENTS_OFFSET
    replay = replay_port or http_port + REPLAY_OFFSET
    for name, port in (("--kv-events-port", events), ("--kv-replay-port", replay)):
        if port + ranks - 1 > 65535:
            raise KvPlaneError(f"{name}: {port} leaves no room for {ranks} ranks below 65536")
    if abs(events - replay) < ranks:
        raise KvPlaneError(f"--kv-events-port {events} and --kv-replay-port {replay}: {ranks} ranks need ranges that do not overlap")
    data: dict[str, Any] = {"publisher": "zmq", "topic": topic}
    concrete = _ipv4(host)
    data["endpoint"] = f"tcp://{host if concrete and bind_supported else '*'}:{events}"
    data["replay_endpoint"] = f"tcp://{host if concrete else '*'}:{replay}"
    if concrete and bind_supported:
        data["bind"] = True
    return json.dumps(data, separators=(",", ":"))


def endpoints(info: Mapping[str, Any], configured: str | None, host: str) -> dict[str, Any]:
    """Record fields of the running server's *info* (``/server_info``); *configured* fills in what an older SGLang does not say."""
    described = info.get("kv_events")
    nothing = {"kv_events_endpoint": None, "kv_replay_endpoint": None, "kv_topic": None, "kv_block_size": None}
    if not isinstance(described, Mapping) or not described.get("endpoint_port_base"):
        return nothing
    replay = described.get("replay_endpoint_port_base") or _port(_configured(configured).get("replay_endpoint"))
    shown = f"[{host}]" if ":" in host else host
    return {
        "kv_events_endpoint": f"tcp://{shown}:{described['endpoint_port_base']}",
        "kv_replay_endpoint": f"tcp://{shown}:{replay}" if replay else None,
        "kv_topic": described.get("topic", ""),
        "kv_block_size": described.get("block_size") or None,
    }


def _configured(text: str | None) -> Mapping[str, Any]:
    try:
        data = json.loads(text or "{}")
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _port(endpoint: Any) -> int | None:
    if not isinstance(endpoint, str) or not endpoint.startswith("tcp://"):
        return None
    tail = endpoint.rpartition(":")[2]
    return int(tail) if tail.isdigit() else None


def _ipv4(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 4 and host not in WILDCARDS
    except ValueError:
        return False
