"""What engine() refuses, and the parts that the published table does not reach."""
import json

import pytest
from ansible_collections.infera.serving.plugins.module_utils import sglang_args
from ansible_collections.infera.serving.plugins.module_utils.sglang_args import ArgsError, engine, published

SITE = {"model_path": "/m", "host": "10.0.0.1", "port": 31000}
PREFILL = {**published("prefill"), **SITE, "bootstrap_port": 31300, "max_running_requests": 512}
DECODE = {**published("decode"), **SITE, "max_running_requests": 512}
MIXED = {**published("mixed"), **SITE}
CPU = {**SITE, "flavour": "cpu", "transfer_backend": "mooncake_tcp"}


def faults(role, values):
    with pytest.raises(ArgsError) as caught:
        engine(role, values)
    return caught.value.faults


@pytest.mark.parametrize(("role", "base", "change", "message"), [
    ("prefill", PREFILL, {"pp_layers": [20, 20, 20, 20]}, "pp_layers: 20,20,20,20 sums to 80, the model has 78 layers"),
    ("prefill", PREFILL, {"pp_layers": [39, 39]}, "pp_layers: 39,39 names 2 stages, pp_size is 4"),
    ("prefill", PREFILL, {"pp_layers": [78, 0, 0, 0]}, "is not a whole number of at least 1"),
    ("prefill", PREFILL, {"overlap_schedule": True}, "overlap_schedule: true with pp_size 4"),
    ("prefill", PREFILL, {"max_running_requests": None}, "SGLang resets it to 48 under speculation"),
    ("prefill", PREFILL, {"spec": {"algorithm": "EAGLE3", "steps": 5, "topk": 1, "draft_tokens": 6}},
     "spec.algorithm: EAGLE3 on a prefill engine with pp_size 4"),
    ("prefill", PREFILL, {"env": {"SGLANG_ENABLE_PP_SPEC": "1"}}, "env.SGLANG_ENABLE_PP_SPEC: 1"),
    ("prefill", PREFILL, {"env": {"SGLANG_PP_LAYER_PARTITION": "78"}}, "written by the key pp_layers"),
    ("prefill", PREFILL, {"hicache": {"size_gb": 250, "write_policy": "writeback"}}, "hicache.write_policy: 'writeback' is unknown"),
    ("prefill", PREFILL, {"hicache": {"size_gb": "much"}}, "hicache.size_gb: 'much'"),
    ("prefill", PREFILL, {"extra_args": ["--disable-radix-cache"]}, "--disable-radix-cache with shortest-prefill-first"),
    ("prefill", PREFILL, {"bootstrap_port": None}, "bootstrap_port: not set; a prefill engine needs it"),
    ("prefill", PREFILL, {"kv_replay_port": 31340}, "kv_replay_port: 31340 without kv_events_port"),
    ("prefill", PREFILL, {"transfer_backend": "mooncake_tcp"}, "moves the KV over TCP"),
    ("prefill", PREFILL, {"transfer_backend": "rdma"}, "transfer_backend: 'rdma' is unknown"),
    ("prefill", PREFILL, {"sglang": "0.5.18"}, "shortest-prefill-first does not exist in SGLang 0.5.18"),
    ("decode", DECODE, {"attn_dp_size": 3}, "attn_dp_size: 3 does not divide tp_size 8"),
    ("decode", DECODE, {"dp_size": 2}, "dp_size: 2 together with attn_dp_size 8"),
    ("decode", DECODE, {"planned_concurrency": 600}, "max_running_requests: 512 is below the planned concurrency 600"),
    ("decode", DECODE, {"decode_radix_cache": True}, "decode_radix_cache: true with spec.algorithm EAGLE"),
    ("decode", DECODE, {"kv_events_port": 31310}, "it keeps no radix cache"),
    ("decode", DECODE, {"pp_size": 2}, "pipeline parallelism and speculation together"),
    ("decode", DECODE, {"spec": {"algorithm": "EAGLE", "steps": 5, "topk": 1, "draft_tokens": 8}}, "SGLang would change it to steps + 1 = 6"),
    ("decode", DECODE, {"spec": {"algorithm": "EAGLE", "steps": 5}}, "missing draft_tokens,topk"),
    ("decode", DECODE, {"simulate_acc_len": 7}, "simulate_acc_len: 7.0 is outside 1 to draft_tokens 6"),
    ("decode", DECODE, {"bootstrap_port": 31300}, "bootstrap_port: 31300 has no meaning for a decode engine"),
    ("decode", DECODE, {"mem_fraction_static": 85}, "mem_fraction_static: 85.0 is not a share"),
    ("decode", DECODE, {"extra_args": ["--tp-size=4"]}, "extra_args: --tp-size=4 is written by the key tp_size"),
    ("decode", DECODE, {"extra_args": ["--cuda-graph-max-bs", "8"], "cuda_graph_max_bs_decode": 16}, "they are the same setting"),
    ("decode", DECODE, {"extra_args": "--log-requests"}, "is not a list of strings"),
    ("decode", DECODE, {"port": 70000}, "port: 70000 is not a port"),
    ("decode", DECODE, {"port": True}, "port: True is not a whole number"),
    ("decode", DECODE, {"flavor": "rocm"}, "flavor: unknown key; did you mean flavour?"),
    ("mixed", MIXED, {"simulate_acc_len": 3.61}, "a forced acceptance needs speculation"),
    ("mixed", MIXED, {"transfer_backend": "mooncake"}, "has no meaning for a mixed engine"),
    ("mixed", MIXED, {"cpu_threads": "0"}, "cpu_threads: '0' is for flavour cpu"),
    ("mixed", MIXED, {"model_path": " "}, "model_path: ' ' is not a text"),
    ("mixed", MIXED, {"flavour": "cuda"}, "flavour: 'cuda' is unknown"),
    ("decode", CPU, {"transfer_backend": "mooncake"}, "use mooncake_tcp"),
    ("decode", CPU, {"tp_size": 2, "attn_dp_size": 2}, "cpu_threads: None for 2 ranks"),
    ("decode", CPU, {"retraction_backup": "host_pool"}, "retraction_backup: 'host_pool' on flavour cpu"),
    ("mixed", {**SITE, "flavour": "cpu"}, {"hicache": {"size_gb": 1}}, "cannot run on flavour cpu"),
])
def test_refused(role, base, change, message):
    engine(role, base)
    found = faults(role, {**base, **change})
    assert any(message in line for line in found), found


def test_every_fault_is_named_at_once():
    found = faults("prefill", {**PREFILL, "pp_layers": [20, 20, 20, 20], "max_running_requests": None, "host": None, "transfer_backend": "mooncake_tcp"})
    assert [line.split(":")[0] for line in found] == ["host", "pp_layers", "max_running_requests", "transfer_backend"]


def test_unknown_role():
    assert faults("router", SITE) == ["role: 'router' is unknown; use one of prefill, decode, mixed"]


def test_strings_from_templates_give_the_same_engine():
    texts = {**DECODE, "port": "31000", "tp_size": "8", "attn_dp_size": "8", "disable_custom_all_reduce": "true", "max_running_requests": "512"}
    assert engine("decode", texts) == engine("decode", DECODE)


def test_cpu_engines():
    prefill = engine("prefill", {**CPU, "bootstrap_port": 31300, "pp_size": 2, "cpu_threads": "0|1", "host_ip": "127.0.0.1", "socket_ifname": "lo"})
    assert prefill.argv[:4] == ["--device", "cpu", "--attention-backend", "torch_native"]
    assert "--sleep-on-idle" in prefill.argv and "--disable-custom-all-reduce" not in prefill.argv
    assert "--disaggregation-decode-retraction-backup" not in prefill.argv
    assert prefill.env == {
        "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1", "HOST_IP": "127.0.0.1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0",
        "SGLANG_CPU_OMP_THREADS_BIND": "0|1", "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "0", "SGLANG_HOST_IP": "127.0.0.1",
        "SGLANG_LOCAL_IP_NIC": "lo", "SGLANG_USE_CPU_ENGINE": "1"}
    decode = engine("decode", {**CPU, "tp_size": 2, "attn_dp_size": 2, "cpu_threads": "0|1"})
    assert decode.argv[decode.argv.index("--disaggregation-decode-retraction-backup") + 1] == "none"
    assert "--no-enable-tp-lm-head-all-to-all" in decode.argv
    assert "--no-enable-tp-lm-head-all-to-all" not in engine("decode", DECODE).argv, "on GPUs the default stays"


def test_old_spellings():
    old = engine("decode", {**DECODE, "sglang": "0.5.18", "cuda_graph_max_bs_decode": 32, "cuda_graph_bs_decode": [1, 2]}).argv
    new = engine("decode", {**DECODE, "cuda_graph_max_bs_decode": 32, "cuda_graph_bs_decode": [1, 2]}).argv
    assert old[old.index("--cuda-graph-max-bs") + 1] == "32" and "--cuda-graph-max-bs-decode" not in old
    assert new[new.index("--cuda-graph-max-bs-decode") + 1] == "32" and new[new.index("--cuda-graph-bs-decode") + 1:][:2] == ["1", "2"]
    assert old[old.index("--dp-size") + 1] == "8" and "--enable-dp-attention" in old


def test_environment_merges():
    args = engine("decode", {**DECODE, "mooncake_env": {"MC_ENABLE_HCA_PEER_AFFINITY": "1", "MC_MAX_MR_SIZE": 536870912},
                             "env": {"NCCL_IB_DISABLE": None, "EXTRA": 1}, "simulate_acc_len": "3.61", "visible_devices": [4, 5, 6, 7],
                             "bootstrap_timeout": 1800, "waiting_timeout": 3600})
    assert "MC_ENABLE_DEST_DEVICE_AFFINITY" not in args.env, "Mooncake switches both affinities off when both are present"
    assert "NCCL_IB_DISABLE" not in args.env
    expected = {"MC_MAX_MR_SIZE": "536870912", "EXTRA": "1", "SGLANG_SIMULATE_ACC_LEN": "3.61", "HIP_VISIBLE_DEVICES": "4,5,6,7",
                "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "1800", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "3600"}
    assert {name: args.env[name] for name in expected} == expected
    assert list(args.env) == sorted(args.env)


@pytest.mark.parametrize(("device", "written"), [
    (["ionic_0", "ionic_1"], "ionic_0,ionic_1"), ("/etc/rails.json", "/etc/rails.json"),
    ({0: ["ionic_0"], "1": "ionic_1,ionic_2"}, '{"0": "ionic_0", "1": "ionic_1,ionic_2"}')])
def test_rails(device, written):
    argv = engine("decode", {**DECODE, "ib_device": device}).argv
    assert argv[argv.index("--disaggregation-ib-device") + 1] == written


def test_values_are_passed_whole():
    argv = engine("mixed", {**MIXED, "model_override_args": {"b": 1, "a": False}, "served_model_name": "-x", "extra_args": ["--log-requests"]}).argv
    assert json.loads(argv[argv.index("--json-model-override-args") + 1]) == {"a": False, "b": 1}
    assert "--served-model-name=-x" in argv and argv[-1] == "--log-requests"


@pytest.mark.parametrize(("config", "fault"), [
    ({"num_hidden_layers": 78}, False), ({"text_config": {"num_hidden_layers": 78}}, False), ({}, False), ({"num_hidden_layers": 61}, True)])
def test_model_layers_against_the_models_config(config, fault):
    found = sglang_args.model_layers_fault(78, config)
    assert bool(found) is fault
    assert not fault or "num_hidden_layers 61" in found
