"""From what the arguments say and the running server answers to the worker record."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from infera_router.fleet.http1 import HttpError, fetch
from infera_router.fleet.record import MIXED, PREFILL, PROTOCOL, STARTING, WorkerRecord, join_address

from infera_engine import kvplane
from infera_engine.ask import EngineArgs


def before_start(args: EngineArgs, host: str, generation: str, started_at: float) -> WorkerRecord:
    """The record while the model loads: what the command line says."""
    values = args.values
    worker_id = join_address(host, values["port"])
    prefill = args.mode == PREFILL
    return WorkerRecord(
        worker_id=worker_id,
        url=f"http://{worker_id}",
        model_name=values["served_model_name"] or values["model_path"],
        status=STARTING,
        disagg_mode=args.mode,
        protocol=None if args.mode == MIXED else PROTOCOL,
        bootstrap_host=host if prefill else None,
        bootstrap_port=values["disaggregation_bootstrap_port"] if prefill else None,
        dp_size=_ranks(values) if _ranks(values) > 1 else None,
        page_size=values["page_size"] if (values["page_size"] or 0) > 0 else None,
        pp_size=values["pp_size"] or 1,
        tp_size=values["tp_size"] or 1,
        generation=generation,
        started_at=started_at,
    )


def when_ready(record: WorkerRecord, info: Mapping[str, Any], args: EngineArgs) -> WorkerRecord:
    """*record* with what the running server resolved (its ``/server_info``); the status is the caller's business."""
    kv = kvplane.endpoints(info, args.values["kv_events_config"], record.host)
    described = info.get("kv_events")
    # The descriptor counts ranks the same way under both spellings of data parallelism; the flat fields need their product.
    ranks = described.get("dp_size") if isinstance(described, Mapping) else None
    ranks = max(ranks or 1, _ranks(info))
    page = info.get("page_size") or record.page_size
    return dataclasses.replace(
        record,
        model_name=info.get("served_model_name") or record.model_name,
        dp_size=ranks if ranks > 1 else None,
        page_size=page,
        pp_size=info.get("pp_size") or record.pp_size,
        tp_size=info.get("tp_size") or record.tp_size,
        kv_events_endpoint=kv["kv_events_endpoint"],
        kv_replay_endpoint=kv["kv_replay_endpoint"],
        kv_topic=kv["kv_topic"],
        kv_block_size=kv["kv_block_size"] or page,
    )


async def read_server_info(host: str, port: int, headers: Mapping[str, str], timeout: float) -> dict[str, Any]:
    """Raises HttpError when the server does not answer with a JSON object."""
    for path in ("/server_info", "/get_server_info"):
        response = await fetch(host, port, path, timeout, headers=headers)
        if response.status == 404:
            continue
        try:
            info = json.loads(response.body)
        except ValueError:
            info = None
        if response.status != 200 or not isinstance(info, dict):
            raise HttpError(f"{path} answered with status {response.status} and no JSON object")
        return info
    raise HttpError("the server has neither /server_info nor /get_server_info")


def _ranks(values: Mapping[str, Any]) -> int:
    return (values.get("dp_size") or 1) * (values.get("attn_dp_size") or 1)
