"""What an emulated engine says of itself: the bodies of SGLang 0.5.22's status routes, with the fields that a router or a client reads."""
from __future__ import annotations

from typing import Any

from .ranks import Ranks

VERSION = "0.5.22+emulated"


def server_info(role: str, ranks: int, page_size: int, capacity: int | None, bootstrap_port: int, kv_events: dict[str, Any] | None) -> dict[str, Any]:
    tokens = capacity or 0
    return {"status": "ready", "version": VERSION, "emulated": True, "page_size": page_size, "tp_size": max(ranks, 1), "pp_size": 1, "dp_size": 1,
            "attn_dp_size": ranks, "disaggregation_mode": role, "disaggregation_bootstrap_port": bootstrap_port, "max_total_num_tokens": tokens,
            "kv_events": kv_events, "internal_states": [{"world_size": ranks, "memory_usage": {"token_capacity": tokens}} for _ in range(ranks)]}


def decode_loads(ranks: Ranks, prefilling: list[int]) -> dict[str, Any]:
    """prefilling: requests by rank whose KV is held and whose prefill is still under way."""
    lines = []
    for rank, jobs in enumerate(ranks.running):
        used, capacity, waiting = int(ranks.used[rank]), ranks.capacity or 0, ranks.waiting[rank]
        retracted = sum(job.generated for job in waiting)
        lines.append({"dp_rank": rank, "num_running_reqs": len(jobs), "num_waiting_reqs": len(waiting) + prefilling[rank], "num_used_tokens": used,
                      "num_total_tokens": used, "max_total_num_tokens": capacity, "token_usage": used / capacity if capacity else 0.0,
                      "disaggregation": {"mode": "decode", "prefill_bootstrap_queue_reqs": 0, "prefill_inflight_queue_reqs": 0,
                                         "decode_prealloc_queue_reqs": len(waiting) - retracted, "decode_transfer_queue_reqs": prefilling[rank],
                                         "decode_retracted_queue_reqs": retracted}})
    return {"loads": lines}


def prefill_loads(waiting: int, running: int) -> dict[str, Any]:
    return {"loads": [{"dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": 0, "num_used_tokens": 0, "num_total_tokens": 0,
                       "max_total_num_tokens": 0, "token_usage": 0.0, "utilization": -1.0,
                       "disaggregation": {"mode": "prefill", "prefill_bootstrap_queue_reqs": waiting, "prefill_inflight_queue_reqs": 0,
                                          "decode_prealloc_queue_reqs": 0, "decode_transfer_queue_reqs": 0, "decode_retracted_queue_reqs": 0}}]}


def metrics(model: str, role: str, loads: dict[str, Any], counters: dict[str, float], accept: float) -> bytes:
    """Prometheus text with SGLang's series names."""
    lines = []

    def gauge(name: str, value: float, rank: Any = None) -> None:
        labels = f'model_name="{model}",engine_type="{role}"' + (f',dp_rank="{rank}"' if rank is not None else "")
        lines.append(f"sglang:{name}{{{labels}}} {value:g}")

    for load in loads["loads"]:
        queue, rank = load["disaggregation"], load["dp_rank"]
        gauge("num_running_reqs", load["num_running_reqs"], rank)
        gauge("num_queue_reqs", load["num_waiting_reqs"], rank)
        gauge("token_usage", load["token_usage"], rank)
        gauge("max_total_num_tokens", load["max_total_num_tokens"], rank)
        for name in ("prefill_bootstrap", "prefill_inflight", "decode_prealloc", "decode_transfer"):
            gauge(f"num_{name}_queue_reqs", queue[f"{name}_queue_reqs"], rank)
    for name, value in counters.items():
        gauge(name, value)
    if role == "decode":
        gauge("spec_accept_length", accept)
    return "\n".join(lines).encode() + b"\n"
