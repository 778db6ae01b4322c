"""What is counted. Plain numbers on the request path; exposition.py turns them into a Prometheus page.

`FAMILIES` is the one table of metric names: the manual, the alert rules and the dashboard are checked against it. A `Store` can be sent to
another process as plain data and merged there, so that any of several worker processes answers for all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
BLOCKS = (0, 1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. `merge` says how the values of several processes become one: sum, or max where each sees the same thing."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    merge: str = "sum"


FAMILIES: dict[str, Family] = {f.name: f for f in (
    Family("infera_requests_total", COUNTER, "Requests that ended, by mode (pd, mixed, none) and outcome.", ("router", "outcome")),
    Family("infera_request_errors_total", COUNTER, "Requests not served in full, by reason.", ("reason",)),
    Family("infera_request_duration_seconds", HISTOGRAM, "From the request's last byte to the end of its answer, streams included.",
           ("router", "outcome"), SECONDS),
    Family("infera_request_inflight", GAUGE, "Requests being served, until the end of their streams.", ("router",)),
    Family("infera_time_to_first_token_seconds", HISTOGRAM, "From the request's last byte to the first byte of a stream's body.",
           ("router",), SECONDS),
    Family("infera_inter_token_latency_seconds", HISTOGRAM, "Between two reads of a stream from its engine.", ("router",), SHORT),
    Family("infera_pd_dispatch_duration_seconds", HISTOGRAM, "From sending a leg to the head of its answer.", ("leg", "worker_id"), SECONDS),
    Family("infera_pd_bootstrap_failures_total", COUNTER, "PD requests that could not be addressed.", ("reason",)),
    Family("infera_leg_failures_total", COUNTER, "Legs that failed before the first client byte.", ("leg", "worker_id", "reason")),
    Family("infera_request_retries_total", COUNTER, "Requests picked anew after a worker fault.", ("reason",)),
    Family("infera_request_cancellations_total", COUNTER, "Clients that left, by how far their request was.", ("stage",)),
    Family("infera_aborts_total", COUNTER, "Abort calls sent to engines, by leg and result.", ("leg", "result")),
    Family("infera_prefill_orphans", GAUGE, "Prefill legs whose request has ended.", ()),
    Family("infera_prefill_stalled", GAUGE, "1 while a prefill is out of rotation because it makes no progress.", ("worker_id",), (), "max"),
    Family("infera_stream_breaks_total", COUNTER, "Streams that broke after the first byte, by reason.", ("reason",)),
    Family("infera_engine_connections_opened_total", COUNTER, "Connections opened to engines."),
    Family("infera_engine_connections_reused_total", COUNTER, "Legs sent on a pooled connection."),
    Family("infera_engine_connections_stale_total", COUNTER, "Pooled connections found ended or too old before use."),
    Family("infera_engine_connection_repeats_total", COUNTER, "Legs sent again because a pooled connection broke before any answer."),
    Family("infera_engine_connections", GAUGE, "Open connections to engines, by state.", ("state",)),
    Family("infera_client_connections", GAUGE, "Open client connections."),
    Family("infera_active_workers", GAUGE, "Workers that can be routed to.", ("disagg_mode",), (), "max"),
    Family("infera_router_picks_total", COUNTER, "Targets picked.", ("role", "worker_id")),
    Family("infera_router_pick_request_blocks", HISTOGRAM, "Full pages of the prompts that were hashed.", ("role",), BLOCKS),
    Family("infera_router_pick_cache_hits", HISTOGRAM, "Of these, pages that the picked target held.", ("role",), BLOCKS),
    Family("infera_router_worker_breaker_state", GAUGE, "0 closed, 1 open, 2 half-open.", ("worker_id",), (), "max"),
    Family("infera_router_worker_breaker_trips_total", COUNTER, "Times the breaker opened.", ("worker_id",)),
    Family("infera_router_decode_demand_requests", GAUGE, "Requests booked on a decode target and not released.", ("target",), (), "max"),
    Family("infera_router_decode_demand_tokens", GAUGE, "Prompt tokens booked on a decode target, of requests whose size is known.",
           ("target",), (), "max"),
    Family("infera_router_decode_demand_unknown", GAUGE, "Booked requests whose size is unknown.", ("target",), (), "max"),
    Family("infera_router_decode_demand_decisions_total", COUNTER, "Demand decisions against the ordinary policy.", ("mode", "outcome")),
    Family("infera_router_decode_demand_engine_requests", GAUGE, "Requests that the decode target itself says it holds, at the last audit.",
           ("target",), (), "max"),
    Family("infera_router_decode_demand_difference", GAUGE,
           "Requests on the ledger less those on the engine; the least of the last three audits, so one that stays is real.", ("target",)),
    Family("infera_router_decode_demand_audits_total", COUNTER, "Decodes asked for their loads: ok, unanswered, unusable.", ("outcome",)),
    Family("infera_router_session_active", GAUGE, "Sessions that are bound to a target.", ("role",), (), "max"),
    Family("infera_router_session_hits_total", COUNTER, "Picks that followed a session's binding.", ("role",)),
    Family("infera_router_session_selected_total", COUNTER, "Picks that bound a session.", ("role",)),
    Family("infera_router_session_unbound_total", COUNTER, "Picks of a session that found the table full and were served unbound."),
    Family("infera_router_session_escapes_total", COUNTER, "Picks that left a session's target because it was overloaded."),
    Family("infera_policy_active_blocks", GAUGE, "Distinct prompt pages in flight on a target, as kv-aware counts them.", ("target",)),
    Family("infera_policy_cache_view_size", GAUGE, "Pages that a target holds by its KV events; 0 while they are being repaired.", ("target",),
           (), "max"),
    Family("infera_router_kv_events_total", COUNTER, "What KV event streams brought (stored, removed, cleared) and what went wrong with them.",
           ("event",)),
    Family("infera_cache_locality_skipped_total", COUNTER, "Requests routed on load because their prompt could not be known, by reason.",
           ("reason",)),
    Family("infera_router_prompts_hashed_total", COUNTER, "Requests whose prompts were tokenized."),
    Family("infera_router_prompt_tokens_total", COUNTER, "Tokens of these prompts: new, or known from the same conversation.", ("kind",)),
    Family("infera_router_prompt_cache_bytes", GAUGE, "Memory that remembered conversations take."),
    Family("infera_router_render_compared_total", COUNTER, "Replies whose prompt size was compared with ours.", ("worker_id",)),
    Family("infera_router_render_mismatch_total", COUNTER, "Of these, replies with another size than ours.", ("worker_id",)),
    Family("infera_router_render_trusted", GAUGE, "0 while a worker is routed on load because its prompt sizes keep differing from ours.",
           ("worker_id",), (), "max"),
    Family("infera_router_decode_request_weight", GAUGE, "The weight W in force, in tokens per held request.", (), (), "max"),
    Family("infera_router_lease_oldest_seconds", GAUGE, "Age of the oldest lease.", (), (), "max"),
    Family("infera_router_leases", GAUGE, "Leases held."),
    Family("infera_router_leases_lost_total", COUNTER, "Leases that only the last resort released; a bug if not 0."),
    Family("infera_router_ready", GAUGE, "1 while the router takes requests and has a servable pool.", (), (), "max"),
    Family("infera_router_processes", GAUGE, "Worker processes that answered for this page."),
    Family("infera_router_ledger_lock_waits_total", COUNTER, "Picks that found the shared ledger locked by another process."),
    Family("infera_router_ledger_lock_timeouts_total", COUNTER, "Picks made without the lock because nobody gave it up within 50 ms."),
    Family("infera_router_process_restarts_total", COUNTER, "Worker processes that died and were started again."),
    Family("infera_router_uptime_seconds", GAUGE, "Since the process started.", (), (), "max"),
)}


class Histogram:
    __slots__ = ("buckets", "counts", "sum")

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.buckets, value)] += 1
        self.sum += value


class Store:
    """Values by family and label values. Hot code keeps the Histogram objects that `histogram` returns."""

    def __init__(self) -> None:
        self.numbers: dict[str, dict[tuple[str, ...], float]] = {}
        self.histograms: dict[str, dict[tuple[str, ...], Histogram]] = {}

    def table(self, name: str) -> dict[tuple[str, ...], float]:
        """The values of a counter or gauge, to be changed in place."""
        if FAMILIES[name].kind == HISTOGRAM:
            raise KeyError(name)
        return self.numbers.setdefault(name, {})

    def add(self, name: str, labels: tuple[str, ...] = (), value: float = 1) -> None:
        table = self.numbers.get(name)
        if table is None:
            table = self.table(name)
        table[labels] = table.get(labels, 0) + value

    def set(self, name: str, labels: tuple[str, ...], value: float) -> None:
        self.table(name)[labels] = value

    def histogram(self, name: str, labels: tuple[str, ...] = ()) -> Histogram:
        table = self.histograms.setdefault(name, {})
        found = table.get(labels)
        if found is None:
            found = table[labels] = Histogram(FAMILIES[name].buckets)
        return found

    def drop(self, name: str, labels: tuple[str, ...]) -> None:
        self.numbers.get(name, {}).pop(labels, None)
        self.histograms.get(name, {}).pop(labels, None)

    def dump(self) -> dict:
        """Plain data for `merge` in another process."""
        return {
            "numbers": {name: [[list(k), v] for k, v in table.items()] for name, table in self.numbers.items()},
            "histograms": {name: [[list(k), h.counts, h.sum] for k, h in table.items()] for name, table in self.histograms.items()},
        }


def merge(dumps: Iterable[dict]) -> Store:
    """One store of several processes' dumps; unknown families are left out."""
    out = Store()
    for dump in dumps:
        for name, rows in dump["numbers"].items():
            if name not in FAMILIES:
                continue
            table = out.table(name)
            most = FAMILIES[name].merge == "max"
            for labels, value in rows:
                key = tuple(labels)
                table[key] = max(table.get(key, value), value) if most else table.get(key, 0) + value
        for name, rows in dump["histograms"].items():
            if name not in FAMILIES:
                continue
            for labels, counts, total in rows:
                target = out.histogram(name, tuple(labels))
                if len(counts) == len(target.counts):
                    target.counts = [a + b for a, b in zip(target.counts, counts)]
                    target.sum += total
    return out


def keep_counters(dump: dict) -> dict:
    """What of an ended process's dump stays true: counters and histograms, not gauges."""
    return {"numbers": {name: rows for name, rows in dump["numbers"].items() if name in FAMILIES and FAMILIES[name].kind == COUNTER},
            "histograms": dump["histograms"]}
