"""DSA backend and indexer: page-table rows, host copies, padded rows."""
import torch
from extract import Bag, define, function, outcome

BACKEND = "srt/layers/attention/dsa_backend.py"
INDEXER = "srt/layers/attention/dsa/dsa_indexer.py"


def page_table_rows(package):
    """(requests, top-k rows, q rows, real rows) -> request that each page row belongs to, or the failure."""
    path = package / BACKEND
    given = {}

    def lookup(page_table, topk_indices, page_size):
        # the kernel's own check
        assert page_table.shape[0] == topk_indices.shape[0], "rows of the page table and of top-k differ"
        given["same"] = page_table is given["table"]
        return page_table

    scope = {"torch": torch, "transform_index_page_table_decode": lookup, "concat_mla_absorb_q_general": lambda a, b: torch.cat([a, b], -1)}
    define(path, ["_infera_page_rows_per_topk_row"], scope)
    decode = function(path, "DeepseekSparseAttnBackend.forward_decode", scope)
    pad = function(path, "DeepseekSparseAttnBackend._pad_topk_indices", scope)

    def run(requests, topk_rows, q_rows, real):
        table = torch.arange(requests)[:, None].repeat(1, 5)
        given.clear()
        given["table"] = table
        backend = Bag(
            forward_metadata=Bag(page_table_1=table, dsa_seqlens_expanded=torch.ones(real, dtype=torch.int32), dsa_cache_seqlens_int32=None,
                                 cache_seqlens_int32=torch.ones(requests, dtype=torch.int32)),
            _resolve_kpool_tail_backend=lambda topk, impl: impl, dsa_decode_impl="flashmla_sparse", hisparse_coordinator=None, use_fused_topk=False,
            token_to_kv_pool=Bag(get_key_buffer=lambda layer: None),
            _forward_flashmla_sparse=lambda **kwargs: kwargs["page_table_1"])
        backend._pad_topk_indices = lambda topk, rows: pad(backend, topk, rows)
        layer = Bag(is_cross_attention=False, tp_q_head_num=1, v_head_dim=2, head_dim=3, scaling=1.0, layer_id=0)
        q = torch.zeros(q_rows, 1, 3)
        rows = outcome(decode, backend, q, None, None, layer, Bag(), topk_indices=torch.zeros(topk_rows, 4, dtype=torch.int32))
        return rows if isinstance(rows, str) else {"rows": rows[:, 0].tolist(), "same": given["same"]}

    return {
        "equal": run(4, 4, 4, 4), "tokens-per-request": run(2, 8, 8, 8), "padded": run(3, 3, 8, 3), "trimmed": run(4, 2, 2, 4),
        "two-requests-padded-to-eight": run(2, 2, 8, 2), "idle": run(0, 0, 4, 0),
    }


def host_syncs(package):
    """Device-to-host copies of init_forward_metadata up to the draft-extend arm's end, and the page table's width there."""
    path = package / BACKEND
    copies = []

    class Reached(Exception):
        pass

    def stop(*args):
        raise Reached

    scope = {"torch": torch, "compute_cu_seqlens": lambda lens: lens, "_KPoolForwardInputs": Bag, "seqlens_expand_triton": stop}
    init = function(path, "DeepseekSparseAttnBackend.init_forward_metadata", scope)

    def run(mirror):
        copies.clear()
        table = torch.zeros(4, 64, dtype=torch.int32)
        mode = Bag(is_target_verify=lambda: False, is_decode_or_idle=lambda: False, is_draft_extend_v2=lambda: True)
        lens = torch.tensor([7, 11])
        batch = Bag(batch_size=2, seq_lens=lens, forward_mode=mode, seq_lens_cpu=torch.tensor([7, 11]) if mirror else None, seq_lens_sum=18,
                    req_pool_indices=torch.tensor([0, 1]), extend_prefix_lens_cpu=None, extend_prefix_lens=torch.tensor([3, 3]),
                    extend_seq_lens_cpu=[6, 6], extend_seq_lens=torch.tensor([6, 6]), extend_num_tokens=12)
        backend = Bag(req_to_token_pool=Bag(req_to_token=table), req_to_token=table, dsa_index_kpool=1, dsa_decode_impl="tilelang", use_mha=False,
                      _kv_shard_pool=None, speculative_num_draft_tokens=6)
        real = {name: getattr(torch.Tensor, name) for name in ("item", "cpu")}

        def counted(name):
            def call(tensor, *args, **kwargs):
                if tensor.data_ptr() in device:
                    copies.append(name)
                return real[name](tensor, *args, **kwargs)
            return call

        # the host mirror's own .item() costs nothing
        device = {lens.data_ptr(), batch.extend_prefix_lens.data_ptr()}
        maximum = torch.Tensor.max

        def largest(tensor, *args, **kwargs):
            value = maximum(tensor, *args, **kwargs)
            if tensor.data_ptr() in device:
                device.add(value.data_ptr())
                alive.append(value)
            return value

        alive = []
        torch.Tensor.item, torch.Tensor.cpu, torch.Tensor.max = counted("item"), counted("cpu"), largest
        try:
            init(backend, batch)
        except Reached as err:
            width = err.__traceback__.tb_next.tb_frame.f_locals["page_table"].shape[1]
            return {"copies": list(copies), "width": width}
        except AssertionError as err:
            return f"AssertionError: {err}"
        finally:
            torch.Tensor.item, torch.Tensor.cpu, torch.Tensor.max = real["item"], real["cpu"], maximum

    return {"without-mirror": run(False), "with-mirror": run(True)}


def indexer_rows(package):
    """(q rows, real rows) -> rows that were scored and returned, or the failure; on HIP and on another platform."""
    path = package / INDEXER

    def run(q_rows, real, hip=True, wrong=0, init_tokens=0):
        seen = {}
        k = 3

        def score(q, kv, weights, *args, **kwargs):
            seen.update(q=q.shape[0], weights=weights.shape[0])
            return torch.zeros(q.shape[0], 16)

        def topk(logits, count, ke_offset=None):
            lengths = torch.ones(real) if ke_offset is None else ke_offset
            seen["lengths"] = lengths.shape[0]
            assert lengths.shape[0] == logits.shape[0], "lengths.size(0) == B"
            return torch.zeros(logits.shape[0] + wrong, k, dtype=torch.int32)

        page = 1 if hip else 64
        lens = torch.ones(real, dtype=torch.int64)
        metadata = Bag(get_page_table_1=lambda: torch.zeros(real, 16), get_page_table_64=lambda: torch.zeros(real, 16), get_seqlens_int32=lambda: lens,
                       get_seqlens_expanded=lambda: lens, get_dsa_extend_len_cpu=lambda: [1] * real, topk_transform=topk,
                       paged_mqa_schedule_metadata=None, paged_mqa_ctx_lens_2d=None)
        scope = {
            "torch": torch, "TYPE_CHECKING": False, "_is_hip": hip, "_is_cuda": False, "_is_xpu": False, "_use_aiter_preshuffle": False,
            "get_token_to_kv_pool": lambda: Bag(index_page_size=page), "aiter_paged_mqa_logits": score,
            "deepgemm_paged_mqa_logits_split": lambda kernel, q, kv, weights, *args, q_offset: score(q[:q_offset], kv, weights[:q_offset])}
        backend = Bag(is_aiter=lambda: hip, is_cutedsl=lambda: False)
        indexer = Bag(paged_mqa_logits_backend=backend, n_heads=2, sm_count=8, index_topk=k, num_init_tokens=init_tokens, num_local_tokens=0,
                      _get_index_k_read_buffer=lambda pool, layer: torch.zeros(4, page * 132))
        mask = function(path, "Indexer._mask_init_and_local_tokens", scope)
        indexer._mask_init_and_local_tokens = lambda logits, lengths: mask(indexer, logits, lengths)
        mode = Bag(is_target_verify=lambda: False, is_draft_extend_v2=lambda: False)
        call = function(path, "Indexer._get_topk_paged", scope)
        rows = outcome(call, indexer, Bag(forward_mode=mode), 0, torch.zeros(q_rows, 2, 4), torch.zeros(q_rows, 2, 1), metadata)
        return rows if isinstance(rows, str) else {**seen, "rows": rows.shape[0], "empty": int((rows == -1).all(dim=1).sum())}

    return {"equal": run(4, 4), "padded": run(8, 5), "idle": run(8, 0), "clipped": run(1, 2), "another-platform": run(8, 5, hip=False),
            "clipped-with-init-tokens": run(1, 2, init_tokens=1), "wrong-result": run(8, 5, wrong=1)}
