"""DSA decode: one page-table row for every top-k row.

`forward_decode` pads top-k to the rows of q, but looks it up in a page table that has one row per request. Where the two differ
the kernel's row assertion ends the engine. They differ for two reasons, and the shapes alone do not tell which: several query
tokens per request (rows repeat request by request) or padding under DP attention (rows are added at the end). The expanded
sequence lengths are never padded, so their count is the number of real rows and tells the two apart. Repeating by shape would
resolve a second request's token through the first request's table.

The padded top-k rows are all -1 and masked in the kernel: what their page row holds does not matter.
Reached with SGLANG_DSA_FUSE_TOPK=0 or an unfused draft backend: fused top-k, the default on a HIP decode, needs no lookup.
"""
from patchlib import Edit, Need, Patch

FILE = "srt/layers/attention/dsa_backend.py"

HELPER_ANCHOR = "\n\ndef _trim_trtllm_decode_dp_padding(\n"
HELPER = '''

def _infera_page_rows_per_topk_row(page_table, topk_indices, real_rows: int):
    """Return page_table with one row per top-k row; the same object where they already match.

    real_rows is the number of unpadded query rows. Rows beyond it belong to masked top-k rows.
    """
    if page_table is None or topk_indices is None:
        return page_table
    rows, wanted = page_table.shape[0], topk_indices.shape[0]
    if rows == wanted:
        return page_table
    if rows and real_rows > rows and real_rows % rows == 0:
        page_table = page_table.repeat_interleave(real_rows // rows, dim=0)
        rows = real_rows
    if rows >= wanted:
        return page_table[:wanted]
    if rows == 0:
        return page_table.new_zeros((wanted, *page_table.shape[1:]))
    return torch.cat(
        [page_table, page_table[-1:].expand(wanted - rows, *page_table.shape[1:])]
    )
'''

CALL = '''            page_table_1 = self._get_fused_topk_page_table(topk_indices)
        else:
            page_table_1 = transform_index_page_table_decode(
                page_table=metadata.page_table_1,
'''
CALL_NEW = '''            page_table_1 = self._get_fused_topk_page_table(topk_indices)
        else:
            page_table_1 = transform_index_page_table_decode(
                page_table=_infera_page_rows_per_topk_row(
                    metadata.page_table_1,
                    topk_indices,
                    metadata.dsa_seqlens_expanded.shape[0],
                ),
'''

PATCH = Patch(
    edits=(Edit(FILE, ((HELPER_ANCHOR, HELPER + HELPER_ANCHOR),)), Edit(FILE, ((CALL, CALL_NEW),))),
    needs=(
        Need(FILE, "    dsa_seqlens_expanded: torch.Tensor", "the count of real rows", 1),
        Need(FILE, "def _pad_topk_indices(", "pads top-k with -1 rows", 1),
        Need(FILE, "metadata.cache_seqlens_int32.shape[0],\n                )", "_forward_trtllm trims its rows upstream", 1),
    ),
    markers={FILE: "_infera_page_rows_per_topk_row"},
    evidence="forward_decode expands the page table by the real row count",
)
