"""What the supervisor makes of the arguments, of what SGLang answers, and of the metrics page. Nothing is started here."""

import json

import pytest
from infera_engine import guard, kvplane, serverinfo, settings
from infera_engine.ask import EngineArgs
from infera_engine.child import exit_code
from infera_engine.drain import MetricsMissing, held_requests, reported_requests
from infera_engine.translate import RENAMED, TranslationError, translate
from infera_router.fleet.options import UsageError

NEW = dict.fromkeys(["--cuda-graph-max-bs-decode", "--cuda-graph-max-bs-prefill", "--cuda-graph-bs-decode", "--cuda-graph-bs-prefill",
                     "--dsa-prefill-backend", "--dsa-decode-backend", "--attn-dp-size", "--dp-size", "--enable-dp-attention"], "x")
OLD = dict.fromkeys([*RENAMED, "--dp-size", "--enable-dp-attention"], "x")


# ---- flags

@pytest.mark.parametrize("old, new", RENAMED.items())
def test_an_old_spelling_becomes_the_new_one_and_says_so(old, new):
    for before, after in (([old, "8"], [new, "8"]), ([old + "=8"], [new + "=8"]), ([old, "1", "2", "4", "--x"], [new, "1", "2", "4", "--x"])):
        argv, notes = translate(before, NEW)
        assert argv == after
        assert len(notes) == 1 and old in notes[0] and new in notes[0]


@pytest.mark.parametrize("old", RENAMED)
def test_an_older_sglang_keeps_its_spelling(old):
    assert translate([old, "8"], OLD) == ([old, "8"], [])
    assert translate([old, "8"], {}) == ([old, "8"], []), "a parser that knows neither says so itself"


@pytest.mark.parametrize("old, new", RENAMED.items())
def test_old_and_new_together_are_refused(old, new):
    with pytest.raises(TranslationError, match=f"{old} and {new}"):
        translate([old, "8", new + "=4"], NEW)


def test_values_prefixes_and_what_follows_a_separator_are_left_alone():
    argv = ["--cuda-graph-max-bs-prefill", "8", "--chat-template", "x--cuda-graph-bs", "--", "--cuda-graph-max-bs", "1"]
    assert translate(argv, NEW) == (argv, [])


@pytest.mark.parametrize("dp", ["--dp-size", "--dp", "--data-parallel-size"])
def test_dp_attention_is_written_as_the_sglang_at_hand_spells_it(dp):
    assert translate([dp, "8", "--enable-dp-attention", "--tp-size", "8"], NEW)[0] == ["--attn-dp-size", "8", "--tp-size", "8"]
    assert translate([dp + "=8", "--enable-dp-attention"], NEW)[0] == ["--attn-dp-size=8"]
    assert translate([dp, "8"], NEW) == ([dp, "8"], []), "plain data parallelism is something else"
    assert translate(["--attn-dp-size", "8"], OLD)[0] == ["--dp-size", "8", "--enable-dp-attention"]


@pytest.mark.parametrize("argv, known", [(["--attn-dp-size", "2", "--enable-dp-attention"], NEW), (["--attn-dp-size", "2", "--dp-size", "2"], OLD)])
def test_two_sizes_for_one_thing_are_refused(argv, known):
    with pytest.raises(TranslationError, match="--attn-dp-size and --"):
        translate(argv, known)


@pytest.mark.parametrize("own, word", [
    (["--drain-timeout", "-1"], "--drain-timeout"), (["--lease-ttl", "1"], "--lease-ttl"), (["--kv-events", "maybe"], "--kv-events"),
    (["--kv-events-port", "70000"], "--kv-events-port"), (["--ready-timeout", "nan"], "--ready-timeout"),
    (["--advertise-host", "0.0.0.0"], "wildcard"), (["--advertise-host", "h:1"], "no port"), (["--etcd-endpoint", "ftp://h"], "--etcd-endpoint"),
    (["--etcd-user", "u"], "--etcd-password-file"), (["--etcd-prefix", "workers"], "--etcd-prefix"), (["--nonsense"], "--nonsense")])
def test_a_wrong_flag_of_ours_is_named(own, word):
    with pytest.raises(UsageError, match=word):
        settings.read(settings.option_set(), [*own, "--", "--model-path", "m"])


def test_without_arguments_for_sglang_the_form_is_told():
    for argv in ([], ["--"], ["--model-path", "m"]):
        with pytest.raises(UsageError):
            settings.read(settings.option_set(), argv)


@pytest.mark.parametrize("own, bind, mode, expected", [
    ((), "10.0.0.7", "decode", "10.0.0.7"), (("--advertise-host", "h1"), "0.0.0.0", "prefill", "h1"), ((), "127.0.0.1", "mixed", "127.0.0.1"),
    (("--allow-loopback",), "127.0.0.1", "prefill", "127.0.0.1"), ((), "0.0.0.0", "mixed", None), ((), "127.0.0.1", "prefill", None),
    ((), "localhost", "decode", None), ((), None, "decode", None)])
def test_the_address_of_the_record(own, bind, mode, expected):
    read = settings.read(settings.option_set(), [*own, "--", "--model-path", "m"])
    if expected is None:
        with pytest.raises(UsageError, match="--advertise-host"):
            settings.resolve_host(read, bind, mode)
    else:
        assert settings.resolve_host(read, bind, mode) == expected


# ---- KV events

def test_ranks_have_contiguous_ports_that_do_not_overlap():
    data = json.loads(kvplane.config(31000, 8, "10.0.0.7", None, None, "kv-events", bind_supported=True))
    assert data == {"publisher": "zmq", "topic": "kv-events", "endpoint": "tcp://10.0.0.7:31310", "replay_endpoint": "tcp://10.0.0.7:31340",
                    "bind": True}
    assert json.loads(kvplane.config(31000, 1, "0.0.0.0", 5000, 6000, "t", True))["endpoint"] == "tcp://*:5000"
    assert json.loads(kvplane.config(31000, 1, "10.0.0.7", None, None, "t", False))["endpoint"] == "tcp://*:31310"
    for arguments, word in (((31000, 8, "", 5000, 5007), "do not overlap"), ((65300, 1, "", None, None), "--kv-events-port"),
                            ((31000, 8, "", 5000, 65530), "--kv-replay-port")):
        with pytest.raises(kvplane.KvPlaneError, match=word):
            kvplane.config(*arguments, "t", True)


def test_auto_leaves_a_decode_out():
    assert [kvplane.wanted("auto", role) for role in ("prefill", "null", "decode")] == [True, True, False]
    assert kvplane.wanted("on", "decode") and not kvplane.wanted("off", "prefill")


# ---- the record

def record(info, *, mode="prefill", **values):
    base = {"port": 31000, "served_model_name": None, "model_path": "m", "disaggregation_bootstrap_port": 31300, "dp_size": 1, "attn_dp_size": 1,
            "tp_size": 1, "pp_size": 4, "page_size": None, "kv_events_config": None,
            "disaggregation_mode": "null" if mode == "mixed" else mode, **values}
    args = EngineArgs("0.5.22", (), (), base)
    early = serverinfo.before_start(args, "10.0.0.7", "g", 1.0)
    return early, serverinfo.when_ready(early, info, args)


@pytest.mark.parametrize("dp, attn_dp, described, expected", [
    (1, 8, 8, 8), (1, 8, None, 8), (8, 1, None, 8), (2, 4, None, 8), (1, 1, 1, None), (1, 1, None, None), (1, 1, 2, 2)])
def test_ranks_are_the_product(dp, attn_dp, described, expected):
    events = None if described is None else {"endpoint_port_base": 31310, "dp_size": described}
    early, ready = record({"dp_size": dp, "attn_dp_size": attn_dp, "kv_events": events}, mode="decode", dp_size=dp, attn_dp_size=attn_dp)
    assert ready.dp_size == expected and early.dp_size == (dp * attn_dp if dp * attn_dp > 1 else None)


def test_the_server_says_page_size_ports_and_topic_not_the_arguments():
    early, ready = record({"page_size": 64, "pp_size": 4, "tp_size": 1, "served_model_name": "glm", "kv_events": {
        "endpoint_port_base": 5000, "replay_endpoint_port_base": 6000, "topic": "t", "block_size": 64, "dp_size": 1}})
    assert (early.page_size, early.kv_block_size, early.kv_events_endpoint, early.status) == (None, None, None, "starting")
    assert (ready.page_size, ready.kv_block_size, ready.kv_topic, ready.model_name) == (64, 64, "t", "glm")
    assert (ready.kv_events_endpoint, ready.kv_replay_endpoint) == ("tcp://10.0.0.7:5000", "tcp://10.0.0.7:6000")
    assert (ready.bootstrap_host, ready.bootstrap_port, ready.protocol) == ("10.0.0.7", 31300, "sglang-bootstrap")


def test_only_a_prefill_advertises_a_bootstrap_address():
    assert record({}, mode="decode")[1].bootstrap_port is None and record({}, mode="decode")[1].protocol == "sglang-bootstrap"
    assert record({}, mode="mixed")[1].protocol is None


# ---- the guard of the decode's radix cache

KNOWN = {guard.FLAG: "x"}


@pytest.mark.parametrize("changes, known, events, word", [
    ({}, KNOWN, True, None), ({"disaggregation_mode": "prefill"}, KNOWN, True, "not a decode"), ({}, KNOWN, False, "events"),
    ({"disaggregation_decode_enable_radix_cache": True}, KNOWN, True, "already"), ({}, {}, True, "has no"),
    ({"speculative_algorithm": "EAGLE"}, KNOWN, True, "EAGLE"), ({"disable_radix_cache": True}, KNOWN, True, "disable-radix")])
def test_when_the_guard_asks(changes, known, events, word):
    reason = guard.wanted({"disaggregation_mode": "decode", **changes}, known, events)
    assert reason is None if word is None else word in reason


class Args:
    enable_hierarchical_cache = False


class Model:
    def __init__(self, **facts):
        self.__dict__.update(facts)


def test_the_guard_probes_and_never_assumes():
    asked = []

    def prepare(argv):
        asked.append(argv)
        return Args()

    def refuse(argv):
        raise SystemExit("not with this backend\nmore")

    class Late(Args):
        def resolve_once(self):
            raise ValueError("only said when resolved")

    assert guard.allows(["--a"], prepare, lambda args: Model()) == (True, "SGLang accepts it") and asked == [["--a", guard.FLAG]]
    for arguments, word in ((([], refuse, lambda args: Model()), "not with this backend"), (([], prepare, None), "no way"),
                            (([], lambda argv: Late(), lambda args: Model()), "only said when resolved"),
                            (([], prepare, lambda args: None), "could not be read"),
                            (([], prepare, lambda args: Model(is_deepseek_v4_arch=True)), "compressed"),
                            (([], prepare, lambda args: [][0]), "refuses")):
        allowed, why = guard.allows(*arguments)
        assert not allowed and word in why


def test_both_ways_to_the_model_configuration():
    class Old:
        def get_model_config(self):
            return "old"

    assert guard.find_model_config_of(Old)(Old()) == "old"
    assert guard.find_model_config_of(object) is None, "no SGLang here: no answer, so no flag"


# ---- drain

def page(**values):
    return "".join(f'sglang:{name}{{dp_rank="{rank}",a="}}"}} {value}\n' for name, ranks in values.items() for rank, value in enumerate(ranks))


ALWAYS = {"num_running_reqs": [1, 0], "num_queue_reqs": [0, 2]}


def test_every_queue_of_every_rank_counts():
    decode = {**ALWAYS, "num_decode_prealloc_queue_reqs": [1], "num_decode_transfer_queue_reqs": [0, 1]}
    assert held_requests("# HELP\n" + page(**decode, num_used_tokens=[900]), "decode") == 5
    assert held_requests(page(**ALWAYS, num_grammar_queue_reqs=[1]), "mixed") == 4
    for mode in ("prefill", "decode"):
        with pytest.raises(MetricsMissing, match=f"num_{mode}"):
            held_requests(page(**ALWAYS), mode)


def test_the_load_report():
    report = {"loads": [{"num_running_reqs": 1, "num_waiting_reqs": 2, "disaggregation": {"decode_prealloc_queue_reqs": 3, "mode": "decode"}},
                        {"num_running_reqs": -1, "num_waiting_reqs": None}]}
    assert reported_requests(json.dumps(report).encode()) == 6
    for body in (b"{}", b"[]", b'{"loads": []}', b'{"loads": [{}]}', b"no"):
        with pytest.raises(ValueError):
            reported_requests(body)


def test_exit_status():
    assert [exit_code(status) for status in (0, 3, -9)] == [0, 3, 137]
