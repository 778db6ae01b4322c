"""ROCm MLA: the absorb batched matmuls take AITER's own configuration.

For up to 256 rows SGLang passes a hand-built tile dictionary to AITER's fp8 batched matmul. AITER treats it as an override of its
tuned table, so it opts out of what the AITER in the image was tuned for (and of kernels that newer AITER picks only where no
configuration is given). This is a preference for AITER's defaults: that the dictionary is slow or wrong on MI355X was not shown here.
The function stays, for whoever imports it, and answers None for every row count.
"""
import re

from patchlib import NOT_NEEDED, Edit, Need, Patch, Settled

FILE = "srt/models/deepseek_common/attention_forward_methods/forward_mla_rocm.py"
KERNEL = "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant"

HEAD = '''def _absorb_bmm_config(heads: int, m: int, n: int) -> Optional[dict]:
    """Return decode tile settings, or None outside the decode row limit."""
    global _absorb_bmm_num_cu
'''
HEAD_NEW = '''_INFERA_ABSORB_BMM = "infera: AITER chooses the absorb matmul's configuration"


def _absorb_bmm_config(heads: int, m: int, n: int) -> Optional[dict]:
    """Return None: a configuration would override the table that AITER is tuned with."""
    global _absorb_bmm_num_cu
    if _INFERA_ABSORB_BMM:
        return None
'''


def settle(tree):
    text = tree.get(FILE)
    if text is None:
        return Settled(NOT_NEEDED, f"{FILE} does not exist")
    if "def _absorb_bmm_config(" not in text and not re.search(KERNEL + r"\([^#]*?config=", text):
        return Settled(NOT_NEEDED, f"{FILE} passes no configuration to AITER")
    return None


PATCH = Patch(
    edits=(Edit(FILE, ((HEAD, HEAD_NEW),)),),
    needs=(Need(FILE, "config=_absorb_bmm_config(", "both calls of the kernel take the function's answer", 2),
           Need(FILE, "def rocm_absorb_q_bmm(", "the first caller", 1), Need(FILE, "def rocm_absorb_v_bmm(", "the second caller", 1)),
    markers={FILE: "_INFERA_ABSORB_BMM"},
    evidence="_absorb_bmm_config answers None, so both absorb matmuls take AITER's defaults",
    settle=settle,
)
