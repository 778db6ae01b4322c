"""Every flag that sglang_args writes is accepted by the real parser of the wheel: parser-accepted, no more.

Resolution (what SGLang makes of the flags on ROCm, with the model's configuration) cannot run here.
"""
import json
import pathlib

import pytest
from ansible_collections.infera.serving.plugins.module_utils import sglang_args
from ansible_collections.infera.serving.plugins.module_utils.sglang_keys import KEYS

from patches import engine_python, sources

SITE = {"model_path": "/m", "host": "10.0.0.1", "port": 31000, "served_model_name": "glm"}
PD = {"max_running_requests": 512, "ib_device": [f"ionic_{n}" for n in range(8)]}
PREFILL = {**sglang_args.published("prefill"), **SITE, **PD, "bootstrap_port": 31300, "kv_events_port": 31310, "kv_replay_port": 31340}
CPU = {**SITE, "flavour": "cpu", "transfer_backend": "mooncake_tcp", "max_total_tokens": 4096, "mem_fraction_static": 0.1}
# A value for every key that is one flag, so that each flag is met by the parser.
ANY = {"tokenizer_path": "/t", "trust_remote_code": True, "dp_size": 1, "ep_size": 8, "mem_fraction_static": 0.85, "context_length": 131072,
       "max_total_tokens": 65536, "page_size": 64, "num_reserved_decode_tokens": 512, "cuda_graph_max_bs_decode": 32, "cuda_graph_max_bs_prefill": 8,
       "cuda_graph_bs_decode": [1, 2, 4], "cuda_graph_bs_prefill": [1, 2], "kv_cache_dtype": "fp8_e4m3", "dsa_prefill_backend": "tilelang",
       "dsa_decode_backend": "tilelang", "reasoning_parser": "glm45", "tool_call_parser": "glm47", "chat_template": "/c.jinja",
       "load_balance_method": "total_tokens", "model_override_args": {"index_share_for_mtp_iteration": False}, "log_level": "info", "random_seed": 1,
       "chunked_prefill_size": 8192, "schedule_policy": "lpm", "disable_cuda_graph": False, "sleep_on_idle": True}
ENGINES = {
    "prefill": ("prefill", PREFILL), "decode-8": ("decode", {**sglang_args.published("decode"), **SITE, **PD}),
    "decode-4": ("decode", {**sglang_args.published("decode", 4), **SITE, **PD}), "mixed": ("mixed", {**sglang_args.published("mixed"), **SITE}),
    "everything": ("decode", {**sglang_args.published("decode"), **SITE, **PD, **ANY}),
    "radix": ("decode", {**SITE, "transfer_backend": "mooncake", "decode_radix_cache": True, "kv_events_port": 31310, "retraction_backup": "host_pool"}),
    "pure-dp": ("mixed", {**SITE, "dp_size": 2}),
    "no-graph": ("mixed", {**sglang_args.published("mixed"), **SITE, "disable_cuda_graph": True}),
    "rails-per-gpu": ("decode", {**sglang_args.published("decode"), **SITE, **PD, "ib_device": {0: ["ionic_0"], 1: ["ionic_1"]}}),
    "cpu-prefill": ("prefill", {**CPU, "bootstrap_port": 31300, "pp_size": 2, "cpu_threads": "0|1", "kv_events_port": 31310, "kv_replay_port": 31340}),
    "cpu-decode": ("decode", {**CPU, "tp_size": 2, "attn_dp_size": 2, "cpu_threads": "0|1"}),
    "cpu-mixed": ("mixed", {**SITE, "flavour": "cpu"}),
}
# 0.5.18 has no shortest-prefill-first: the one published value that its parser does not know.
OLD = {name: (role, {**values, "sglang": "0.5.18", **({"schedule_policy": "fcfs"} if role == "prefill" else {})})
       for name, (role, values) in ENGINES.items() if values.get("flavour") != "cpu"}


def parse(python, version, lists):
    script = pathlib.Path(__file__).parent / "parse_flags.py"
    return json.loads(engine_python.run(python, script, sites=[sources.unpacked("sglang", version)], stdin=json.dumps(lists)).stdout)


@pytest.fixture(scope="module")
def new(python):
    names = list(ENGINES)
    extra = [["--model-path", "/m", "--cuda-graph-max-bs", "8"], ["--model-path", "/m", "--no-such-flag"]]
    results = parse(python, "0.5.22", [sglang_args.engine(*ENGINES[name]).argv for name in names] + extra)
    return dict(zip([*names, "ambiguous", "unknown"], results, strict=True))


def test_every_engine_is_parser_accepted(new):
    for name in ENGINES:
        assert new[name]["ok"], f"{name}: {new[name].get('error')}"
        assert new[name]["abbreviated"] == [], f"{name}: written in short"


def test_the_parser_does_refuse(new):
    """The check can fail: the old spelling is ambiguous, an invented flag unknown."""
    assert "ambiguous option: --cuda-graph-max-bs" in new["ambiguous"]["error"]
    assert "--no-such-flag" in new["unknown"]["error"]


def test_every_key_met_the_parser():
    written = {word.split("=")[0] for role, values in ENGINES.values() for word in sglang_args.engine(role, values).argv if word.startswith("--")}
    assert {key.flag for key in KEYS.values()} - written == set()


def test_values_arrive(new):
    values = new["prefill"]["values"]
    expected = {"tp_size": 1, "pp_size": 4, "chunked_prefill_size": 8192, "schedule_policy": "shortest-prefill-first", "disable_overlap_schedule": True,
                "hicache_size": 250, "hicache_write_policy": "write_back", "enable_hierarchical_cache": True, "speculative_algorithm": "EAGLE",
                "speculative_num_steps": 5, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 6, "disable_custom_all_reduce": True,
                "disaggregation_mode": "prefill", "disaggregation_transfer_backend": "mooncake", "disaggregation_bootstrap_port": 31300,
                "disaggregation_ib_device": ",".join(f"ionic_{n}" for n in range(8)), "max_running_requests": 512}
    assert {name: values[name] for name in expected} == expected
    for name, gpus in (("decode-8", 8), ("decode-4", 4), ("mixed", 4)):
        assert (new[name]["values"]["tp_size"], new[name]["values"]["attn_dp_size"]) == (gpus, gpus)
    assert new["everything"]["values"]["cuda_graph_max_bs_decode"] == 32
    assert new["cpu-decode"]["values"]["enable_tp_lm_head_all_to_all"] is False


def test_the_old_images_parser(python):
    """The old side: flags in 0.5.18's spelling, where --cuda-graph-max-bs stays."""
    lists = [sglang_args.engine(*values).argv for values in OLD.values()]
    results = dict(zip(OLD, parse(python, "0.5.18", lists), strict=True))
    for name, result in results.items():
        assert result["ok"] and result["abbreviated"] == [], f"{name}: {result}"
    assert "--cuda-graph-max-bs" in lists[list(OLD).index("everything")]
    assert results["everything"]["values"]["cuda_graph_max_bs_decode"] == 32
    decode = results["decode-8"]["values"]
    assert (decode["tp_size"], decode["dp_size"], decode["enable_dp_attention"]) == (8, 8, True)
