"""What a rollout and a change of the weight decide, from a plan and a run record."""
import copy

import pytest
from ansible_collections.infera.serving.plugins.filter import plan_filters
from ansible_collections.infera.serving.plugins.module_utils import plan, run_record
from ansible_collections.infera.serving.plugins.modules import wait

VARIABLES = {
    "infera_flavour": "rocm", "infera_shape": "own", "infera_model_path": "/models/m", "prefill_workers": 2, "prefill_gpus": 4, "decode_workers": 1,
    "decode_gpus": 8, "engine_max_running_requests": 256, "infera_model_layers": 78, "decode_input_demand": "on",
    "groups": {"prefill": ["a"], "decode": ["b"], "router": ["a"], "etcd": ["a"], "mixed": []}, "addresses": {"a": "10.0.0.1", "b": "10.0.0.2"},
    "images": {"sglang": "infera/sglang:1", "router": "infera/router:1", "etcd": "infera/etcd:1"},
}


def planned(**changes):
    return plan.build(dict(copy.deepcopy(VARIABLES), **changes)).as_dict()


@pytest.fixture()
def record():
    made = planned()
    facts = {c["name"]: {"id": "ab", "image_digest": "sha256:0", "started_at": "1"} for c in made["containers"]}
    return run_record.build(made, facts, {}, "2026-12-01T00:00:00Z")


def test_only_what_differs_is_rolled(record):
    assert plan_filters.rolling(planned(), record) == []
    assert plan_filters.rolling(planned(decode_random_seed=1), record) == ["own-decode-0"]
    images = {"sglang": "infera/sglang:2", "router": "infera/router:1", "etcd": "infera/etcd:1"}
    assert plan_filters.rolling(planned(images=images), record) == ["own-prefill-0", "own-prefill-1", "own-decode-0"]
    assert plan_filters.rolling(planned(), record, everything=True) == ["own-prefill-0", "own-prefill-1", "own-decode-0"]
    assert plan_filters.rolling(planned(decode_request_weight=5), record) == []


def test_a_role_with_one_worker_is_an_outage_and_says_for_how_long():
    made = planned()
    lines = plan_filters.outages(made, ["own-prefill-0", "own-prefill-1", "own-decode-0"], 3900)
    assert len(lines) == 1 and "own-decode-0 is its only worker" in lines[0]
    # drain 600 + 40, VRAM 3900, start 1800
    assert "503 for at most 6340 s" in lines[0]
    assert plan_filters.outages(made, ["own-prefill-0"]) == []


def test_the_weight_may_change_and_nothing_else(record):
    assert plan_filters.beside_weight(planned(decode_request_weight=250000), record) == []
    more = plan_filters.beside_weight(planned(decode_request_weight=250000, router_policy="kv-aware", router_port=8001), record)
    assert len(more) == 2 and more[0].startswith("router_url: the inventory says 'http://10.0.0.1:8001'") and "other arguments" in more[1]


def test_images_come_from_the_record(record):
    assert plan_filters.record_images(record) == VARIABLES["images"]


def test_the_command_line_may_not_contradict_the_record(record):
    given = {"infera_shape": "own", "router_port": "8000", "DECODE_REQUEST_WEIGHT": "7", "router_url": "http://10.0.0.9:8000"}
    lines = run_record.conflicts(record, given)
    assert [line.split(":")[0] for line in lines] == ["DECODE_REQUEST_WEIGHT", "router_url"]
    assert "'7'" in lines[0] and "has 0" in lines[0]


def test_a_record_keeps_what_a_limited_run_did_not_reach(record):
    made = planned(decode_request_weight=9)
    facts = {"own-router-0": {"id": "cd", "image_digest": "sha256:1", "started_at": "2"}}
    later = run_record.build(made, facts, {}, "2026-12-02T00:00:00Z", record)
    ids = {c["name"]: c["id"] for c in later["containers"]}
    assert ids["own-router-0"] == "cd" and ids["own-decode-0"] == "ab" and later["weight"] == 9
    assert later["times"] == {"created": "2026-12-01T00:00:00Z", "updated": "2026-12-02T00:00:00Z"}
    decode = {"own-decode-0": {"id": "ef", "image_digest": "sha256:1", "started_at": "2"}}
    assert run_record.build(made, decode, {}, "2026-12-02T00:00:00Z", record)["weight"] == 0, "the router was not reached"


def test_a_run_that_changes_nothing_moves_no_time(record):
    facts = {c["name"]: {"id": c["id"], "image_digest": c["image_digest"], "started_at": c["started_at"]} for c in record["containers"]}
    assert run_record.build(planned(), facts, {}, "2026-12-02T00:00:00Z", record) == record


def test_the_record_is_private_and_whole_or_absent(record, tmp_path):
    path = tmp_path / "own" / "run.json"
    run_record.save(str(path), record)
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert run_record.load(str(path)) == record and run_record.load(str(tmp_path / "none.json")) is None
    with pytest.raises(run_record.RecordError):
        run_record.save(str(path), dict(record, weight=-1))
    assert run_record.load(str(path)) == record and [p.name for p in path.parent.iterdir()] == ["run.json"]
    path.write_text("{")
    with pytest.raises(run_record.RecordError, match=str(path)):
        run_record.load(str(path))


def test_held_requests_of_one_worker():
    page = "\n".join([
        'infera_router_decode_demand_requests{target="10.0.0.2:31000#dp0"} 2', 'infera_router_decode_demand_requests{target="10.0.0.2:31000#dp1"} 1',
        'infera_router_decode_demand_requests{target="10.0.0.2:3100"} 5', 'infera_router_decode_demand_tokens{target="10.0.0.2:31000#dp0"} 900'])
    assert wait.held_requests(page, "10.0.0.2:31000") == 3 and wait.held_requests(page, "10.0.0.2:3100") == 5
    assert wait.held_requests(page, "10.0.0.3:31000") == 0 and wait.held_requests("", "10.0.0.2:31000") is None


def test_status_of_one_worker():
    page = '{"workers": [{"worker_id": "a:1", "status": "draining"}, {"worker_id": "b:1", "status": null}]}'
    assert [wait.worker_status(page, key) for key in ("a:1", "b:1", "c:1")] == ["draining", "active", "not registered"]
    assert wait.worker_status("no json", "a:1") == "unknown"
