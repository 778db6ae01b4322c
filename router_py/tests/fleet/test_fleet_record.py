import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from infera_router.fleet.record import RecordError, WorkerRecord, dump, join_address, parse, split_address

KEY = "/infera/workers/10.0.0.1:31000"
PREFILL = {
    "schema": 1, "worker_id": "10.0.0.1:31000", "url": "http://10.0.0.1:31000", "model_name": "m", "engine": "sglang", "status": "active",
    "disagg_mode": "prefill", "disagg_meta": {"protocol": "sglang-bootstrap", "params": {"bootstrap_addr": "10.0.0.1:31300"}},
    "dp_rank": None, "dp_size": 8, "kv_events_endpoint": "tcp://10.0.0.1:31310", "kv_replay_endpoint": "tcp://10.0.0.1:31340",
    "kv_topic": "kv-events", "kv_block_size": 64, "page_size": 64, "pp_size": 4, "tp_size": 1, "generation": "g", "request_transport": "http",
    "started_at": 1.5,
}


def read(**changes):
    data = {**PREFILL, **changes}
    return parse(KEY, json.dumps({name: value for name, value in data.items() if value is not ...}).encode())


def test_every_field_is_read():
    record = read()
    assert record == WorkerRecord(
        worker_id="10.0.0.1:31000", url="http://10.0.0.1:31000", model_name="m", disagg_mode="prefill", protocol="sglang-bootstrap",
        bootstrap_host="10.0.0.1", bootstrap_port=31300, dp_size=8, kv_events_endpoint="tcp://10.0.0.1:31310",
        kv_replay_endpoint="tcp://10.0.0.1:31340", kv_topic="kv-events", kv_block_size=64, page_size=64, pp_size=4, tp_size=1,
        generation="g", started_at=1.5)
    assert (record.ranks, record.routable, record.host, record.port) == (8, True, "10.0.0.1", 31000)


def test_a_record_of_an_older_supervisor_is_accepted():
    """Only what a router cannot do without is needed; a record without generation, status and sizes is an active one."""
    record = parse(KEY, b'{"worker_id": "10.0.0.1:31000", "url": "http://10.0.0.1:31000", "model_name": "m", "disagg_mode": "mixed",'
                        b' "disagg_meta": {}, "kv": {"tiers": []}, "never_heard_of": 1}')
    assert (record.routable, record.generation, record.ranks, record.page_size, record.disagg_mode) == (True, None, 1, None, "mixed")


@pytest.mark.parametrize("status, routable", [("active", True), (..., True), ("starting", False), ("draining", False), ("dead", False),
                                              ("ACTIVE", False), ("", False), (None, False), (1, False)])
def test_only_active_or_absent_is_routable(status, routable):
    assert read(status=status).routable is routable


@pytest.mark.parametrize("changes, word", [
    ({"worker_id": ...}, "worker_id"), ({"worker_id": "10.0.0.2:31000"}, "worker_id"), ({"url": ...}, "url"), ({"url": "10.0.0.1:1"}, "url"),
    ({"url": "https://10.0.0.1:1"}, "url"), ({"url": "http://10.0.0.1:99999"}, "url"), ({"url": "http://h:1/path"}, "url"),
    ({"model_name": ""}, "model_name"), ({"model_name": 3}, "model_name"), ({"disagg_mode": "both"}, "disagg_mode"),
    ({"disagg_meta": {}}, "bootstrap_addr"), ({"disagg_meta": []}, "disagg_meta"),
    ({"disagg_meta": {"protocol": "other", "params": {}}}, "protocol"),
    ({"disagg_meta": {"params": {"bootstrap_addr": "10.0.0.1"}}}, "bootstrap_addr"), ({"dp_size": "8"}, "dp_size"), ({"dp_size": 0}, "dp_size"),
    ({"dp_size": True}, "dp_size"), ({"page_size": 1.5}, "page_size"), ({"started_at": "now"}, "started_at"),
    ({"request_transport": "grpc"}, "request_transport"), ({"schema": 2}, "schema"),
])
def test_an_unusable_record_says_what_is_wrong(changes, word):
    with pytest.raises(RecordError) as caught:
        read(**changes)
    assert word in caught.value.reason and KEY in caught.value.reason


@pytest.mark.parametrize("value", [b"", b"[]", b"null", b"\xff", b"{"])
def test_what_is_no_object_is_refused(value):
    with pytest.raises(RecordError):
        parse(KEY, value)


def test_with_a_prefix_the_key_is_the_worker_id_exactly():
    value = json.dumps(PREFILL | {"worker_id": "0.0.1:31000"}).encode()
    assert parse(KEY, value).worker_id == "0.0.1:31000"
    with pytest.raises(RecordError):
        parse(KEY, value, "/infera/workers/")


ports = st.integers(1, 65535)
sizes = st.none() | st.integers(1, 1024)
texts = st.none() | st.text(min_size=1, max_size=20)


@st.composite
def records(draw):
    host = draw(st.sampled_from(["10.0.0.1", "node-1.example", "fd00::1"]))
    worker_id = join_address(host, draw(ports))
    mode = draw(st.sampled_from(["mixed", "prefill", "decode"]))
    return WorkerRecord(
        worker_id=worker_id, url=f"http://{worker_id}", model_name=draw(st.text(min_size=1, max_size=20)),
        status=draw(st.sampled_from(["starting", "active", "draining"])), disagg_mode=mode,
        protocol=None if mode == "mixed" else "sglang-bootstrap", bootstrap_host=host if mode == "prefill" else None,
        bootstrap_port=draw(ports) if mode == "prefill" else None, dp_size=draw(sizes), kv_events_endpoint=draw(texts),
        kv_topic=draw(st.none() | st.text(max_size=5)), kv_block_size=draw(sizes), page_size=draw(sizes), pp_size=draw(st.integers(1, 8)),
        generation=draw(texts), started_at=draw(st.none() | st.floats(0, 1e10)))


@given(records())
def test_what_is_written_is_what_is_read(record):
    assert parse("/p/" + record.worker_id, dump(record), "/p/") == record


@given(st.dictionaries(st.sampled_from(sorted(PREFILL)), st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.just({})))
def test_no_json_raises_anything_but_a_record_error(data):
    try:
        parse(KEY, json.dumps({**PREFILL, **data}).encode())
    except RecordError:
        pass


def test_addresses():
    assert split_address("[fd00::1]:80") == ("fd00::1", 80) and split_address("h:1") == ("h", 1)
    for wrong in ("h", "h:", "h:0", "h:x", "h:70000", ":1", "a@h:1", "h:1/x"):
        with pytest.raises(ValueError):
            split_address(wrong)
