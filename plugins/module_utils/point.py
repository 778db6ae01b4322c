# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One measured AgentX point: reading the client's artifacts and computing its metrics anew from the records.

Definitions (InferenceX's aggregation, recomputed here so that two programs must agree):
  tok_s           (sum of prompt + completion tokens of error-free profiling records) / (last end - first start), tokens per second
  intvty_p90      1 / p90 of (HTTP end - first token) / (output tokens - 1), tokens per second and user: the published axis
  intvty_last_p90 the same up to the last token
  e2e_norm_p90    1 / p90 of latency / output tokens
Percentiles are linearly interpolated.
"""
from __future__ import annotations

import json
import os
from typing import Any, Iterable

RECORDS = "profile_export.jsonl"
AGGREGATE = "profile_export_aiperf.json"
SERVER_METRICS = "server_metrics_export.json"


class ArtifactError(ValueError):
    """An artifact is missing or cannot be read; the text names the file."""


def percentile(values: list[float], q: float) -> float | None:
    """The q quantile (0..1), linearly interpolated; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * q
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def load(folder: str) -> dict[str, Any]:
    """Read a client's artifact folder: {records, aggregate, server_metrics (None when absent)}."""
    out: dict[str, Any] = {}
    for key, name, needed in (("records", RECORDS, True), ("aggregate", AGGREGATE, True), ("server_metrics", SERVER_METRICS, False)):
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            if needed:
                raise ArtifactError(f"{path} is missing: the client did not finish; see its benchmark.log")
            out[key] = None
            continue
        try:
            with open(path, encoding="utf-8") as lines:
                out[key] = [json.loads(line) for line in lines if line.strip()] if name.endswith("l") else json.load(lines)
        except ValueError as error:
            raise ArtifactError(f"{path} is not JSON: {error}") from error
    return out


def value(record: dict[str, Any], name: str) -> float | None:
    """One metric of a record, or None."""
    entry = record.get("metrics", {}).get(name)
    return None if entry is None else entry["value"]


def phase(records: Iterable[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [r for r in records if r["metadata"]["benchmark_phase"] == name]


def clean(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Profiling records that count: no error, not cancelled."""
    return [r for r in phase(records, "profiling") if not r.get("error") and not r["metadata"].get("was_cancelled")]


def span_s(records: list[dict[str, Any]]) -> float:
    """Seconds from the first start to the last end."""
    if not records:
        return 0.0
    return (max(r["metadata"]["request_end_ns"] for r in records) - min(r["metadata"]["request_start_ns"] for r in records)) / 1e9


def _spread(values: list[float]) -> dict[str, float | None]:
    return {"mean": sum(values) / len(values) if values else None, "p50": percentile(values, 0.5), "p90": percentile(values, 0.9)}


def _inverse_p90(values: list[float], scale: float = 1000.0) -> float | None:
    p90 = percentile(values, 0.9)
    return None if not p90 else scale / p90


def metrics(records: list[dict[str, Any]], gpus: int) -> dict[str, Any]:
    """The row's metrics from the records; values that the records do not carry are None, never 0."""
    counted = [r for r in clean(records) if value(r, "usage_prompt_tokens") is not None and value(r, "usage_completion_tokens") is not None]
    prompt = sum(value(r, "usage_prompt_tokens") for r in counted)
    output = sum(value(r, "usage_completion_tokens") for r in counted)
    seconds = span_s(counted)
    full, last, e2e = [], [], []
    for record in counted:
        length = value(record, "output_sequence_length")
        latency = value(record, "request_latency")
        if length and latency is not None:
            e2e.append(latency / length)
        if length and length > 1:
            for target, name in ((full, "full_decode_duration"), (last, "decode_duration")):
                duration = value(record, name)
                if duration is not None:
                    target.append(duration / (length - 1))
    ttft = {True: [], False: []}
    longest_first = None
    for record in counted:
        first = value(record, "time_to_first_token")
        if first is None:
            continue
        is_first = record["metadata"].get("turn_index") == 0
        ttft[is_first].append(first)
        if is_first:
            longest_first = first if longest_first is None else max(longest_first, first)
    cached = [value(r, "usage_prompt_cache_read_tokens") for r in counted]
    known = [c for c in cached if c is not None]
    both = ttft[True] + ttft[False]
    return {
        "tok_s": (prompt + output) / seconds if seconds else None,
        "tok_s_gpu": (prompt + output) / seconds / gpus if seconds and gpus else None,
        "out_tok_s_gpu": output / seconds / gpus if seconds and gpus else None,
        "req_s": len(counted) / seconds if seconds else None,
        "intvty_p90": _inverse_p90(full), "intvty_last_p90": _inverse_p90(last), "e2e_norm_p90": _inverse_p90(e2e),
        "ttft_p50": percentile(both, 0.5), "ttft_p90": percentile(both, 0.9),
        "ttft_first_turn_p90": percentile(ttft[True], 0.9), "ttft_later_turns_p90": percentile(ttft[False], 0.9), "ttft_first_turn_max": longest_first,
        "isl": _spread([value(r, "usage_prompt_tokens") for r in counted]), "osl": _spread([value(r, "usage_completion_tokens") for r in counted]),
        "cache_usage": sum(known) / prompt if known and prompt else None,
        "records": len(counted), "span_s": seconds,
    }


def agreement(own: dict[str, Any], aggregate: dict[str, Any], gpus: int) -> dict[str, float | None]:
    """Own figures over the client's: ratios that should be 1 (tok_s_gpu, intvty_p90)."""
    out: dict[str, float | None] = {}
    theirs = aggregate.get("total_token_throughput", {}).get("avg")
    out["tok_s_gpu"] = own["tok_s_gpu"] * gpus / theirs if own["tok_s_gpu"] and theirs else None
    itl = aggregate.get("full_response_inter_token_latency", {}).get("p90")
    out["intvty_p90"] = own["intvty_p90"] * itl / 1000.0 if own["intvty_p90"] and itl else None
    return out
