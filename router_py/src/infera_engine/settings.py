"""The supervisor's own flags, each with its INFERA_ variable; docs/reference/engine-cli.md is made from them."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from infera_router.fleet.etcd import EtcdSettings
from infera_router.fleet.etcd_options import ETCD_OPTIONS, etcd_settings
from infera_router.fleet.options import Option, OptionSet, UsageError, choice, integer, seconds, switch, text

from infera_engine.kvplane import EVENTS_OFFSET, REPLAY_OFFSET, TOPIC, WILDCARDS

SEPARATOR = "--"
LOOPBACK_NAMES = ("localhost", "ip6-localhost")


def advertised(value: str) -> str:
    """A host name or address that others can connect to, without port or brackets."""
    host = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    if host in WILDCARDS:
        raise ValueError("is a wildcard; routers and decodes need an address to connect to")
    if "/" in host or host.count(":") == 1 or any(char.isspace() for char in host):
        raise ValueError("is not a host name or address (give no port here)")
    return host


PORT = integer(1, 65535)

OPTIONS = (
    Option("--advertise-host", "address under which routers and decodes reach this engine; default SGLang's --host", advertised,
           group="engine"),
    Option("--allow-loopback", "let a prefill or decode register under a loopback address (all on one machine)", switch, default=False,
           bare=True, group="engine"),
    Option("--python", "Python that has SGLang; default the one that runs infera-engine", text, env="INFERA_SGLANG_PYTHON", metavar="FILE",
           group="engine"),
    Option("--kv-events", "publish KV events: on, off, or auto (on, but for a decode, whose radix cache is off)",
           choice("auto", "on", "off"), default="auto", metavar="MODE", group="engine"),
    Option("--kv-events-port", f"KV events port of rank 0, rank r adds r; default SGLang's HTTP port + {EVENTS_OFFSET}", PORT,
           group="engine"),
    Option("--kv-replay-port", f"KV replay port of rank 0, rank r adds r; default SGLang's HTTP port + {REPLAY_OFFSET}", PORT,
           group="engine"),
    Option("--kv-topic", "ZMQ topic of the KV events", text, default=TOPIC, group="engine"),
    Option("--ready-timeout", "seconds until SGLang's /health has to answer 200", seconds(1), default=1800.0,
           env="INFERA_ENGINE_READY_TIMEOUT", metavar="SECONDS", group="life cycle"),
    Option("--lease-ttl", "seconds that the record outlives a supervisor that died; renewed every third of it", integer(2, 3600),
           default=30, metavar="SECONDS", group="life cycle"),
    Option("--drain-timeout", "seconds that a stop waits for the engine's requests at most; 0 waits for none", seconds(), default=30.0,
           metavar="SECONDS", group="life cycle"),
    Option("--drain-settle", "seconds that the engine has to be empty in a row before a drain is done", seconds(), default=6.0,
           metavar="SECONDS", group="life cycle"),
    Option("--stop-timeout", "seconds between SIGTERM and SIGKILL for SGLang's process group", seconds(), default=30.0, metavar="SECONDS",
           group="life cycle"),
    *ETCD_OPTIONS,
    Option("--log-level", "debug, info, warning or error", choice("debug", "info", "warning", "error"), default="info",
           metavar="LEVEL", group="log"),
    Option("--log-format", "text or json, for the supervisor's own lines", choice("text", "json"), default="text", metavar="FORMAT",
           group="log"),
    Option("--check", "print the command that would be started, one argument a line, and end", switch, default=False, bare=True, env=None,
           group="log"),
)

DESCRIPTION = """Runs one SGLang server, registers it in etcd, drains it on SIGTERM and ends with it.

SIGUSR1 drains without stopping, SIGUSR2 takes that back."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Checked values of OPTIONS; durations in seconds."""

    advertise_host: str | None
    allow_loopback: bool
    python: str
    kv_events: str
    kv_events_port: int | None
    kv_replay_port: int | None
    kv_topic: str
    ready_timeout: float
    lease_ttl: int
    drain_timeout: float
    drain_settle: float
    stop_timeout: float
    etcd: EtcdSettings
    etcd_prefix: str
    log_level: str
    log_format: str
    check: bool
    argv: tuple[str, ...]

    def own(self) -> dict:
        """What the probe has to know of the flags."""
        return {"kv_events": self.kv_events, "kv_events_port": self.kv_events_port, "kv_replay_port": self.kv_replay_port,
                "kv_topic": self.kv_topic}


def option_set(version: str | None = None) -> OptionSet:
    return OptionSet("infera-engine", OPTIONS, DESCRIPTION, version=version,
                     usage="infera-engine [options] -- <arguments of sglang.launch_server>")


def read(options: OptionSet, argv: Sequence[str]) -> EngineSettings:
    """Raises UsageError."""
    own, engine = (argv[:argv.index(SEPARATOR)], argv[argv.index(SEPARATOR) + 1:]) if SEPARATOR in argv else (argv, ())
    values = options.read(own)
    if not engine:
        raise UsageError("no arguments for SGLang; write: infera-engine [options] -- --model-path MODEL ...")
    names = ("advertise_host allow_loopback kv_events kv_events_port kv_replay_port kv_topic ready_timeout lease_ttl drain_timeout "
             "drain_settle stop_timeout etcd_prefix log_level log_format check").split()
    return EngineSettings(python=values.python or sys.executable, etcd=etcd_settings(values), argv=tuple(engine),
                          **{name: getattr(values, name) for name in names})


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in LOOPBACK_NAMES


def resolve_host(settings: EngineSettings, bind_host: str | None, mode: str) -> str:
    """The address of the record. Raises UsageError for one that nobody could connect to."""
    host = settings.advertise_host or bind_host or "127.0.0.1"
    if host in WILDCARDS:
        raise UsageError(f"--advertise-host: needed, since SGLang's --host is the wildcard {host!r}")
    if mode != "mixed" and is_loopback(host) and not settings.allow_loopback:
        raise UsageError(f"--advertise-host: {host!r} is loopback, so that no other machine can reach this {mode}; give the fleet's "
                         "address, or --allow-loopback when all runs on this machine")
    return host
