"""Prefill sends, KV metrics, MLA configuration, pipeline-parallel loading, HiCache gates, the decode's radix gate, upstream fixes."""
import contextlib
import sys
import time
import types

import torch
from extract import Bag, define, function, outcome, statements


class Event:
    """Stands for a device event: remembers on which stream it was recorded, and when."""

    def __init__(self, log):
        self.log, self.stream = log, None

    def record(self, stream=None):
        self.stream = stream
        self.log.append("record")


def prefill_wait_event(package):
    """What a sender carries when a chunk is sent, at each site, and whether the transport passes it on once."""
    path = package / "srt/disaggregation/prefill.py"
    log, sent = [], []
    scope = {"torch": types.SimpleNamespace(cuda=types.SimpleNamespace(Event=lambda: Event(log))), "is_aborted": lambda req: False,
             "get_disagg": lambda: Bag(disaggregation_decode_allocation_policy="early")}

    def scheduler(**more):
        self = Bag(forward_stream=object(), device_module=types.SimpleNamespace(Event=lambda: Event(log)), **more)

        def send(req, last_chunk=False, end_idx=None):
            log.append("send")
            event = getattr(req.disagg_kv_sender, "_early_send_wait_event", None)
            sent.append({"event": event is not None, "forward-stream": getattr(event, "stream", None) is self.forward_stream, "last": last_chunk})

        self.send_kv_chunk = send
        return self

    def request(**more):
        return Bag(rid="r", disagg_kv_sender=types.SimpleNamespace(), origin_input_ids=[0] * 8, extend_end=4, tmp_end_idx=4, metadata_buffer_index=0,
                   pending_bootstrap=False, return_logprob=False, time_stats=Bag(), **more)

    def observe(call, *args):
        log.clear()
        sent.clear()
        failure = outcome(call, *args)
        return {"sends": list(sent), "order": list(log)} if failure is None else failure

    chunk = function(path, "SchedulerDisaggregationPrefillMixin.process_prefill_chunk", scope)
    plain = scheduler(chunked_req=request(), check_bootstrap=lambda req: True, enable_overlap=False)
    result_of = function(path, "SchedulerDisaggregationPrefillMixin.process_batch_result_disagg_prefill", scope)
    overlap = scheduler(enable_overlap=True, batch_result_processor=Bag(), spec_algorithm=Bag(is_eagle=lambda: False), chunked_req=None,
                        metrics_reporter=Bag())
    overlap.chunked_req = req = request(inflight_middle_chunks=1)
    batch = Bag(reqs=[req], spec_info=None, prefill_stats=None, dp_cooperation_info=None)
    result = Bag(logits_output=None, next_token_ids=torch.tensor([1]), extend_input_len_per_req=None, extend_logprob_start_len_per_req=None, copy_done=None,
                 auxiliary_host_output=None, routed_experts_output=None, indexer_topk_output=None, next_draft_input=None, can_run_cuda_graph=False)
    return {"pipeline": observe(chunk, plain, None, Bag()), "overlap": observe(result_of, overlap, batch, result), "transport": _transport(package)}


def _transport(package):
    """Two sends after one event was set: what add_transfer_request was given each time."""
    passed = []
    manager = Bag(add_transfer_request=lambda *args, **kwargs: passed.append(kwargs.get("wait_event")), prepare_send_state_indices=lambda state: state)
    sender = types.SimpleNamespace(_early_send_wait_event="event", _prepare_send_indices=lambda kv, state: (kv, slice(0, 1), False, False), kv_mgr=manager,
                                   bootstrap_room=1, aux_index=0, trace_ctx=Bag(), conclude_state=None, _transfer_start_time=0,
                                   _record_transfer_indices=lambda *args: None)
    own = package / "srt/disaggregation/mooncake/conn.py"
    if "_early_send_wait_event" in own.read_text(encoding="utf-8"):
        send = function(own, "MooncakeKVSender.send", {})
    else:
        # newer sources share one send between the transports
        kinds = types.SimpleNamespace(Success="success", Failed="failed")
        send = function(package / "srt/disaggregation/common/conn.py", "CommonKVSender.send", {"KVPoll": kinds, "time": time})
    send(sender, [1])
    send(sender, [2])
    return passed


def kv_metrics_noblock(package):
    """A real ZMQ PUSH socket without a reader, with one, and with a small queue; SNDTIMEO bounds a blocking send."""
    import zmq

    scope = {"zmq": zmq, "KvMetrics": types.SimpleNamespace, "get_parallel": lambda: Bag(dp_rank=0),
             "sock_send": lambda socket, obj, flags=0: socket.send_pyobj(vars(obj), flags=flags)}
    emit = function(package / "srt/managers/scheduler_components/kv_events_publisher.py", "SchedulerKvEventsPublisher.emit_kv_metrics", scope)
    stats = Bag(num_running_reqs=Bag(total=1), num_queue_reqs=Bag(total=0), token_usage=0.5, cache_hit_rate=0.0)
    context = zmq.Context()

    def publisher(socket):
        return types.SimpleNamespace(enable_kv_cache_events=True, get_stats=lambda: stats, max_running_requests=4, max_total_num_tokens=64,
                                     send_metrics_from_scheduler=socket)

    def push(**options):
        socket = context.socket(zmq.PUSH)
        socket.setsockopt(zmq.SNDTIMEO, 1000)
        socket.setsockopt(zmq.LINGER, 0)
        for name, value in options.items():
            socket.setsockopt(getattr(zmq, name), value)
        return socket

    with contextlib.ExitStack() as stack:
        stack.callback(context.destroy, 0)
        lonely = push()
        lonely.bind("inproc://lonely")
        began = time.monotonic()
        failure = outcome(emit, publisher(lonely))
        alone = {"failure": failure, "waited": time.monotonic() - began > 0.5}

        reader = context.socket(zmq.PULL)
        reader.setsockopt(zmq.RCVTIMEO, 2000)
        reader.bind("inproc://read")
        writer = push()
        writer.connect("inproc://read")
        outcome(emit, publisher(writer))
        heard = reader.recv_pyobj()["kv_total_blocks"]

        class Broken:
            closed = False

            def send_pyobj(self, obj, flags=0):
                raise zmq.ZMQError(zmq.ENOTSOCK)

        other = outcome(emit, publisher(Broken()))

        small = push(SNDHWM=5)
        small.connect("tcp://127.0.0.1:9")
        busy = publisher(small)
        busy.send_metrics_from_scheduler.setsockopt(zmq.SNDTIMEO, 50)
        failures = [one for one in (outcome(emit, busy) for _ in range(8)) if one]
        return {"no-reader": alone, "reader": heard, "other-error": other.split(":")[0],
                "full-queue": {"failures": len(failures), "dropped": getattr(busy, "infera_kv_metrics_dropped", None)}}


def mla_absorb_config(package):
    """The configuration that AITER's kernel is given, per row count, and the other arguments."""
    path = package / "srt/models/deepseek_common/attention_forward_methods/forward_mla_rocm.py"
    kernel = "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant"
    seen = []

    def capture(**kwargs):
        seen.append(kwargs)
        return torch.zeros(1)

    scope = {"torch": torch, "Optional": None, "_use_aiter_gfx95": True, kernel: capture, "get_device_core_count": lambda: 256,
             "cdiv": lambda a, b: -(-a // b), "is_in_tc_piecewise_cuda_graph": lambda: False, "_is_block_scale_fp8": lambda *args: False}
    define(path, ["_ABSORB_BMM_DECODE_MAX_M", "_absorb_bmm_num_cu", "_absorb_bmm_config", "_absorb_weight_bf16", "_INFERA_ABSORB_BMM"], scope)
    for name in ("rocm_absorb_q_bmm", "rocm_absorb_v_bmm"):
        define(path, [name], scope)
    weights = torch.zeros(64, 4, 128, dtype=torch.float8_e4m3fn)
    attn = Bag(w_kc=weights, w_vc=weights, w_scale=1.0, num_local_heads=64)
    out = {}
    for rows in (1, 16, 64, 256, 257):
        seen.clear()
        outcome(scope["rocm_absorb_q_bmm"], attn, torch.zeros(rows, 64, 4), is_capture_mode=False)
        outcome(scope["rocm_absorb_v_bmm"], attn, torch.zeros(rows, 64, 4))
        out[str(rows)] = {
            "configs": ["given" if one["config"] else None for one in seen],
            "others": [[one["group_size"], one["transpose_bm"], one["transpose_bm_in"], None if one["YQ"] is None else list(one["YQ"].shape)] for one in seen]}
    return out


def pp_embed_dim(package):
    """Size of the gemm output per stage, experts and hidden size, from the real statements of DeepseekV2Model.__init__."""
    path = package / "srt/models/deepseek_v2.py"
    code = statements(path, "DeepseekV2Model.__init__", "self.gemm_output_zero_allocator_size = 0", "self.layers_to_capture")
    size = function(package / "srt/layers/rocm_linear_utils.py", "get_dsv3_gemm_output_zero_allocator_size", {})

    class Moe:
        pass

    def run(stage, experts, hidden, first_layers=4):
        missing = torch.nn.Identity()
        embedding = types.SimpleNamespace(embedding_dim=hidden)
        mine = range(0, 2) if stage == "first" else range(2, 4)
        layers = [types.SimpleNamespace(mlp=Moe()) if i in mine else missing for i in range(first_layers)]
        if stage == "alone":
            mine, layers = range(4), [types.SimpleNamespace(mlp=Moe()) for _ in range(4)]
        model = types.SimpleNamespace(embed_tokens=missing if stage == "middle" else embedding, layers=layers, start_layer=mine.start, end_layer=mine.stop)
        config = types.SimpleNamespace(n_routed_experts=experts, hidden_size=hidden, moe_intermediate_size=2048, n_shared_experts=1)
        backend = Bag(is_deepep_v2=lambda: False)
        scope = {"self": model, "config": config, "_use_aiter_gfx95": True, "DeepseekV2MoE": Moe, "is_deepep_class_backend": lambda: False,
                 "get_moe_a2a_backend": lambda: backend, "get_parallel": lambda: types.SimpleNamespace(tp_size=1), "divide": lambda a, b: a // b,
                 "get_dsv3_gemm_output_zero_allocator_size": size}
        failure = outcome(exec, code, scope)
        return failure or model.gemm_output_zero_allocator_size

    return {f"{stage}-{experts}-{hidden}": run(stage, experts, hidden)
            for stage in ("alone", "first", "middle") for experts, hidden in ((256, 7168), (256, 6144), (160, 7168))}


def hicache_write_back(package):
    """The pools' gates on HIP and CUDA, and where indices go under the group's routing on HIP."""
    platform = Bag(capabilities=Bag(hicache_device_kernels=True))
    holder = next(file for file in ("srt/mem_cache/pool_host/dsa.py", "srt/mem_cache/memory_pool_host.py")
                  if (package / file).exists() and "class DSAIndexerPoolHost" in (package / file).read_text(encoding="utf-8"))

    def gate(file, owner, cuda, hip):
        scope = {"torch": torch, "current_platform": platform, "_is_cuda": cuda, "_is_hip": hip, "can_use_write_back_jit_kernel": lambda **kwargs: True,
                 "_WRITE_BACK_STAGING_PAGE_CHUNK": 2}
        pool = Bag(layout="page_first", device_rows_packed=True, _layer_shard_enabled=False, kv_cache_dim=4, dtype=torch.float16, page_num=4, page_size=1,
                   layer_num=1, _transfer_device="cpu", indexer_page_stride_size=4, indexer_dtype=torch.uint8, indexer_page_num=4,
                   device_pool=Bag(device="cpu"))
        function(package / file, f"{owner}._init_write_back_staging_buffers", scope)(pool)
        return pool.can_use_write_back_jit

    gates = {}
    for platform_name, cuda, hip in (("hip", False, True), ("cuda", True, False)):
        gates[platform_name] = {"mla": gate("srt/mem_cache/pool_host/mla.py", "MLATokenToKVPoolHost", cuda, hip),
                                "indexer": gate(holder, "DSAIndexerPoolHost", cuda, hip)}
    return {"gates": gates, "routing": outcome(_routing, package, gates["hip"])}


def _routing(package, gates):
    group = Bag(layout="page_first")
    path = package / "srt/mem_cache/pool_host/group.py"
    group.entries = [Bag(host_pool=Bag(can_use_write_back_jit=gates[name])) for name in ("mla", "indexer")]
    function(path, "HostPoolGroup._refresh_transfer_capabilities", {})(group)
    group.anchor_entry, group.entry_map = group.entries[0], {"indexer": group.entries[1]}
    path = package / "srt/mem_cache/hybrid_cache/hybrid_cache_controller.py"
    scope = {"uses_shared_host_layout": lambda pool: False, "replace": lambda transfer, **changes: changes, "dataclasses": Bag()}
    controller = Bag(mem_pool_host=group, io_backend="kernel", move_indices=lambda host, device: ("device", device))
    move = function(path, "HybridCacheController._move_pool_indices", scope)
    placed = {}
    for name, entry in (("mla", group.entries[0]), ("indexer", group.entries[1])):
        host = torch.zeros(1)
        moved, _ = move(controller, entry.host_pool, host, None, write_back_jit=True)
        placed[name] = "host" if moved is host else moved
    asked = []
    controller.move_hybrid_indices = lambda op, write_back_jit=False: asked.append(write_back_jit)
    function(path, "HybridCacheController._move_write_operation", scope)(controller, Bag(host_indices=None, device_indices=None, pool_transfers=None))
    return {"placed": placed, "per-pool": asked == [True]}


def decode_radix_spec(package):
    """handle_pd_disaggregation for a decode with the radix cache, per speculative algorithm, and what else it rejects."""
    path = package / "srt/arg_groups/pd_disaggregation_hook.py"
    warnings = []

    def run(**changes):
        cfg = types.SimpleNamespace(**{
            "disaggregation_transfer_backend": "mooncake", "disaggregation_decode_allocation_policy": "early", "disaggregation_mode": "decode", "dcp_size": 1,
            "disaggregation_decode_host_receive_threshold": 1, "disaggregation_decode_enable_radix_cache": True, "enable_hisparse": False,
            "speculative_algorithm": None, "disaggregation_decode_extra_slots": 1, "enable_pd_role_switch": False, "enable_dp_attention": False,
            "optimistic_prefill_attempts": 0, "enable_hierarchical_cache": False, "disaggregation_ib_device": None, "max_running_requests": 8, "dp_size": 1,
            "disaggregation_decode_retraction_backup": None, "disaggregation_decode_enable_offload_kvcache": False, **changes})
        flag = Bag(get=lambda: False)
        scope = {"resolving_view": lambda args: args, "resolved_view": lambda args: args, "declare_resolution": lambda *args, **kwargs: None,
                 "attn_dp_enabled_of": lambda view: False, "num_dp_ranks_of": lambda view: 1,
                 "envs": types.SimpleNamespace(SGLANG_DISAGG_STAGING_BUFFER=flag, SGLANG_RUST_SERVER=flag),
                 "logger": types.SimpleNamespace(warning=lambda text, *args: warnings.append(text), info=lambda *args: None), "os": Bag(environ={})}
        # older sources import it inside the function
        sys.modules["sglang.srt.arg_groups.overrides"] = types.SimpleNamespace(**scope)
        return outcome(function(path, "handle_pd_disaggregation", scope), cfg)

    results = {name: run(speculative_algorithm=algorithm) for name, algorithm in (("none", None), ("eagle", "EAGLE"), ("dspark", "DSPARK"))}
    results["hisparse"], results["fake"] = run(enable_hisparse=True), run(disaggregation_transfer_backend="fake")
    results["warned"] = any(text.startswith("infera:") for text in warnings)
    return results


def upstream(package):
    """Fixes that this image has no patch for, because the source has them."""
    vote = function(package / "srt/managers/scheduler_components/dp_attn.py", "_spec_input_cuda_graph_compatible", {})

    def batch(idle=False, prebuilt=False, spec=None):
        return types.SimpleNamespace(forward_mode=types.SimpleNamespace(is_idle=lambda: idle, is_prebuilt=lambda: prebuilt), spec_info=spec)

    unfit = types.SimpleNamespace(cuda_graph_compatible=False)
    votes = [vote(one) for one in (None, batch(idle=True), batch(prebuilt=True), batch(), batch(spec=unfit))]
    path = package / "srt/mem_cache/pool_host/common.py"

    def table(operator):
        scope = {"torch": torch, "lru_cache": lambda maxsize: lambda call: call, "_is_hip": True, "logger": Bag()}
        scope["_resolve_device_accessible_ptr_fn"] = operator or function(path, "_resolve_device_accessible_ptr_fn", scope)
        scope["torch"] = types.SimpleNamespace(device=lambda name: types.SimpleNamespace(type="cuda", index=0), uint64=torch.uint64, ops=torch.ops,
                                               tensor=lambda data, dtype, device: data, cuda=Bag())
        return outcome(function(path, "make_kernel_ptr_table", scope), [torch.zeros(1)], "cuda", host_memory_registered=True)

    return {"votes": votes, "no-operator": str(table(None)).split(":")[0], "operator": table(lambda: lambda tensor, index: 4711)}
