# Copyright (c) 2026, the infera.serving authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang's command line and environment, written here and nowhere else.

``engine(role, values)`` turns one engine's values into ``EngineArgs(argv, env)``: argv holds the arguments of
``sglang.launch_server`` alone (no program, no module), env holds strings only. ``role`` is prefill, decode or mixed.
``published(role, ...)`` gives the values of the published deployments; a plan merges its variables over them.

The keys of ``values`` are those of ``sglang_keys.KEYS``, each with its type, its flag and what it means; a key that is absent or
None writes nothing, except where its text names a default. ``NOT_PUBLISHED`` lists the ones that the published
deployments used but whose values nobody published. Keys that are not a single flag:

====================== =====================================================================================================
flavour                rocm (default) or cpu; cpu adds what SGLang needs to run without a GPU
sglang                 spelling of the flags: "0.5.22" (default) or "0.5.18"
pp_layers              layers per pipeline stage, list of int; becomes SGLANG_PP_LAYER_PARTITION (SGLang has no flag for it)
model_layers           int, compared with the sum of pp_layers
hicache                {size_gb: int per process (= per stage), write_policy: write_back|write_through|write_through_selective}
spec                   {algorithm, steps, topk, draft_tokens}
simulate_acc_len       float, forces the acceptance length: for throughput points only, answers are wrong
kv_events_port         first of attn_dp_size (or dp_size) contiguous ports; with kv_replay_port, kv_events_host (default: host), kv_topic
ib_device              list of rails, {visible GPU index: rails}, or a string in one of SGLang's forms
allow_tcp              bool, lets the rocm flavour use mooncake_tcp
planned_concurrency    int; max_running_requests below it is refused
host_ip, socket_ifname address and interface for SGLang's and gloo's own sockets
bootstrap_timeout,     seconds; SGLang's own default is 300
waiting_timeout
visible_devices        list of int, becomes HIP_VISIBLE_DEVICES
topk_v2                bool, default true on rocm: SGLANG_OPT_USE_TOPK_V2 (SGLang switches it off for DSA models on HIP if it is unset)
mooncake_env           {name: value} from the rails; over the published MC_ENABLE_DEST_DEVICE_AFFINITY=1, MC_MAX_MR_SIZE=1073741824
cpu_threads            str, SGLANG_CPU_OMP_THREADS_BIND, one core list per rank ("0|1"); cpu flavour, needed for more than one rank
env                    {name: value} set last; None removes a variable
extra_args             list of str, appended last; a flag that a key writes is refused here
====================== =====================================================================================================

``ArgsError.faults`` holds every fault found, one line each: the key, the value, the fix.
"""
from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, Optional

from ansible_collections.infera.serving.plugins.module_utils.sglang_keys import (
    CPU_ENV,
    DIALECTS,
    FLAVOURS,
    GPU_ONLY,
    KEYS,
    ON_BY_DEFAULT,
    OWNED_ENV,
    OWNED_FLAGS,
    PUBLISHED_MOONCAKE,
    PUBLISHED_SPEC,
    RDMA_BACKENDS,
    ROCM_ENV,
    ROLES,
    TRANSFER_BACKENDS,
    WRITE_POLICIES,
    convert,
    typed,
)


class EngineArgs(NamedTuple):
    """argv: arguments of sglang.launch_server; env: variables of its process. Both hold strings only."""

    argv: List[str]
    env: Dict[str, str]


class ArgsError(ValueError):
    """The values make no engine. ``faults``: one line for each reason."""

    def __init__(self, faults: List[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


def published(role: str, decode_gpus: int = 8) -> Dict[str, Any]:
    """Values of the published deployments for one role; decode_gpus is 8 or 4. Source: the GLM-5.2-MXFP4 recipes for MI355X."""
    common: Dict[str, Any] = {"flavour": "rocm", "disable_custom_all_reduce": True, "topk_v2": True}
    if role == "mixed":
        return dict(common, tp_size=4, attn_dp_size=4)
    common.update(transfer_backend="mooncake", spec=dict(PUBLISHED_SPEC))
    if role == "decode":
        return dict(common, tp_size=decode_gpus, attn_dp_size=decode_gpus)
    return dict(common, tp_size=1, pp_size=4, pp_layers=[20, 20, 20, 18], model_layers=78, chunked_prefill_size=8192, overlap_schedule=False,
                schedule_policy="shortest-prefill-first", hicache={"size_gb": 250, "write_policy": "write_back"})


def model_layers_fault(model_layers: int, config: Dict[str, Any]) -> Optional[str]:
    """Compare model_layers with a config.json that was read; None where they agree or the file does not say."""
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    found = config.get("num_hidden_layers", text.get("num_hidden_layers"))
    if found is None or int(found) == int(model_layers):
        return None
    return f"model_layers: {model_layers}, but the model's config.json has num_hidden_layers {found}; set infera_model_layers to {found} and repartition"


def engine(role: str, values: Dict[str, Any]) -> EngineArgs:
    """Build one engine's arguments and environment; raises ArgsError with every fault, and nothing is half-built."""
    if role not in ROLES:
        raise ArgsError([f"role: {role!r} is unknown; use one of {', '.join(ROLES)}"])
    faults: List[str] = []
    given = typed(values, faults)
    if not faults:
        _check(role, given, faults)
    if faults:
        raise ArgsError(faults)
    return EngineArgs(_argv(role, given), _env(role, given))


def _check(role: str, v: Dict[str, Any], faults: List[str]) -> None:
    flavour, dialect = v.get("flavour", "rocm"), v.get("sglang", "0.5.22")
    for name, value, allowed in (("flavour", flavour, FLAVOURS), ("sglang", dialect, DIALECTS)):
        if value not in allowed:
            faults.append(f"{name}: {value!r} is unknown; use one of {', '.join(allowed)}")
    for name in ("model_path", "host", "port") + (("transfer_backend",) if role != "mixed" else ()) + (("bootstrap_port",) if role == "prefill" else ()):
        if name not in v:
            faults.append(f"{name}: not set; a {role} engine needs it ({KEYS[name].flag})")
    for name in ("port", "bootstrap_port", "kv_events_port", "kv_replay_port"):
        if v.get(name, 1) > 65535:
            faults.append(f"{name}: {v[name]} is not a port; use 1 to 65535")
    if not 0 < v.get("mem_fraction_static", 0.5) < 1:
        faults.append(f"mem_fraction_static: {v['mem_fraction_static']} is not a share; use a number above 0 and below 1")
    _check_role(role, v, faults)
    _check_parallel(role, v, faults)
    _check_spec(role, v, faults)
    _check_memory(role, v, faults)
    _check_flavour(role, flavour, v, faults)
    if dialect == "0.5.18" and v.get("schedule_policy") == "shortest-prefill-first":
        faults.append("schedule_policy: shortest-prefill-first does not exist in SGLang 0.5.18; use fcfs or lpm there")
    _check_rest(v, faults)


def _check_role(role: str, v: Dict[str, Any], faults: List[str]) -> None:
    only = {"bootstrap_port": ("prefill",), "decode_radix_cache": ("decode",), "retraction_backup": ("decode",), "num_reserved_decode_tokens": ("decode",),
            "transfer_backend": ("prefill", "decode"), "ib_device": ("prefill", "decode")}
    for name, roles in only.items():
        if v.get(name) and role not in roles:
            faults.append(f"{name}: {v[name]!r} has no meaning for a {role} engine; leave it unset (it is for {' and '.join(roles)})")
    backend = v.get("transfer_backend")
    if backend is not None and backend not in TRANSFER_BACKENDS:
        faults.append(f"transfer_backend: {backend!r} is unknown; use one of {', '.join(TRANSFER_BACKENDS)}")


def _check_parallel(role: str, v: Dict[str, Any], faults: List[str]) -> None:
    tp, pp, attn, dp = (v.get(name, 1) for name in ("tp_size", "pp_size", "attn_dp_size", "dp_size"))
    if tp % attn:
        faults.append(f"attn_dp_size: {attn} does not divide tp_size {tp}; choose a divisor of {tp}")
    if attn > 1 and dp > 1:
        faults.append(f"dp_size: {dp} together with attn_dp_size {attn}; set one of them, the other stays 1")
    if pp > 1 and v.get("overlap_schedule"):
        faults.append(f"overlap_schedule: true with pp_size {pp}; SGLang has no overlap scheduler under pipeline parallelism, set it to false")
    layers = v.get("pp_layers")
    if layers is None:
        return
    if len(layers) != pp:
        faults.append(f"pp_layers: {_commas(layers)} names {len(layers)} stages, pp_size is {pp}; give one number per stage")
    if v.get("model_layers", sum(layers)) != sum(layers):
        faults.append(f"pp_layers: {_commas(layers)} sums to {sum(layers)}, the model has {v['model_layers']} layers; "
                      f"make the stages sum to {v['model_layers']}")


def _check_spec(role: str, v: Dict[str, Any], faults: List[str]) -> None:
    spec, pp = v.get("spec"), v.get("pp_size", 1)
    if spec is None:
        if "simulate_acc_len" in v:
            faults.append(f"simulate_acc_len: {v['simulate_acc_len']} without spec; a forced acceptance needs speculation")
        return
    unknown = set(spec) - {"algorithm", "steps", "topk", "draft_tokens"}
    missing = {"algorithm", "steps", "topk", "draft_tokens"} - set(spec)
    if unknown or missing:
        wrong = [f"{word} {_commas(sorted(names))}" for word, names in (("unknown", unknown), ("missing", missing)) if names]
        faults.append(f"spec: {'; '.join(wrong)}; it has exactly algorithm, steps, topk, draft_tokens")
        return
    try:
        steps, topk, draft = (convert("int", spec[name]) for name in ("steps", "topk", "draft_tokens"))
    except (TypeError, ValueError) as err:
        faults.append(f"spec: {spec!r}: a number {err}")
        return
    if topk == 1 and draft != steps + 1:
        faults.append(f"spec.draft_tokens: {draft}; SGLang would change it to steps + 1 = {steps + 1} with topk 1, so write {steps + 1}")
    algorithm = str(spec["algorithm"])
    if pp > 1 and (algorithm.upper() != "EAGLE" or role != "prefill"):
        faults.append(f"spec.algorithm: {algorithm} on a {role} engine with pp_size {pp}; pipeline parallelism and speculation together work with EAGLE "
                      "on prefill engines alone")
    if pp > 1 and _on(v.get("env", {}).get("SGLANG_ENABLE_PP_SPEC")):
        faults.append(f"env.SGLANG_ENABLE_PP_SPEC: {v['env']['SGLANG_ENABLE_PP_SPEC']} with a PD prefill; SGLang refuses it, leave it unset")
    if "max_running_requests" not in v:
        faults.append(f"max_running_requests: not set with spec.algorithm {algorithm}; SGLang resets it to 48 under speculation, "
                      "so set engine_max_running_requests to at least the planned concurrency")
    if v.get("decode_radix_cache"):
        faults.append(f"decode_radix_cache: true with spec.algorithm {algorithm}; SGLang refuses the pair, set it to false")
    if role == "decode" and "kv_events_port" in v:
        faults.append(f"kv_events_port: {v['kv_events_port']} on a decode with spec.algorithm {algorithm}; it keeps no radix cache and has no events, unset it")
    length = v.get("simulate_acc_len")
    if length is not None and not 1 <= length <= draft:
        faults.append(f"simulate_acc_len: {length} is outside 1 to draft_tokens {draft}")


def _check_memory(role: str, v: Dict[str, Any], faults: List[str]) -> None:
    planned, running = v.get("planned_concurrency"), v.get("max_running_requests")
    if planned and running and running < planned:
        faults.append(f"max_running_requests: {running} is below the planned concurrency {planned}; requests would queue, set at least {planned}")
    cache = v.get("hicache")
    if cache is not None:
        if set(cache) - {"size_gb", "write_policy"} or "size_gb" not in cache:
            faults.append(f"hicache: {cache!r}; it has size_gb (GB per process) and write_policy")
        else:
            try:
                convert("int", cache["size_gb"])
            except (TypeError, ValueError) as err:
                faults.append(f"hicache.size_gb: {cache['size_gb']!r} {err} (GB per process)")
            if cache.get("write_policy", "write_back") not in WRITE_POLICIES:
                faults.append(f"hicache.write_policy: {cache['write_policy']!r} is unknown; use one of {', '.join(WRITE_POLICIES)}")
    no_prefix = "--disable-radix-cache" in v.get("extra_args", [])
    if no_prefix and (v.get("schedule_policy") == "shortest-prefill-first" or cache is not None):
        faults.append("extra_args: --disable-radix-cache with shortest-prefill-first or hicache; both need the prefix cache, drop the flag")
    if "kv_replay_port" in v and "kv_events_port" not in v:
        faults.append(f"kv_replay_port: {v['kv_replay_port']} without kv_events_port; set both or neither")


def _check_flavour(role: str, flavour: str, v: Dict[str, Any], faults: List[str]) -> None:
    backend = v.get("transfer_backend")
    if flavour == "rocm":
        if backend == "mooncake_tcp" and not v.get("allow_tcp"):
            faults.append(f"transfer_backend: mooncake_tcp on rocm moves the KV over TCP; use one of {', '.join(RDMA_BACKENDS)}, or allow_tcp: true")
        if "cpu_threads" in v:
            faults.append(f"cpu_threads: {v['cpu_threads']!r} is for flavour cpu; leave it unset")
        return
    for name in GPU_ONLY:
        if v.get(name) not in (None, False):
            faults.append(f"{name}: {v[name]!r} cannot run on flavour cpu; leave it unset there")
    if backend is not None and backend != "mooncake_tcp":
        faults.append(f"transfer_backend: {backend!r} on flavour cpu; use mooncake_tcp")
    ranks = max(v.get("tp_size", 1) * v.get("pp_size", 1), v.get("dp_size", 1))
    if ranks > 1 and len(v.get("cpu_threads", "").split("|")) != ranks:
        faults.append(f"cpu_threads: {v.get('cpu_threads')!r} for {ranks} ranks; give one core list per rank, e.g. {'|'.join(str(n) for n in range(ranks))}")
    if v.get("retraction_backup", "none") != "none":
        faults.append(f"retraction_backup: {v['retraction_backup']!r} on flavour cpu; use none, the host pool calls the CUDA runtime")


def _check_rest(v: Dict[str, Any], faults: List[str]) -> None:
    owned = {key.flag: name for name, key in KEYS.items()}
    owned.update(OWNED_FLAGS)
    for word in v.get("extra_args", []):
        flag = word.split("=", 1)[0]
        if flag in owned:
            faults.append(f"extra_args: {word} is written by the key {owned[flag]}; set {owned[flag]} instead")
        elif flag in ("--cuda-graph-max-bs", "--cuda-graph-bs") and v.get(flag[2:].replace("-", "_") + "_decode"):
            faults.append(f"extra_args: {word} beside {flag[2:].replace('-', '_')}_decode; they are the same setting, drop the first")
    for name, value in v.get("env", {}).items():
        if name in OWNED_ENV:
            faults.append(f"env.{name}: {value!r} is written by the key {OWNED_ENV[name]}; set {OWNED_ENV[name]} instead")


def _argv(role: str, v: Dict[str, Any]) -> List[str]:
    cpu, old = v.get("flavour") == "cpu", v.get("sglang") == "0.5.18"
    flags = dict.fromkeys(ON_BY_DEFAULT, True)
    flags.update({"sleep_on_idle": True} if cpu else {"disable_custom_all_reduce": True})
    if cpu and role == "decode":
        flags["retraction_backup"] = "none"
    v = dict(flags, **v)
    argv: List[str] = []
    if cpu:
        argv += ["--device", "cpu", "--attention-backend", "torch_native"]
    if role != "mixed":
        argv += ["--disaggregation-mode", role]
    v.setdefault("tp_size", 1)
    for name, key in KEYS.items():
        if name in v and not (name == "dp_size" and v.get("attn_dp_size", 1) > 1):
            argv += _words(key.old if old and key.old else key.flag, key.kind, v[name])
    if v.get("attn_dp_size", 1) > 1:
        argv += ["--dp-size", str(v["attn_dp_size"]), "--enable-dp-attention"] if old else ["--attn-dp-size", str(v["attn_dp_size"])]
        if cpu:
            # The all-to-all LM head, on by default for TP = attention DP, has no CPU kernel.
            argv.append("--no-enable-tp-lm-head-all-to-all")
    if v.get("overlap_schedule") is False:
        argv.append("--disable-overlap-schedule")
    if "hicache" in v:
        argv += ["--enable-hierarchical-cache", "--hicache-size", str(int(v["hicache"]["size_gb"])),
                 "--hicache-write-policy", v["hicache"].get("write_policy", "write_back")]
    if "spec" in v:
        spec = v["spec"]
        argv += ["--speculative-algorithm", str(spec["algorithm"]), "--speculative-num-steps", str(int(spec["steps"])),
                 "--speculative-eagle-topk", str(int(spec["topk"])), "--speculative-num-draft-tokens", str(int(spec["draft_tokens"]))]
    if "ib_device" in v and v.get("transfer_backend") != "mooncake_tcp":
        argv += _words("--disaggregation-ib-device", "str", _rails(v["ib_device"]))
    if "kv_events_port" in v:
        argv += ["--kv-events-config", _kv_events(v, old)]
    return argv + v.get("extra_args", [])


def _words(flag: str, kind: str, value: Any) -> List[str]:
    if kind == "flag":
        return [flag] if value else []
    if kind == "ints":
        return [flag] + [str(one) for one in value]
    text = json.dumps(value, sort_keys=True, separators=(",", ":")) if kind == "json" else str(value)
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _rails(device: Any) -> str:
    if isinstance(device, dict):
        return json.dumps({str(gpu): _commas(rails) if isinstance(rails, (list, tuple)) else str(rails) for gpu, rails in device.items()}, sort_keys=True)
    return _commas(device) if isinstance(device, (list, tuple)) else str(device)


def _kv_events(v: Dict[str, Any], old: bool) -> str:
    # 0.5.22 connects to a concrete address unless it is told to bind; 0.5.18 binds wildcards only.
    host = "*" if old else v.get("kv_events_host", v["host"])
    config: Dict[str, Any] = {"publisher": "zmq", "endpoint": f"tcp://{host}:{v['kv_events_port']}", "topic": v.get("kv_topic", "kv-events")}
    if "kv_replay_port" in v:
        config["replay_endpoint"] = f"tcp://{host}:{v['kv_replay_port']}"
    if not old:
        config["bind"] = True
    return json.dumps(config, sort_keys=True, separators=(",", ":"))


def _env(role: str, v: Dict[str, Any]) -> Dict[str, str]:
    cpu = v.get("flavour") == "cpu"
    env: Dict[str, Any] = dict(CPU_ENV if cpu else ROCM_ENV)
    if cpu and role == "prefill":
        # Sending a cached prefix early records a CUDA event.
        env["SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX"] = "0"
    if not cpu:
        env["SGLANG_OPT_USE_TOPK_V2"] = "true" if v.get("topk_v2", True) else "false"
        if v.get("transfer_backend") == "mooncake":
            env.update(PUBLISHED_MOONCAKE)
            if v.get("mooncake_env", {}).get("MC_ENABLE_HCA_PEER_AFFINITY") is not None:
                # Mooncake switches both affinities off when both are present.
                env.pop("MC_ENABLE_DEST_DEVICE_AFFINITY")
    for name, keys in (("pp_layers", ("SGLANG_PP_LAYER_PARTITION",)), ("visible_devices", ("HIP_VISIBLE_DEVICES",)),
                       ("simulate_acc_len", ("SGLANG_SIMULATE_ACC_LEN",)), ("cpu_threads", ("SGLANG_CPU_OMP_THREADS_BIND",)),
                       ("host_ip", ("SGLANG_HOST_IP", "HOST_IP")), ("socket_ifname", ("GLOO_SOCKET_IFNAME", "SGLANG_LOCAL_IP_NIC"))):
        if name in v:
            env.update(dict.fromkeys(keys, _commas(v[name]) if isinstance(v[name], list) else str(v[name])))
    if role != "mixed":
        for name in ("bootstrap", "waiting"):
            if f"{name}_timeout" in v:
                env[f"SGLANG_DISAGGREGATION_{name.upper()}_TIMEOUT"] = v[f"{name}_timeout"]
    env.update(v.get("mooncake_env", {}))
    env.update(v.get("env", {}))
    return {name: str(value) for name, value in sorted(env.items()) if value is not None}


def _commas(items: Any) -> str:
    return ",".join(str(one) for one in items)


def _on(value: Any) -> bool:
    return str(value).lower() in ("1", "true", "yes", "y", "t", "on")
