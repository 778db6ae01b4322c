# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Synthetic agent sessions in the Weka trace format that the AgentX client replays.

The laws below are a fit to published statistics of the 062126 corpus (393 traces; requests per trace, context by turn, output
lengths), not the corpus itself: a replay of these traces is a rehearsal and never comparable with a published point.
"""
from __future__ import annotations

import dataclasses
import json
import math
import os
import random
from typing import Any

BLOCK = 64  # tokens per hash id, as in the corpus


@dataclasses.dataclass(frozen=True)
class TraceLaw:
    """Sizes in tokens, times in seconds; (median, sigma) pairs are log-normal."""

    requests: tuple[float, float] = (88, 1.28)
    requests_min: int = 20
    requests_max: int = 3050
    subagent_traces: float = 0.8
    subagent_share: tuple[float, float] = (1.3, 1.15)
    group_size: tuple[float, float] = (16, 0.8)
    first_prompt: tuple[float, float] = (28_000, 0.35)
    system_tokens: int = 16_600
    subagent_system_tokens: int = 9_000
    tool_result: tuple[float, float] = (850, 1.15)
    tool_result_max: int = 45_000
    context_caps: tuple[int, ...] = (168_000, 190_000, 400_000, 900_000)
    compacted: tuple[int, int] = (12_000, 45_000)
    output: tuple[float, float] = (330, 1.5)
    output_max: int = 24_000
    idle: tuple[float, float] = (2.5, 1.3)
    long_idle: tuple[float, float] = (180, 1.0)
    long_idle_share: float = 0.04
    api_base: float = 1.2
    api_tokens_per_s: float = 70.0


@dataclasses.dataclass(frozen=True)
class TraceScale:
    """How a site shrinks the law: token counts and times are multiplied, requests per trace are capped.

    context_limit is the model's context in tokens; prompt + output of every request stays below it.
    """

    tokens: float = 1.0
    outputs: float = 1.0
    time: float = 1.0
    max_requests: int = 3050
    context_limit: int = 1_048_576


class TraceError(ValueError):
    """A scale that cannot give a usable trace."""


def _lognormal(rng: random.Random, law: tuple[float, float], low: float, high: float) -> float:
    return min(high, max(low, rng.lognormvariate(math.log(law[0]), law[1])))


class _Session:
    """One conversation that grows turn by turn; block ids are local to the trace."""

    def __init__(self, rng: random.Random, law: TraceLaw, scale: TraceScale, model: str, ids: list[int], system: int, cap: int) -> None:
        self.rng, self.law, self.scale, self.model, self.ids = rng, law, scale, model, ids
        self.system_blocks = self.fresh(max(1, system // BLOCK))
        first = _lognormal(rng, law.first_prompt, 2_000, 120_000) * scale.tokens
        self.blocks = self.system_blocks + self.fresh(max(1, int(max(first - system, BLOCK)) // BLOCK))
        self.cap = cap

    def fresh(self, count: int) -> list[int]:
        start = self.ids[0]
        self.ids[0] += count
        return list(range(start, start + count))

    def turn(self, t: float, think: float) -> dict[str, Any]:
        """The next request; afterwards the context holds its answer and a tool result."""
        law, scale = self.law, self.scale
        out = max(2, int(_lognormal(self.rng, law.output, 8, law.output_max) * scale.outputs))
        if len(self.blocks) * BLOCK + out >= self.cap:
            low, high = (max(1, int(x * scale.tokens) // BLOCK) for x in law.compacted)
            room = max(1, (self.cap - out) // BLOCK - len(self.system_blocks) - 1)
            self.blocks = self.system_blocks + self.fresh(min(room, self.rng.randint(low, max(low, high))))
            out = max(2, min(out, self.cap - len(self.blocks) * BLOCK - BLOCK))
        request = {
            "t": round(t, 3), "type": "s", "model": self.model, "in": len(self.blocks) * BLOCK, "out": out, "hash_ids": list(self.blocks),
            "input_types": ["tool_result"], "output_types": ["text", "tool_use"], "stop": "tool_use",
            "api_time": round((law.api_base + out / law.api_tokens_per_s) * scale.time, 3), "think_time": round(think, 3), "ttft": 0.5,
        }
        tool = _lognormal(self.rng, law.tool_result, 16, law.tool_result_max) * scale.tokens
        self.blocks = self.blocks + self.fresh(max(1, math.ceil((out + tool) / BLOCK)))
        return request


def _idle(rng: random.Random, law: TraceLaw, scale: TraceScale) -> float:
    pair = law.long_idle if rng.random() < law.long_idle_share else law.idle
    return _lognormal(rng, pair, 0.05, 3600) * scale.time


def trace(index: int, seed: int, model: str, law: TraceLaw = TraceLaw(), scale: TraceScale = TraceScale()) -> dict[str, Any]:
    """One session tree as the Weka JSON object. The same (index, seed, law, scale) gives the same trace."""
    rng = random.Random(f"{seed}/{index}")
    ids = [1]
    system = max(BLOCK, int(law.system_tokens * scale.tokens))
    cap = min(scale.context_limit, max(int(rng.choice(law.context_caps) * scale.tokens), system + 8 * BLOCK))
    if cap < system + 4 * BLOCK:
        raise TraceError(f"context_limit {scale.context_limit} leaves no room beside a system prompt of {system} tokens; lower tokens= (now {scale.tokens})")
    total = int(min(scale.max_requests, _lognormal(rng, law.requests, law.requests_min, law.requests_max)))
    share = rng.betavariate(*law.subagent_share) if rng.random() < law.subagent_traces else 0.0
    inner_left = int(total * share)
    main = _Session(rng, law, scale, model, ids, system, cap)
    requests: list[dict[str, Any]] = []
    t = 0.0
    for number in range(max(2, total - inner_left)):
        think = 0.0 if number == 0 else _idle(rng, law, scale)
        t += think
        request = main.turn(t, think)
        requests.append(request)
        t += request["api_time"]
        if inner_left > 0 and number > 0 and rng.random() < 0.25:
            size = int(min(inner_left, _lognormal(rng, law.group_size, 1, 400)))
            inner_left -= size
            marker, t = _subagent(rng, law, scale, model, ids, len(requests), size, t, cap)
            requests.append(marker)
    return {"id": f"synthetic-{seed}-{index:04d}", "models": [model], "block_size": BLOCK, "hash_id_scope": "local", "tool_tokens": system * 3 // 4,
            "system_tokens": system // 4, "requests": requests}


def _subagent(rng, law, scale, model, ids, number, size, t, cap):
    system = max(BLOCK, int(law.subagent_system_tokens * scale.tokens))
    agent = _Session(rng, law, scale, model, ids, system, cap)
    started, inner = t, []
    for turn in range(max(1, size)):
        think = 0.0 if turn == 0 else _idle(rng, law, scale)
        t += think
        inner.append(agent.turn(t, think))
        t += inner[-1]["api_time"]
    marker = {"t": round(started, 3), "type": "subagent", "agent_id": f"agent_{number:03d}", "subagent_type": "Explore",
              "duration_ms": int((t - started) * 1000), "total_tokens": sum(r["in"] + r["out"] for r in inner), "tool_use_count": len(inner),
              "status": "completed", "requests": inner, "models": [model], "tool_tokens": system * 3 // 4, "system_tokens": system // 4}
    return marker, t


def flat(session: dict[str, Any]) -> list[dict[str, Any]]:
    """Every request of a trace, subagents' included, in the order of the file."""
    out: list[dict[str, Any]] = []
    for entry in session["requests"]:
        out.extend(entry["requests"] if entry["type"] == "subagent" else [entry])
    return out


def write(folder: str, count: int, seed: int, model: str, law: TraceLaw = TraceLaw(), scale: TraceScale = TraceScale()) -> dict[str, Any]:
    """Write count traces into folder, one file each; return what was written: requests, longest prompt + output, in and out tokens."""
    os.makedirs(folder, exist_ok=True)
    requests = longest = tokens_in = tokens_out = 0
    for index in range(count):
        session = trace(index, seed, model, law, scale)
        for request in flat(session):
            requests += 1
            longest = max(longest, request["in"] + request["out"])
            tokens_in += request["in"]
            tokens_out += request["out"]
        if longest >= scale.context_limit:
            raise TraceError(f"trace {index} needs {longest} tokens, the model's context is {scale.context_limit}; lower tokens= (now {scale.tokens})")
        with open(os.path.join(folder, session["id"] + ".json"), "w", encoding="utf-8") as out:
            json.dump(session, out)
    return {"traces": count, "seed": seed, "requests": requests, "longest": longest, "tokens_in": tokens_in, "tokens_out": tokens_out}
