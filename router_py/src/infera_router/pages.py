"""The routes that the router answers itself."""

from __future__ import annotations

import json
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infera_router.app import App
    from infera_router.fleet.record import WorkerRecord

JSON = b"application/json"


def dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def models(app: App) -> tuple[int, bytes]:
    """Distinct names of what can be routed to, in OpenAI's form."""
    created = int(app.started_wall)
    data = [{"id": name, "object": "model", "created": created, "owned_by": "sglang"} for name in app.core.policy.models]
    return 200, dump({"object": "list", "data": data})


def model(app: App, name: str) -> tuple[int, bytes] | None:
    if name not in app.core.policy.models:
        return None
    return 200, dump({"id": name, "object": "model", "created": int(app.started_wall), "owned_by": "sglang"})


def worker(record: WorkerRecord, breaker: int, held: str | None) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    if record.disagg_mode != "mixed":
        params = {}
        if record.bootstrap_host:
            host = f"[{record.bootstrap_host}]" if ":" in record.bootstrap_host else record.bootstrap_host
            params = {"bootstrap_addr": f"{host}:{record.bootstrap_port}"}
        meta = {"protocol": record.protocol, "params": params}
    return {
        "worker_id": record.worker_id, "url": record.url, "model_name": record.model_name, "engine": record.engine, "status": record.status,
        "disagg_mode": record.disagg_mode, "disagg_meta": meta, "kv_events_endpoint": record.kv_events_endpoint,
        "kv_block_size": record.kv_block_size, "dp_rank": record.dp_rank, "dp_size": record.dp_size, "pp_size": record.pp_size,
        "tp_size": record.tp_size, "generation": record.generation, "started_at": record.started_at,
        "breaker": ("closed", "open", "half-open")[breaker], "held_out": held,
    }


def breakers(app: App) -> dict[str, list[Any]]:
    """Per worker: the breaker's state in this process and why it is held out, or None."""
    breaker = app.core.policy.breaker
    held = breaker.held()
    return {worker_id: [breaker.state(worker_id), held.get(worker_id)] for worker_id in app.fleet.snapshot.workers}


def workers(app: App, seen: list[dict[str, list[Any]]]) -> list[dict[str, Any]]:
    """All workers; the breaker is the worst of all processes, since each judges by what it saw."""
    out = []
    for worker_id, record in sorted(app.fleet.snapshot.workers.items()):
        states = [one[worker_id] for one in seen if worker_id in one]
        worst = max((state for state, _ in states), key=(0, 2, 1).index, default=0)
        out.append(worker(record, worst, next((why for _, why in states if why), None)))
    return out


def health(app: App) -> tuple[int, bytes]:
    active = sum(record.routable for record in app.fleet.snapshot.workers.values())
    return 200, dump({"status": "ok", "active_workers": active})


def ready(app: App) -> tuple[int, bytes]:
    counts = app.core.policy.counts()
    value: dict[str, Any] = {"ready": app.ready, "draining": app.core.draining, "workers": counts}
    if not app.ready:
        value["reason"] = ("draining" if app.core.draining else "no etcd view yet" if not app.synced
                           else "the tokenizer is being loaded" if app.loading else "no servable pool")
    return (200 if app.ready else 503), dump(value)


def booked(app: App) -> dict[str, Any]:
    """What this process adds to the demand page."""
    policy = app.core.policy
    age, target = policy.oldest_lease(monotonic())
    return {"decisions": dict(policy.decisions), "leases": policy.open_leases, "oldest": [round(age, 3), target]}


def demand(app: App, seen: list[dict[str, Any]]) -> dict[str, Any]:
    """What is booked on each decode target by all processes, and how old the oldest booking is."""
    policy = app.core.policy
    age, target = max((one["oldest"] for one in seen), key=lambda oldest: oldest[0])
    return {
        "mode": policy.settings.decode_input_demand, "request_weight": policy.settings.decode_request_weight,
        "targets": [{"target": h.target, "tokens": h.tokens, "requests": h.requests, "unknown": h.unknown, "live": h.live}
                    for h in policy.demand()],
        "decisions": {name: sum(one["decisions"].get(name, 0) for one in seen) for name in policy.decisions},
        "leases": sum(one["leases"] for one in seen), "oldest_lease_seconds": age, "oldest_lease_target": target, "processes": len(seen),
    }


def cache(app: App, worker_id: str, rank: int | None, every: bool = False) -> tuple[int, bytes] | None:
    """Pages that the router believes a worker holds; `every`: each page's event id with its tiers (bits: 1 GPU, 2 host, 4 disk, 8 external)."""
    if worker_id not in app.fleet.snapshot.workers:
        return None
    view = app.core.preparer.view if app.core.preparer is not None else None
    rows = {key: pages for key, pages in (view.sizes() if view is not None else {}).items()
            if key == worker_id or key.startswith(worker_id + "#dp") and (rank is None or key == f"{worker_id}#dp{rank}")}
    value: dict[str, Any] = {"worker_id": worker_id, "targets": rows, "blocks": sum(rows.values())}
    if every:
        value["pages"] = {key: {str(page): tiers for page, tiers in view.holds(key).items()} for key in rows}
    return 200, dump(value)
