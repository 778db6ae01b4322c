"""The published deployments, typed out by hand from the source document, found in what engine() renders."""
import json

from ansible_collections.infera.serving.plugins.module_utils import sglang_args

RAILS = "ionic_0,ionic_1,ionic_2,ionic_3,ionic_4,ionic_5,ionic_6,ionic_7"
SITE = {"model_path": "/models/GLM-5.2-MXFP4", "host": "10.0.0.1", "port": 31000}
PD = {"max_running_requests": 512, "ib_device": RAILS.split(","), "planned_concurrency": 176}
EAGLE = {"--speculative-algorithm": "EAGLE", "--speculative-num-steps": "5", "--speculative-eagle-topk": "1", "--speculative-num-draft-tokens": "6"}
COMMON_FLAGS = {"--disable-custom-all-reduce": None}
COMMON_ENV = {"SGLANG_OPT_USE_TOPK_V2": "true"}
PD_FLAGS = {**COMMON_FLAGS, **EAGLE, "--disaggregation-transfer-backend": "mooncake", "--disaggregation-ib-device": RAILS}
PD_ENV = {**COMMON_ENV, "MC_ENABLE_DEST_DEVICE_AFFINITY": "1", "MC_MAX_MR_SIZE": "1073741824"}
PREFILL = {
    **PD_FLAGS, "--disaggregation-mode": "prefill", "--tp-size": "1", "--pp-size": "4", "--chunked-prefill-size": "8192",
    "--schedule-policy": "shortest-prefill-first", "--disable-overlap-schedule": None, "--enable-hierarchical-cache": None,
    "--hicache-size": "250", "--hicache-write-policy": "write_back",
}
PREFILL_ENV = {**PD_ENV, "SGLANG_PP_LAYER_PARTITION": "20,20,20,18"}


def assert_holds(args, flags, env):
    for flag, value in flags.items():
        assert args.argv.count(flag) == 1, f"{flag} missing or doubled in {args.argv}"
        if value is not None:
            assert args.argv[args.argv.index(flag) + 1] == value, flag
    assert {name: args.env.get(name) for name in env} == env


def rendered(role, decode_gpus=8, **more):
    return sglang_args.engine(role, {**sglang_args.published(role, decode_gpus), **SITE, **more})


def test_prefill():
    args = rendered("prefill", **PD, bootstrap_port=31300, kv_events_port=31310, kv_replay_port=31340)
    assert_holds(args, {**PREFILL, "--disaggregation-bootstrap-port": "31300"}, PREFILL_ENV)
    assert "--attn-dp-size" not in args.argv
    events = json.loads(args.argv[args.argv.index("--kv-events-config") + 1])
    assert events == {"publisher": "zmq", "topic": "kv-events", "bind": True,
                      "endpoint": "tcp://10.0.0.1:31310", "replay_endpoint": "tcp://10.0.0.1:31340"}


def test_decode_on_eight_and_on_four_gpus():
    for gpus in (8, 4):
        args = rendered("decode", gpus, **PD)
        assert_holds(args, {**PD_FLAGS, "--disaggregation-mode": "decode", "--tp-size": str(gpus), "--attn-dp-size": str(gpus)}, PD_ENV)
        for absent in ("--enable-hierarchical-cache", "--kv-events-config", "--disaggregation-decode-enable-radix-cache", "--disable-overlap-schedule",
                       "--pp-size"):
            assert absent not in args.argv
        assert "SGLANG_PP_LAYER_PARTITION" not in args.env


def test_mixed():
    args = rendered("mixed")
    assert_holds(args, {**COMMON_FLAGS, "--tp-size": "4", "--attn-dp-size": "4"}, COMMON_ENV)
    assert not [word for word in args.argv if word.startswith("--disaggregation")]
    assert not [name for name in args.env if name.startswith("MC_")]


def test_layers_sum_to_the_model():
    assert sum(sglang_args.published("prefill")["pp_layers"]) == sglang_args.published("prefill")["model_layers"] == 78


def test_unpublished_values_are_unset():
    from ansible_collections.infera.serving.plugins.module_utils.sglang_keys import KEYS, NOT_PUBLISHED
    for role in sglang_args.ROLES:
        assert not set(NOT_PUBLISHED) & set(sglang_args.published(role))
    argv = rendered("mixed").argv
    for name in NOT_PUBLISHED:
        assert KEYS[name].flag not in argv
    assert {"mem_fraction_static", "max_running_requests", "ep_size", "context_length", "cuda_graph_max_bs_decode"} <= set(NOT_PUBLISHED)
