# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The seventeen checks that a machine can decide before an AgentX point may stand in a table.

A point is the manifest that the agentx role wrote (what was deployed, asked for and seen) plus the client's artifacts.
Each check returns reasons; any reason makes the point invalid. Warnings do not.
"""
from __future__ import annotations

import dataclasses
from typing import Any, Callable

from . import point as p

MAX_ERROR_SHARE = 0.01
OFFICIAL_ERROR_SHARE = 0.10
MIN_COVERAGE = 0.95
MIN_SPAN_SHARE = 0.98
MAX_SHORT_SHARE = 0.01
ACCEPTANCE_TOLERANCE = 0.02
CACHE_SLACK = 0.05

# Acceptance length by number of draft tokens for GLM-5.2 with thinking on, as InferenceX's golden table publishes it.
GOLDEN_ACCEPTANCE = {1: 1.84, 2: 2.50, 3: 2.99, 4: 3.33, 5: 3.61, 6: 3.78, 7: 3.91, 8: 4.06}


@dataclasses.dataclass
class Point:
    """manifest: see docs/verification.md; artifacts: point.load()'s answer."""

    manifest: dict[str, Any]
    artifacts: dict[str, Any]

    @property
    def expect(self) -> dict[str, Any]:
        return self.manifest["expect"]

    @property
    def containers(self) -> list[dict[str, Any]]:
        return self.manifest["deployment"]["containers"]

    @property
    def aggregate(self) -> dict[str, Any]:
        return self.artifacts["aggregate"]

    @property
    def records(self) -> list[dict[str, Any]]:
        return self.artifacts["records"]


@dataclasses.dataclass
class Verdict:
    """valid: may stand in a table; result_class: measured, rehearsal or smoke; reasons: 'NUMBER name: text'."""

    valid: bool
    result_class: str
    reasons: list[str]
    warnings: list[str]


def submission(point: Point) -> list[str]:
    out = []
    meta = point.aggregate.get("metadata", {})
    if meta.get("submission_valid") is not True:
        out.append(f"submission_valid is {meta.get('submission_valid')}: {', '.join(meta.get('submission_invalid_reasons') or ['no reason given'])}")
    if point.aggregate.get("was_cancelled"):
        out.append("the client cancelled the run")
    if meta.get("scenario") not in point.expect["scenarios"]:
        out.append(f"scenario is {meta.get('scenario')!r}, expected one of {point.expect['scenarios']}")
    coverage = meta.get("metric_duration_coverage")
    values = list(coverage.values()) if isinstance(coverage, dict) else [coverage]
    if not values or any(v is None or v < MIN_COVERAGE for v in values):
        out.append(f"metric coverage is {coverage}, needed {MIN_COVERAGE}")
    return out


def duration(point: Point) -> list[str]:
    seconds, asked = p.span_s(p.clean(point.records)), point.expect["duration"]
    return [] if seconds >= MIN_SPAN_SHARE * asked else [f"measured {seconds:.0f} s of {asked} s"]


def dataset(point: Point) -> list[str]:
    out = []
    used, wanted = point.manifest.get("dataset") or {}, point.expect["dataset"]
    for key in ("id", "revision", "sha256"):
        if not wanted.get(key) or used.get(key) != wanted.get(key):
            out.append(f"dataset {key} is {used.get(key)!r}, expected {wanted.get(key)!r}")
    if (used.get("entries") or 0) < wanted["entries"]:
        out.append(f"{used.get('entries')} dataset entries, expected {wanted['entries']}")
    seed = point.aggregate.get("run_info", {}).get("random_seed")
    if seed != point.expect["seed"]:
        out.append(f"seed is {seed}, expected {point.expect['seed']}")
    return out


def errors(point: Point) -> list[str]:
    profiled, warmed = p.phase(point.records, "profiling"), p.phase(point.records, "warmup")
    out = []
    failed = sum(bool(r.get("error")) for r in profiled)
    if profiled and failed > MAX_ERROR_SHARE * len(profiled):
        official = "; official-ok, strict-fail" if failed <= OFFICIAL_ERROR_SHARE * len(profiled) else ""
        out.append(f"{failed} of {len(profiled)} requests failed (more than {MAX_ERROR_SHARE:.0%}{official})")
    broken = sum(bool(r.get("error")) for r in warmed)
    if broken:
        out.append(f"{broken} warm-up requests failed")
    skipped = sum(bool(r["metadata"].get("context_overflow_skip")) for r in profiled)
    if profiled and skipped > MAX_ERROR_SHARE * len(profiled):
        out.append(f"{skipped} of {len(profiled)} requests overflowed the context")
    return out


def warmup(point: Point) -> list[str]:
    lanes, per_lane = point.manifest["conc"], point.expect["warmup_per_lane"]
    warmed = p.phase(point.records, "warmup")
    out = []
    if len(warmed) < lanes * (per_lane + 1):
        out.append(f"{len(warmed)} warm-up requests, needed {lanes} lanes x ({per_lane} + 1)")
    trees = {r["metadata"].get("root_correlation_id") or r["metadata"]["x_correlation_id"] for r in warmed}
    if len(trees) < lanes:
        out.append(f"{len(trees)} of {lanes} lanes warmed up")
    return out


def usage(point: Point) -> list[str]:
    counted = p.clean(point.records)
    bare = sum(p.value(r, "usage_prompt_tokens") is None or p.value(r, "usage_completion_tokens") is None for r in counted)
    short = sum((p.value(r, "osl_mismatch_diff_pct") or 0) < 0 for r in counted)
    out = [] if counted else ["no profiled record without an error"]
    if bare:
        out.append(f"{bare} of {len(counted)} records carry no usage")
    if counted and short > MAX_SHORT_SHARE * len(counted):
        out.append(f"{short} of {len(counted)} answers are shorter than asked")
    return out


def acceptance(point: Point) -> list[str]:
    target, draft = point.expect["acceptance"], point.expect["draft_tokens"]
    out = []
    if GOLDEN_ACCEPTANCE.get(draft) != target:
        out.append(f"golden acceptance for {draft} draft tokens is {GOLDEN_ACCEPTANCE.get(draft)}, the point forces {target}")
    decodes = [c for c in point.containers if c["role"] == "decode"]
    seen = point.manifest.get("acceptance") or {}
    for container in decodes:
        forced = container["env"].get("SGLANG_SIMULATE_ACC_LEN")
        if forced is None or float(forced) != target:
            out.append(f"{container['name']}: SGLANG_SIMULATE_ACC_LEN is {forced}, expected {target}")
        length = seen.get(container["name"])
        if length is None:
            out.append(f"{container['name']}: no acceptance length was seen")
        elif abs(length - target) > ACCEPTANCE_TOLERANCE * target:
            out.append(f"{container['name']}: acceptance length {length:.2f}, expected {target} within {ACCEPTANCE_TOLERANCE:.0%}")
    if not decodes:
        out.append("no decode container in the record")
    settings = {tuple(sorted((k, v) for k, v in c["env"].items() if k.startswith("SGLANG_SIMULATE_"))) for c in decodes}
    if len(settings) > 1:
        out.append("SGLANG_SIMULATE_* differs between decodes")
    return out


def freshness(point: Point) -> list[str]:
    up = point.manifest["deployment"]["up_at"]
    out = [f"{c['name']} started before this point's up: the deployment is not fresh" for c in point.containers if c["started_at"] < up]
    if point.manifest["deployment"].get("points", 1) != 1:
        out.append(f"deployment {point.manifest['deployment']['id']} served {point.manifest['deployment']['points']} points")
    out += [f"{worker} had served {count:g} requests before the client started"
            for worker, count in sorted((point.manifest.get("requests_before") or {}).items()) if count]
    return out


def gpu_count(point: Point) -> list[str]:
    gpus = point.manifest["gpus"]
    out = []
    bound = {(c["host"], g) for c in point.containers for g in c.get("gpus", ())}
    if gpus["prefill"] + gpus["decode"] != gpus["total"]:
        out.append(f"{gpus['prefill']} prefill + {gpus['decode']} decode GPUs are not {gpus['total']}")
    if len(bound) != gpus["total"]:
        out.append(f"{gpus['total']} GPUs counted, {len(bound)} bound by the deployment's containers")
    row = point.manifest.get("metrics") or {}
    if row.get("tok_s") and row.get("tok_s_gpu") and abs(row["tok_s_gpu"] * gpus["total"] / row["tok_s"] - 1) > 1e-6:
        out.append("tok_s_gpu x GPUs is not tok_s")
    return out


def endpoints(point: Point) -> list[str]:
    exported = point.artifacts["server_metrics"]
    seen = set((exported or {}).get("summary", {}).get("endpoints_successful", ()))
    return [f"no metrics from {url}" for url in point.expect["metrics_urls"] if url not in seen]


def images(point: Point) -> list[str]:
    out = []
    engines = {c["image_id"] for c in point.containers if c["role"] in ("prefill", "decode", "mixed")}
    if len(engines) != 1:
        out.append(f"{len(engines)} engine images in one deployment")
    out += [f"{c['name']}: {', '.join(c['drift'])} differ from the plan" for c in point.containers if c.get("drift")]
    return out


def incidents(point: Point) -> list[str]:
    out = []
    for container in point.containers:
        if container.get("restarts"):
            out.append(f"{container['name']} restarted {container['restarts']} times")
        if container.get("oom_killed"):
            out.append(f"{container['name']} was killed for memory")
    out += [f"in the logs: {text}" for text in point.manifest.get("log_findings", ())]
    before, after = point.manifest.get("generations_before", {}), point.manifest.get("generations_after", {})
    out += [f"{worker} registered anew during the run" for worker in sorted(set(before) | set(after)) if before.get(worker) != after.get(worker)]
    return out


def extra_traffic(point: Point) -> list[str]:
    count = point.manifest.get("router_requests")
    known = len(point.records) + (point.manifest.get("cut_requests") or 0)
    if count is None:
        return ["the router's request count was not read"]
    return [] if count == known else [f"the router saw {count} requests, the client has {known}"]


def client_cpu(point: Point) -> list[str]:
    return ["the client warned that its CPU was too busy to measure"] if point.manifest.get("client_cpu_warning") else []


def simulated_eval(point: Point) -> list[str]:
    evaluation = point.manifest.get("evaluation")
    if not evaluation:
        return []
    out = []
    if evaluation.get("simulated"):
        out.append("the accuracy run had a simulated acceptance")
    if evaluation.get("effective") != 1319:
        out.append(f"{evaluation.get('effective')} of 1319 questions were effective")
    return out


def shortcuts(point: Point) -> list[str]:
    """What makes a run a smoke test whatever its numbers are."""
    command = point.aggregate.get("run_info", {}).get("cli_command", "")
    env = point.manifest.get("client_env") or {}
    out = []
    if "--unsafe-override" in command:
        out.append("--unsafe-override was used")
    if env.get("AIPERF_EXPERIMENTAL_FAST"):
        out.append("fast mode was used")
    if env.get("EVAL_LIMIT"):
        out.append("EVAL_LIMIT was set")
    return out


def cache_share(point: Point) -> list[str]:
    """A warning: routing lost affinity when far fewer tokens were cached than the trace allows."""
    theoretical = point.aggregate.get("theoretical_prefix_cache_hit", {}).get("avg")
    used = (point.manifest.get("metrics") or {}).get("cache_usage")
    if theoretical is None or used is None:
        return ["cached share unknown"]
    theoretical = theoretical / 100 if theoretical > 1 else theoretical
    return [] if used >= theoretical - CACHE_SLACK else [f"cached share {used:.3f}, the trace allows {theoretical:.3f}"]


CHECKS: tuple[tuple[int, str, Callable[[Point], list[str]]], ...] = (
    (1, "submission", submission), (2, "duration", duration), (3, "dataset", dataset), (4, "errors", errors), (5, "warm-up", warmup),
    (6, "usage", usage), (7, "acceptance", acceptance), (8, "freshness", freshness), (9, "GPUs", gpu_count), (10, "endpoints", endpoints),
    (11, "images", images), (12, "incidents", incidents), (14, "extra traffic", extra_traffic), (15, "client CPU", client_cpu),
    (16, "evaluation", simulated_eval), (17, "shortcuts", shortcuts),
)
WARNINGS: tuple[tuple[int, str, Callable[[Point], list[str]]], ...] = ((13, "cache", cache_share),)


def judge(point: Point) -> Verdict:
    """Run every check; a rehearsal or a shortcut is never valid, whatever its numbers are."""
    reasons = [f"{number} {name}: {text}" for number, name, check in CHECKS for text in check(point)]
    warnings = [f"{number} {name}: {text}" for number, name, check in WARNINGS for text in check(point)]
    result_class = point.manifest.get("class", "measured")
    if result_class == "measured" and shortcuts(point):
        result_class = "smoke"
    if not point.manifest.get("comparable", True):
        warnings.append("the client is not the pinned one: not comparable with the published points")
    return Verdict(not reasons and result_class == "measured", result_class, reasons, warnings)
