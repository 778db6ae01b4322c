"""Each of the gate's checks flips the verdict of a point that is otherwise good; the metrics equal the client's own."""
import copy
import pathlib

import pytest
from ansible_collections.infera.serving.plugins.module_utils import point, point_gate

ARTIFACTS = pathlib.Path(__file__).parent / "artifacts"
URLS = ["http://10.0.0.1:8000/metrics", "http://10.0.0.1:31000/metrics"]


def record(phase, lane, number, **changes):
    start = 10**9 * number
    metrics = {"usage_prompt_tokens": 1000, "usage_completion_tokens": 101, "usage_prompt_cache_read_tokens": 950, "output_sequence_length": 101,
               "request_latency": 2000.0, "full_decode_duration": 1500.0, "decode_duration": 1490.0, "time_to_first_token": 500.0,
               "osl_mismatch_diff_pct": 0.0}
    return {"metadata": {"benchmark_phase": phase, "x_correlation_id": f"lane{lane}", "root_correlation_id": f"lane{lane}", "turn_index": number % 5,
                         "request_start_ns": start, "request_end_ns": start + 2 * 10**9, "was_cancelled": False, "context_overflow_skip": False},
            "metrics": {k: {"value": v} for k, v in metrics.items()}, "error": None, **changes}


def container(name, role, host, gpus, **changes):
    env = {"SGLANG_SIMULATE_ACC_LEN": "3.61"} if role == "decode" else {}
    return {"name": name, "role": role, "host": host, "gpus": gpus, "started_at": 1000.0, "image_id": "sha256:a", "env": env, "restarts": 0,
            "oom_killed": False, "drift": [], **changes}


@pytest.fixture()
def good():
    records = [record("warmup", lane, n) for lane in range(2) for n in range(11)]
    records += [record("profiling", n % 2, n) for n in range(3600)]
    aggregate = {"metadata": {"submission_valid": True, "scenario": "inferencex-agentx-mvp", "metric_duration_coverage": {"ttft": 1.0, "itl": 0.99}},
                 "was_cancelled": False, "run_info": {"random_seed": 42, "cli_command": "aiperf profile"}, "theoretical_prefix_cache_hit": {"avg": 96.0}}
    manifest = {
        "class": "measured", "conc": 2, "gpus": {"prefill": 4, "decode": 8, "total": 12}, "metrics": point.metrics(records, 12),
        "expect": {"scenarios": ["inferencex-agentx-mvp"], "duration": 3600, "warmup_per_lane": 10, "seed": 42, "acceptance": 3.61, "draft_tokens": 5,
                   "metrics_urls": URLS, "dataset": {"id": "d", "revision": "r", "sha256": "s", "entries": 393}},
        "dataset": {"id": "d", "revision": "r", "sha256": "s", "entries": 393}, "acceptance": {"x-decode-0": 3.62},
        "deployment": {"id": "x", "up_at": 900.0, "points": 1, "containers": [
            container("x-prefill-0", "prefill", "a", [0, 1, 2, 3]), container("x-decode-0", "decode", "b", list(range(8)))]},
        "requests_before": {"10.0.0.1:31000": 0}, "router_requests": len(records), "generations_before": {"w": "1"}, "generations_after": {"w": "1"},
    }
    artifacts = {"records": records, "aggregate": aggregate, "server_metrics": {"summary": {"endpoints_successful": list(URLS)}}}
    return point_gate.Point(manifest, artifacts)


def test_a_good_point_is_valid(good):
    verdict = point_gate.judge(good)
    assert verdict.valid and verdict.reasons == [] and verdict.warnings == [] and verdict.result_class == "measured"


def edit(where, key, value):
    def change(p):
        target = p.manifest if where == "manifest" else p.artifacts
        *path, last = key.split(".")
        for step in path:
            target = target[int(step)] if isinstance(target, list) else target[step]
        if isinstance(target, list):
            target[int(last)] = value
        else:
            target[last] = value
    return change


def some_errors(share):
    def change(p):
        profiled = [r for r in p.records if r["metadata"]["benchmark_phase"] == "profiling"]
        for r in profiled[: int(share * len(profiled))]:
            r["error"] = {"code": 503}
    return change


def on_records(phase, count, change):
    def apply(p):
        for r in [r for r in p.records if r["metadata"]["benchmark_phase"] == phase][:count]:
            change(r)
    return apply


CASES = {
    "1 not valid": (1, edit("artifacts", "aggregate.metadata.submission_valid", False)),
    "1 cancelled": (1, edit("artifacts", "aggregate.was_cancelled", True)),
    "1 scenario": (1, edit("artifacts", "aggregate.metadata.scenario", "other")),
    "1 coverage missing": (1, edit("artifacts", "aggregate.metadata.metric_duration_coverage", None)),
    "1 coverage low": (1, edit("artifacts", "aggregate.metadata.metric_duration_coverage", {"ttft": 0.9})),
    "2 span": (2, edit("manifest", "expect.duration", 7200)),
    "3 content": (3, edit("manifest", "dataset.sha256", "other")),
    "3 revision": (3, edit("manifest", "dataset.revision", None)),
    "3 entries": (3, edit("manifest", "dataset.entries", 392)),
    "3 seed": (3, edit("artifacts", "aggregate.run_info.random_seed", 1)),
    "4 503s": (4, some_errors(0.02)),
    "4 warm-up error": (4, on_records("warmup", 1, lambda r: r.update(error={"code": 500}))),
    "4 overflow": (4, on_records("profiling", 60, lambda r: r["metadata"].update(context_overflow_skip=True))),
    "5 warm-ups": (5, on_records("warmup", 1, lambda r: r["metadata"].update(benchmark_phase="other"))),
    "5 lane": (5, on_records("warmup", 22, lambda r: r["metadata"].update(root_correlation_id="lane0"))),
    "6 no usage": (6, on_records("profiling", 1, lambda r: r["metrics"].pop("usage_prompt_tokens"))),
    "6 short": (6, on_records("profiling", 40, lambda r: r["metrics"].update(osl_mismatch_diff_pct={"value": -20.0}))),
    "7 off": (7, edit("manifest", "acceptance.x-decode-0", 3.70)),
    "7 unseen": (7, edit("manifest", "acceptance", {})),
    "7 unset": (7, edit("manifest", "deployment.containers.1.env", {})),
    "7 golden": (7, edit("manifest", "expect.draft_tokens", 4)),
    "8 stale": (8, edit("manifest", "deployment.containers.0.started_at", 899.0)),
    "8 second point": (8, edit("manifest", "deployment.points", 2)),
    "8 used": (8, edit("manifest", "requests_before", {"10.0.0.1:31000": 3})),
    "9 fewer counted": (9, edit("manifest", "gpus", {"prefill": 4, "decode": 4, "total": 8})),
    "9 sum": (9, edit("manifest", "gpus", {"prefill": 4, "decode": 4, "total": 12})),
    "9 product": (9, edit("manifest", "metrics.tok_s_gpu", 1.0)),
    "10 endpoint": (10, edit("artifacts", "server_metrics", {"summary": {"endpoints_successful": URLS[:1]}})),
    "10 none": (10, edit("artifacts", "server_metrics", None)),
    "11 image": (11, edit("manifest", "deployment.containers.0.image_id", "sha256:b")),
    "11 drift": (11, edit("manifest", "deployment.containers.0.drift", ["env.A"])),
    "12 restart": (12, edit("manifest", "deployment.containers.0.restarts", 1)),
    "12 oom": (12, edit("manifest", "deployment.containers.0.oom_killed", True)),
    "12 log": (12, edit("manifest", "log_findings", ["Memory access fault by GPU node-2"])),
    "12 generation": (12, edit("manifest", "generations_after", {"w": "2"})),
    "14 traffic": (14, edit("manifest", "router_requests", 1)),
    "14 unread": (14, edit("manifest", "router_requests", None)),
    "15 cpu": (15, edit("manifest", "client_cpu_warning", True)),
    "16 simulated": (16, edit("manifest", "evaluation", {"simulated": True, "effective": 1319})),
    "16 count": (16, edit("manifest", "evaluation", {"simulated": False, "effective": 1318})),
    "17 override": (17, edit("artifacts", "aggregate.run_info.cli_command", "agentx profile --unsafe-override")),
    "17 fast": (17, edit("manifest", "client_env", {"AIPERF_EXPERIMENTAL_FAST": "1"})),
    "17 limit": (17, edit("manifest", "client_env", {"EVAL_LIMIT": "10"})),
}


@pytest.mark.parametrize("name", CASES)
def test_each_check_rejects(good, name):
    number, change = CASES[name]
    bad = point_gate.Point(copy.deepcopy(good.manifest), copy.deepcopy(good.artifacts))
    change(bad)
    verdict = point_gate.judge(bad)
    assert not verdict.valid
    assert {reason.split()[0] for reason in verdict.reasons} == {str(number)}, verdict.reasons


def test_every_number_has_a_case():
    numbers = {number for number, _name, _check in point_gate.CHECKS + point_gate.WARNINGS}
    assert numbers == set(range(1, 18))
    assert {number for number, _change in CASES.values()} == numbers - {13}


def test_a_lost_affinity_warns(good):
    edit("artifacts", "aggregate.theoretical_prefix_cache_hit", {"avg": 99.9})(good)
    good.manifest["metrics"]["cache_usage"] = 0.8
    verdict = point_gate.judge(good)
    assert verdict.valid and verdict.warnings == ["13 cache: cached share 0.800, the trace allows 0.999"]


def test_a_rehearsal_is_never_valid(good):
    good.manifest["class"] = "rehearsal"
    verdict = point_gate.judge(good)
    assert not verdict.valid and verdict.result_class == "rehearsal"


def test_a_shortcut_makes_it_a_smoke_run(good):
    edit("artifacts", "aggregate.run_info.cli_command", "agentx profile --unsafe-override")(good)
    assert point_gate.judge(good).result_class == "smoke"


def test_another_client_is_marked_not_comparable(good):
    good.manifest["comparable"] = False
    assert "not comparable" in " ".join(point_gate.judge(good).warnings)


def test_own_figures_equal_the_clients():
    artifacts = point.load(str(ARTIFACTS))
    own = point.metrics(artifacts["records"], 12)
    ratios = point.agreement(own, artifacts["aggregate"], 12)
    assert own["records"] == 137
    assert ratios["intvty_p90"] == pytest.approx(1, rel=1e-9)
    # The client also counts the tokens of what was cut at the end of the run.
    assert ratios["tok_s_gpu"] == pytest.approx(1, rel=2e-3)


def test_missing_values_stay_unknown():
    none = point.metrics([], 12)
    assert none["tok_s"] is None and none["intvty_p90"] is None and none["cache_usage"] is None


def test_a_missing_artifact_names_the_file(tmp_path):
    with pytest.raises(point.ArtifactError, match="profile_export.jsonl is missing"):
        point.load(str(tmp_path))
