# Copyright (c) 2026, the infera.serving authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The keys of an SGLang engine: their flags, types and meanings, and which values nobody published. Read by sglang_args alone."""
from __future__ import annotations

import difflib
from typing import Any, Dict, List, NamedTuple, Optional

ROLES = ("prefill", "decode", "mixed")
FLAVOURS = ("rocm", "cpu")
DIALECTS = ("0.5.22", "0.5.18")
TRANSFER_BACKENDS = ("mooncake", "mooncake_tcp", "mori", "nixl", "ascend")
RDMA_BACKENDS = ("mooncake", "mori", "nixl", "ascend")
WRITE_POLICIES = ("write_back", "write_through", "write_through_selective")


class Key(NamedTuple):
    """One key that is one flag: kind is int, float, str, flag, ints or json; ``old`` is the 0.5.18 spelling where it differs."""

    kind: str
    flag: str
    text: str
    old: Optional[str] = None


KEYS: Dict[str, Key] = {
    "model_path": Key("str", "--model-path", "directory or name of the model; required"),
    "served_model_name": Key("str", "--served-model-name", "name that clients use"),
    "tokenizer_path": Key("str", "--tokenizer-path", "where the tokenizer is not in the model's directory"),
    "trust_remote_code": Key("flag", "--trust-remote-code", "runs the model directory's own Python"),
    "host": Key("str", "--host", "address that HTTP and the bootstrap server listen on; required"),
    "port": Key("int", "--port", "HTTP port; required"),
    "bootstrap_port": Key("int", "--disaggregation-bootstrap-port", "prefill only, required there"),
    "transfer_backend": Key("str", "--disaggregation-transfer-backend", "prefill and decode, required there: " + ", ".join(TRANSFER_BACKENDS)),
    "tp_size": Key("int", "--tp-size", "tensor-parallel ranks; default 1"),
    "pp_size": Key("int", "--pp-size", "pipeline stages; default 1"),
    "dp_size": Key("int", "--dp-size", "whole copies of the model; not together with attn_dp_size"),
    "ep_size": Key("int", "--ep-size", "expert-parallel ranks"),
    "chunked_prefill_size": Key("int", "--chunked-prefill-size", "tokens per prefill chunk; SGLang divides it by attn_dp_size, not by pp_size"),
    "schedule_policy": Key("str", "--schedule-policy", "shortest-prefill-first needs the prefix cache and SGLang 0.5.22"),
    "max_running_requests": Key("int", "--max-running-requests", "requests that the whole engine runs at once; required with spec"),
    "mem_fraction_static": Key("float", "--mem-fraction-static", "share of GPU memory for weights and KV pool, above 0 and below 1"),
    "context_length": Key("int", "--context-length", "tokens; the model's own limit where unset"),
    "max_total_tokens": Key("int", "--max-total-tokens", "size of the KV pool, tokens per rank"),
    "page_size": Key("int", "--page-size", "tokens per KV page"),
    "num_reserved_decode_tokens": Key("int", "--num-reserved-decode-tokens", "decode only; SGLang's default is 512"),
    "cuda_graph_max_bs_decode": Key("int", "--cuda-graph-max-bs-decode", "largest decode batch that is captured", "--cuda-graph-max-bs"),
    "cuda_graph_max_bs_prefill": Key("int", "--cuda-graph-max-bs-prefill", "largest prefill batch that is captured"),
    "cuda_graph_bs_decode": Key("ints", "--cuda-graph-bs-decode", "decode batches that are captured, list", "--cuda-graph-bs"),
    "cuda_graph_bs_prefill": Key("ints", "--cuda-graph-bs-prefill", "prefill batches that are captured, list"),
    "disable_cuda_graph": Key("flag", "--disable-cuda-graph", "captures none"),
    "kv_cache_dtype": Key("str", "--kv-cache-dtype", "type of the KV pool; the same on both legs"),
    "dsa_prefill_backend": Key("str", "--dsa-prefill-backend", "sparse attention kernel of the prefill phase"),
    "dsa_decode_backend": Key("str", "--dsa-decode-backend", "sparse attention kernel of the decode phase"),
    "disable_custom_all_reduce": Key("flag", "--disable-custom-all-reduce", "default true on rocm: with AITER's custom all-reduce about 30% of "
                                     "GSM8K answers at concurrency 64 come out garbled under DP attention with decode CUDA graphs"),
    "reasoning_parser": Key("str", "--reasoning-parser", "e.g. glm45"),
    "tool_call_parser": Key("str", "--tool-call-parser", "e.g. glm47"),
    "chat_template": Key("str", "--chat-template", "name or file; the tokenizer's own where unset"),
    "load_balance_method": Key("str", "--load-balance-method", "how SGLang spreads requests that name no rank"),
    "decode_radix_cache": Key("flag", "--disaggregation-decode-enable-radix-cache", "decode only, never with spec"),
    "retraction_backup": Key("str", "--disaggregation-decode-retraction-backup", "decode only: cpu_tensor, host_pool, none; cpu flavour: none"),
    "model_override_args": Key("json", "--json-model-override-args", "dictionary laid over the model's config.json"),
    "log_level": Key("str", "--log-level", "debug, info, warning, error"),
    "random_seed": Key("int", "--random-seed", "integer"),
    "metrics": Key("flag", "--enable-metrics", "default true: drain, status and evaluation read them"),
    "metrics_all_schedulers": Key("flag", "--enable-metrics-for-all-schedulers", "default true: one series per rank"),
    "cache_report": Key("flag", "--enable-cache-report", "default true: usage tells the cached tokens"),
    "sleep_on_idle": Key("flag", "--sleep-on-idle", "default true on cpu: an idle scheduler spins otherwise"),
}

SPECIAL = ("flavour", "sglang", "attn_dp_size", "overlap_schedule", "pp_layers", "model_layers", "hicache", "spec", "simulate_acc_len",
           "kv_events_port", "kv_replay_port", "kv_events_host", "kv_topic", "ib_device", "allow_tcp", "planned_concurrency", "host_ip", "socket_ifname",
           "bootstrap_timeout", "waiting_timeout", "visible_devices", "topk_v2", "mooncake_env", "cpu_threads", "env", "extra_args")

# Key, what SGLang does where it stays unset. The documentation's table is made from this.
NOT_PUBLISHED: Dict[str, str] = {
    "mem_fraction_static": "SGLang estimates it from the GPU's memory, chunk size and graph sizes",
    "max_running_requests": "derived from the KV pool, but reset to 48 under speculation: EAGLE shapes must set it, at least at the planned concurrency",
    "ep_size": "1: experts are sharded by tensor parallelism",
    "context_length": "the model's config.json decides",
    "max_total_tokens": "what mem_fraction_static leaves",
    "cuda_graph_max_bs_decode": "SGLang chooses by GPU memory; batches above it run eagerly",
    "cuda_graph_max_bs_prefill": "SGLang chooses",
    "cuda_graph_bs_decode": "a ladder of sizes up to cuda_graph_max_bs_decode",
    "cuda_graph_bs_prefill": "a ladder of sizes up to cuda_graph_max_bs_prefill",
    "num_reserved_decode_tokens": "512",
    "kv_cache_dtype": "the model's type; both legs must agree",
    "dsa_prefill_backend": "SGLang chooses by GPU; tilelang and triton are the ROCm candidates",
    "dsa_decode_backend": "SGLang chooses by GPU; tilelang and triton are the ROCm candidates",
    "reasoning_parser": "none: reasoning stays in the content; glm45 is the registered name for this model family",
    "tool_call_parser": "none: tool calls stay in the content; glm47 is the registered name for this model family",
}

PUBLISHED_MOONCAKE = {"MC_ENABLE_DEST_DEVICE_AFFINITY": "1", "MC_MAX_MR_SIZE": "1073741824"}
PUBLISHED_SPEC = {"algorithm": "EAGLE", "steps": 5, "topk": 1, "draft_tokens": 6}
ROCM_ENV = {
    "HIP_FORCE_DEV_KERNARG": "1", "HSA_NO_SCRATCH_RECLAIM": "1", "NCCL_IB_DISABLE": "1", "NCCL_IGNORE_CPU_AFFINITY": "1",
    "PYTHONHASHSEED": "0", "SAFETENSORS_FAST_GPU": "1", "SGLANG_USE_AITER": "1",
}
CPU_ENV = {"HF_HUB_OFFLINE": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "SGLANG_USE_CPU_ENGINE": "1"}
# Variables that a key writes: setting them beside it would leave two truths.
OWNED_ENV = {"SGLANG_PP_LAYER_PARTITION": "pp_layers", "SGLANG_SIMULATE_ACC_LEN": "simulate_acc_len", "HIP_VISIBLE_DEVICES": "visible_devices",
              "SGLANG_CPU_OMP_THREADS_BIND": "cpu_threads", "SGLANG_OPT_USE_TOPK_V2": "topk_v2"}
OWNED_FLAGS = {"--device": "flavour", "--attention-backend": "flavour (cpu)", "--disaggregation-mode": "role", "--attn-dp-size": "attn_dp_size",
                "--enable-dp-attention": "attn_dp_size", "--disable-overlap-schedule": "overlap_schedule", "--kv-events-config": "kv_events_port",
                "--enable-hierarchical-cache": "hicache", "--hicache-size": "hicache", "--hicache-write-policy": "hicache",
                "--speculative-algorithm": "spec", "--speculative-num-steps": "spec", "--speculative-eagle-topk": "spec",
                "--speculative-num-draft-tokens": "spec", "--disaggregation-ib-device": "ib_device", "--tensor-parallel-size": "tp_size",
                "--pipeline-parallel-size": "pp_size", "--data-parallel-size": "dp_size", "--model": "model_path"}
ON_BY_DEFAULT = ("metrics", "metrics_all_schedulers", "cache_report")
GPU_ONLY = ("spec", "hicache", "ib_device", "simulate_acc_len", "cuda_graph_max_bs_decode", "cuda_graph_max_bs_prefill", "cuda_graph_bs_decode",
             "cuda_graph_bs_prefill", "dsa_prefill_backend", "dsa_decode_backend", "disable_custom_all_reduce", "visible_devices", "kv_cache_dtype")


def typed(values: Dict[str, Any], faults: List[str]) -> Dict[str, Any]:
    """Known keys with a value, brought to their type; numbers may come as strings, as templates make them."""
    out: Dict[str, Any] = {}
    for name, value in values.items():
        if name not in KEYS and name not in SPECIAL:
            near = difflib.get_close_matches(name, list(KEYS) + list(SPECIAL), n=1)
            faults.append(f"{name}: unknown key" + (f"; did you mean {near[0]}?" if near else "; use extra_args for a flag that has no key"))
        elif value is not None:
            try:
                out[name] = convert(KINDS.get(name) or KEYS[name].kind, value)
            except (TypeError, ValueError) as err:
                faults.append(f"{name}: {value!r} {err}")
    return out


KINDS = {
    "flavour": "str", "sglang": "str", "attn_dp_size": "int", "overlap_schedule": "flag", "pp_layers": "ints", "model_layers": "int", "hicache": "dict",
    "spec": "dict", "simulate_acc_len": "float", "kv_events_port": "int", "kv_replay_port": "int", "kv_events_host": "str", "kv_topic": "str",
    "ib_device": "any", "allow_tcp": "flag", "planned_concurrency": "int", "host_ip": "str", "socket_ifname": "str", "bootstrap_timeout": "int",
    "waiting_timeout": "int", "visible_devices": "indexes", "topk_v2": "flag", "mooncake_env": "dict", "cpu_threads": "str", "env": "dict",
    "extra_args": "strings",
}


def convert(kind: str, value: Any) -> Any:
    if kind in ("int", "index"):
        number = int(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else None
        if number is None or number < (0 if kind == "index" else 1):
            raise ValueError("is not a whole number of at least " + ("0" if kind == "index" else "1"))
        return number
    if kind in ("ints", "indexes"):
        if not isinstance(value, (list, tuple)) or not value:
            raise ValueError("is not a list of numbers")
        return [convert("index" if kind == "indexes" else "int", one) for one in value]
    if kind == "float":
        return float(value)
    if kind == "flag":
        if isinstance(value, bool):
            return value
        if str(value).lower() in ("true", "yes", "on", "1", "false", "no", "off", "0"):
            return str(value).lower() in ("true", "yes", "on", "1")
        raise ValueError("is not true or false")
    if kind == "str":
        if not isinstance(value, (str, int, float)) or isinstance(value, bool) or not str(value).strip():
            raise ValueError("is not a text of at least one character")
        return str(value)
    if kind in ("dict", "json"):
        if not isinstance(value, dict):
            raise ValueError("is not a dictionary")
        return value
    if kind == "strings":
        if isinstance(value, str) or not all(isinstance(one, (str, int, float)) for one in value):
            raise ValueError("is not a list of strings; write each word of the command line as one item")
        return [str(one) for one in value]
    return value
