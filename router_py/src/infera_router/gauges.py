"""Gauges that are read off the router when its metrics are asked for, beside what the request path counted."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from infera_router.observe.metrics import Store

if TYPE_CHECKING:
    from infera_router.app import App


def collect(app: App) -> Store:
    core, policy = app.core, app.core.policy
    store, now = core.store, monotonic()
    stats = core.engines.stats
    for name, value in (("opened", stats.opened), ("reused", stats.reused), ("stale", stats.stale)):
        store.set(f"infera_engine_connections_{name}_total", (), value)
    store.set("infera_engine_connection_repeats_total", (), stats.repeats)
    idle = core.engines.idle_connections()
    store.set("infera_engine_connections", ("idle",), idle)
    store.set("infera_engine_connections", ("busy",), core.engines.open_connections() - idle)
    store.set("infera_client_connections", (), len(app.connections))
    store.set("infera_prefill_orphans", (), core.orphaned)
    for role, count in policy.counts().items():
        store.set("infera_active_workers", (role,), count)
    _replace(store, "infera_router_worker_breaker_state", {(w,): policy.breaker.state(w) for w in app.fleet.snapshot.workers})
    _replace(store, "infera_router_worker_breaker_trips_total", {(w,): n for w, n in policy.breaker.trips.items()})
    held = policy.breaker.held()
    _replace(store, "infera_prefill_stalled", {(w,): int(w in held) for w, r in app.fleet.snapshot.workers.items() if r.disagg_mode == "prefill"})
    lines = policy.demand()
    for name in ("requests", "tokens", "unknown"):
        _replace(store, f"infera_router_decode_demand_{name}", {(h.target,): getattr(h, name) for h in lines})
    mode = policy.settings.decode_input_demand
    if mode != "off":
        for outcome, count in policy.decisions.items():
            store.set("infera_router_decode_demand_decisions_total", (mode, outcome), count)
    audit = app.audit
    if audit is not None:
        _replace(store, "infera_router_decode_demand_engine_requests", {(key,): count for key, count in audit.engine.items()})
        _replace(store, "infera_router_decode_demand_difference", {(key,): count for key, count in audit.difference.items()})
        for outcome, count in audit.outcomes.items():
            store.set("infera_router_decode_demand_audits_total", (outcome,), count)
    affinity = policy.affinity
    if affinity is not None:
        for role, count in affinity.active.items():
            store.set("infera_router_session_active", (role,), count)
            store.set("infera_router_session_hits_total", (role,), affinity.hits.get(role, 0))
            store.set("infera_router_session_selected_total", (role,), affinity.selected.get(role, 0))
        store.set("infera_router_session_unbound_total", (), affinity.unbound)
        store.set("infera_router_session_escapes_total", (), affinity.escapes)
    _prompts(app, store)
    store.set("infera_router_decode_request_weight", (), policy.settings.decode_request_weight)
    if policy.ledger.shared:
        region = policy.ledger.region
        store.set("infera_router_ledger_lock_waits_total", (), region.waits)
        store.set("infera_router_ledger_lock_timeouts_total", (), region.timeouts)
    store.set("infera_router_lease_oldest_seconds", (), policy.oldest_lease(now)[0])
    store.set("infera_router_leases", (), policy.open_leases)
    store.set("infera_router_leases_lost_total", (), policy.lost)
    store.set("infera_router_ready", (), int(app.ready))
    store.set("infera_router_uptime_seconds", (), now - app.started)
    return store


def _prompts(app: App, store: Store) -> None:
    """What kv-aware routing knows and how it came to know it."""
    flights = getattr(app.core.policy.ordinary, "flights", None)
    if flights is not None:
        _replace(store, "infera_policy_active_blocks", {(key,): count for key, count in flights().items()})
    preparer = app.core.preparer
    if preparer is None or not hasattr(preparer, "view"):
        return
    _replace(store, "infera_policy_cache_view_size", {(key,): pages for key, pages in preparer.view.sizes().items()})
    for event, count in list(preparer.view.counts.items()):
        store.set("infera_router_kv_events_total", (event,), count)
    for reason, count in preparer.errors.items():
        store.set("infera_cache_locality_skipped_total", (reason,), count)
    store.set("infera_router_prompts_hashed_total", (), preparer.prepared)
    builder, check = preparer.builder, preparer.check
    if builder is not None:
        store.set("infera_router_prompt_tokens_total", ("known",), builder.tokens_reused)
        store.set("infera_router_prompt_tokens_total", ("new",), builder.tokens_total - builder.tokens_reused)
        store.set("infera_router_prompt_cache_bytes", (), builder.cache.bytes)
    for worker_id, count in check.compared.items():
        store.set("infera_router_render_compared_total", (worker_id,), count)
        store.set("infera_router_render_mismatch_total", (worker_id,), check.mismatches.get(worker_id, 0))
    _replace(store, "infera_router_render_trusted", {(w,): int(check.trusted(w)) for w in app.fleet.snapshot.workers})


def _replace(store: Store, name: str, rows: dict) -> None:
    """Only workers and targets that are still there keep a series."""
    table = store.table(name)
    table.clear()
    table.update(rows)
