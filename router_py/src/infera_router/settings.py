"""Settings of the router: every flag with its variable, checked once, immutable afterwards."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from infera_router.fleet.etcd import EtcdSettings
from infera_router.fleet.etcd_options import ETCD_OPTIONS, etcd_settings
from infera_router.fleet.options import Option, OptionSet, UsageError, choice, file, integer, number, seconds, switch, text
from infera_router.policy.api import PolicySettings

MIB = 1 << 20

LISTEN = (
    Option("--host", "address to listen on", default="0.0.0.0", group="listening"),
    Option("--port", "port to listen on", integer(0, 65535), default=8000, group="listening"),
    Option("--workers", "processes that serve the port together; their bookings are exact across them", integer(1, 64), default=1,
           group="listening", metavar="N"),
    Option("--backlog", "connections that may wait to be accepted, per process", integer(1), default=4096, group="listening"),
    Option("--tls-cert-file", "PEM chain of the server certificate; with it the port speaks TLS only", file, group="listening", metavar="FILE"),
    Option("--tls-key-file", "PEM file of the certificate's key", file, group="listening", metavar="FILE"),
    Option("--api-key-file", "file with one API key per line (mode 0600); read again on SIGHUP. Without it every client is let in", file,
           group="listening", metavar="FILE"),
    Option("--metrics-auth", "on: /metrics needs an API key too", switch, default=False, group="listening", metavar="on|off"),
    Option("--handover", "on: take the listening socket over from a router that runs on the same address, without a refused connection", switch,
           default=True, group="listening", metavar="on|off"),
)
LIMITS = (
    Option("--max-body-bytes", "largest request body; 413 beyond", integer(1024), default=64 * MIB, group="limits"),
    Option("--max-header-bytes", "largest request head; 431 beyond", integer(1024), default=65536, group="limits"),
    Option("--max-concurrent-requests", "requests served at once per process; 429 with Retry-After beyond, 0 = no limit", integer(0), default=0,
           group="limits"),
    Option("--client-keepalive-timeout", "seconds an idle client connection is kept", seconds(1), default=350.0, group="limits"),
    Option("--client-read-timeout", "seconds a client may be silent in the middle of a request; 408 beyond", seconds(1), default=60.0,
           group="limits"),
    Option("--request-timeout", "seconds from a request to the end of its answer; 504 beyond, 0 = no limit", seconds(0), default=0.0, group="limits"),
    Option("--http-req-idle-timeout-s", "seconds without a byte from the engine; 504 beyond, 0 = no limit", seconds(0), default=0.0, group="limits"),
    Option("--drain-timeout", "seconds that running requests get after SIGTERM", seconds(0), default=120.0, group="limits"),
)
ENGINES = (
    Option("--connect-timeout", "seconds to connect to an engine", seconds(0.05), default=5.0, group="engines"),
    Option("--request-max-retries", "times a request is picked anew after a worker fault before its first byte", integer(0, 100), default=1,
           group="engines"),
    Option("--prefill-abort", "how a prefill leg is cancelled: always at once, never, or auto: at once unless its pipeline has several stages",
           choice("auto", "always", "never"), default="auto", group="engines", metavar="auto|always|never"),
    Option("--prefill-drain-timeout", "seconds a prefill may go on after its request has ended; 0 = no limit", seconds(0), default=300.0,
           group="engines"),
    Option("--prefill-stall-timeout", "seconds without progress after which a prefill that holds requests is taken out; 0 = never", seconds(0),
           default=60.0, group="engines"),
    Option("--discovery-backend", "where workers are found", choice("etcd"), default="etcd", group="engines", metavar="etcd"),
    Option("--request-transport", "how requests reach workers", choice("http"), default="http", group="engines", metavar="http"),
)
POLICY = (
    Option("--router-policy", "ordinary policy: kv-aware (cached prefix and load) or round-robin", choice("kv-aware", "round-robin"),
           default="round-robin", group="policy", metavar="kv-aware|round-robin"),
    Option("--router-tokenizer-path", "folder of the model's tokenizer; needed by kv-aware, and by demand to know prompt sizes", text,
           group="policy", metavar="DIR"),
    Option("--decode-input-demand", "decode by least demand (held tokens + weight × held requests): on, shadow (only recorded) or off",
           choice("on", "shadow", "off"), default="off", group="policy", metavar="on|shadow|off"),
    Option("--decode-request-weight", "W: tokens that one held request counts for; needs demand on or shadow", number(0), default=0.0,
           group="policy", metavar="W"),
    Option("--demand-audit-interval", "seconds between two comparisons of the ledger with the decodes' own loads; 0 = never", seconds(0), default=10.0,
           group="policy"),
    Option("--kv-overlap-weight", "cost of a page that is not cached, in pages of load", number(0), default=1.0, group="policy"),
    Option("--kv-prefill-overlap-weight", "the same for prefills only", number(0), group="policy"),
    Option("--kv-decode-overlap-weight", "the same for decodes only", number(0), group="policy"),
    Option("--kv-event-transport", "how KV events reach the router", choice("zmq"), default="zmq", group="policy", metavar="zmq"),
    Option("--session-affinity", "keep the turns of a session on one target: off, prefill, or both roles", choice("off", "prefill", "both"),
           default="off", group="policy", metavar="off|prefill|both"),
    Option("--session-affinity-ttl-secs", "seconds an idle session is remembered", seconds(1, 86400), default=3600.0, group="policy"),
    Option("--session-affinity-header", "headers that name a session, in the order they are looked for", text,
           default=PolicySettings().session_affinity_headers, repeat=True, group="policy"),
    Option("--session-affinity-capacity", "sessions remembered at most", integer(1), default=65536, group="policy"),
    Option("--session-affinity-escape", "leave a bound target with more legs under way than this times the mean of the others, plus 4; 0 = never",
           number(0), default=0.0, group="policy"),
    Option("--breaker-failure-threshold", "consecutive faults that open a worker's breaker; 0 = no breaker", integer(0), default=3, group="policy"),
    Option("--breaker-cooldown-s", "seconds an open breaker waits before one probe", seconds(0.01), default=5.0, group="policy"),
    Option("--breaker-max-cooldown-s", "the most that doubling makes of it", seconds(0.01), default=60.0, group="policy"),
)
OBSERVE = (
    Option("--log-format", "form of the log lines", choice("text", "json"), default="text", group="logs", metavar="text|json"),
    Option("--log-level", "least level that is logged", choice("debug", "info", "warning", "error"), default="info", group="logs",
           metavar="debug|info|warning|error"),
    Option("--access-log", "on: one line per request", switch, default=False, group="logs", metavar="on|off"),
    Option("--lease-warn-s", "age in seconds from which a lease is reported as a likely leak", seconds(1), default=3600.0, group="logs"),
)
OPTIONS = LISTEN + ETCD_OPTIONS + POLICY + ENGINES + LIMITS + OBSERVE


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one router. Times are seconds, sizes bytes."""

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    backlog: int = 4096
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    api_key_file: str | None = None
    metrics_auth: bool = False
    handover: bool = False
    max_body_bytes: int = 64 * MIB
    max_header_bytes: int = 65536
    max_concurrent_requests: int = 0
    client_keepalive_timeout: float = 350.0
    client_read_timeout: float = 60.0
    request_timeout: float = 0.0
    request_idle_timeout: float = 0.0
    drain_timeout: float = 120.0
    connect_timeout: float = 5.0
    request_max_retries: int = 1
    prefill_abort: str = "auto"
    prefill_drain_timeout: float = 300.0
    prefill_stall_timeout: float = 60.0
    demand_audit_interval: float = 10.0
    router_tokenizer_path: str | None = None
    log_format: str = "text"
    log_level: str = "info"
    access_log: bool = False
    lease_warn_s: float = 3600.0
    etcd_prefix: str = "/infera/workers/"
    policy: PolicySettings = field(default_factory=PolicySettings)
    etcd: EtcdSettings = field(default_factory=EtcdSettings)


def option_set() -> OptionSet:
    return OptionSet(
        "infera-router", OPTIONS, "Routes OpenAI, Anthropic and native requests to SGLang prefill/decode pairs and mixed workers found in etcd.",
        epilog="A flag beats its variable, a variable beats the default, an empty variable counts as unset.\n"
               "Signals: SIGTERM and SIGINT drain and exit, SIGHUP reads the API keys again.")


def read(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from the command line and the environment. Raises UsageError that names the option."""
    return from_values(option_set().read(argv, environ))


def from_values(values: argparse.Namespace) -> Settings:
    weight_given = "decode_request_weight" in values.given
    policy = PolicySettings(
        session_affinity_headers=tuple(values.session_affinity_header),
        **{f.name: getattr(values, f.name) for f in fields(PolicySettings) if f.name not in ("session_affinity_headers", "session_affinity_ttl_s")},
        session_affinity_ttl_s=values.session_affinity_ttl_secs,
    )
    problems = policy.problems()
    if problems:
        note = "" if weight_given or "--decode-request-weight" not in problems[0] else " (from INFERA_DECODE_REQUEST_WEIGHT)"
        raise UsageError("; ".join(problems) + note)
    for one, other in (("tls_cert_file", "tls_key_file"), ("tls_key_file", "tls_cert_file")):
        if getattr(values, one) and not getattr(values, other):
            raise UsageError(f"--{one.replace('_', '-')} needs --{other.replace('_', '-')}")
    if values.metrics_auth and not values.api_key_file:
        raise UsageError("--metrics-auth on needs --api-key-file")
    if policy.router_policy == "kv-aware" and not values.router_tokenizer_path:
        raise UsageError("--router-policy kv-aware needs --router-tokenizer-path")
    own = {f.name for f in fields(Settings)} - {"policy", "etcd", "request_idle_timeout"}
    return Settings(request_idle_timeout=values.http_req_idle_timeout_s, policy=policy, etcd=etcd_settings(values),
                    **{name: getattr(values, name) for name in own})
