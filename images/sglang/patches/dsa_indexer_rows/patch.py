"""DSA indexer on HIP: score the real query rows only, and give every padded row an empty top-k.

Under DP attention, or with padded attention-TP ranks, q has more rows than there are real queries, down to none on an idle rank; with an
idle rank's placeholder it can have fewer. Stock code trims and restores on CUDA alone: on HIP the padded rows reach the AITER kernel, whose
row check ends the engine. Rows to score = min(real, present). Where q has fewer rows than the metadata, the lengths that go with the
logits are cut to match. The restore runs on every platform, as CUDA needs it too.

Models with a k-pool (dsa_indexer_kpool.py) are not covered.
"""
from patchlib import Edit, Need, Patch

FILE = "srt/layers/attention/dsa/dsa_indexer.py"

SCORE = '''        if self.paged_mqa_logits_backend.is_aiter():
            logits = aiter_paged_mqa_logits(
                q_fp8,
                kv_cache_fp8,
                weights,
'''
SCORE_NEW = '''        infera_q_rows = q_fp8.shape[0]
        infera_real_rows = min(q_offset, infera_q_rows)
        if self.paged_mqa_logits_backend.is_aiter():
            logits = aiter_paged_mqa_logits(
                q_fp8[:infera_real_rows],
                kv_cache_fp8,
                weights[:infera_real_rows],
'''

NOTE = "        # NOTE(dark): logits should be cleaned in topk_transform\n"
MASK = "        self._mask_init_and_local_tokens(logits, seqlens_32)\n"
TOPK = "        topk_result = metadata.topk_transform(logits, self.index_topk)\n"
CUT = '''            topk_result = metadata.topk_transform(
                logits,
                self.index_topk,
                ke_offset=metadata.get_seqlens_expanded()[:infera_real_rows],
            )
        else:
'''
IF = "        if q_offset > infera_q_rows:\n"
MASKED = NOTE + MASK + TOPK
MASKED_NEW = (NOTE + IF + "            self._mask_init_and_local_tokens(logits, seqlens_32[:infera_real_rows])\n" + CUT
              + "            self._mask_init_and_local_tokens(logits, seqlens_32)\n"
              + "            topk_result = metadata.topk_transform(logits, self.index_topk)\n")
PLAIN = NOTE + TOPK
PLAIN_NEW = NOTE + IF + CUT + "            topk_result = metadata.topk_transform(logits, self.index_topk)\n"

RESTORE = '''        if not _is_hip and q_offset < q_fp8.shape[0]:
            pad_len = q_fp8.shape[0] - q_offset
'''
RESTORE_NEW = '''        if infera_real_rows < infera_q_rows:
            assert topk_result.shape[0] == infera_real_rows, (
                f"top-k has {topk_result.shape[0]} rows for {infera_real_rows} real queries"
            )
            pad_len = infera_q_rows - infera_real_rows
'''

PATCH = Patch(
    edits=(Edit(FILE, ((SCORE, SCORE_NEW),)), Edit(FILE, ((MASKED, MASKED_NEW), (PLAIN, PLAIN_NEW))), Edit(FILE, ((RESTORE, RESTORE_NEW),))),
    needs=(
        Need(FILE, "        q_offset = sum(metadata.get_dsa_extend_len_cpu())\n", "the count of real rows", 1),
        Need(FILE, "            topk_result = torch.cat([topk_result, padding], dim=0)\n        return topk_result\n", "the restore's end"),
        Need("srt/layers/attention/dsa/dsa_indexer_metadata.py", "        ke_offset: Optional[torch.Tensor] = None,\n", "lengths that go with cut logits", 1),
    ),
    markers={FILE: "infera_real_rows"},
    evidence="_get_topk_paged scores the real rows and restores the padded ones on every platform",
)
