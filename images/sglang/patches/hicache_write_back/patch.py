"""HiCache staged write-back on ROCm: the MLA pool and the DSA indexer pool must agree on the staged kernel.

On HIP the MLA host pool uses the staged write-back kernel, which takes host indices on the CPU, and the DSA indexer pool does not: its
kernel takes them on the device. Where one set of indices serves both pools, one of them faults. Newer sources route indices for
each pool by its own answer (`supports_per_pool_backup_indices`); there the disagreement is harmless, and switching the staged
kernel off would cost write-back speed for nothing. So: routed per pool -> not needed, file untouched; not routed -> the MLA pool
leaves the staged kernel to CUDA. Running the staged kernel on a real gfx950 was not tried here.
"""
from patchlib import NOT_NEEDED, Edit, Need, Patch, Refused, Settled

FILE = "srt/mem_cache/pool_host/mla.py"
POOLS = ("srt/mem_cache/pool_host/dsa.py", "srt/mem_cache/memory_pool_host.py")
INDEXER = "class DSAIndexerPoolHost"
INDEXER_GATE = "self.can_use_write_back_jit = _is_cuda and can_use_write_back_jit_kernel("
ROUTED = "supports_per_pool_backup_indices"

GATE = '''        # The staged write-back JIT kernel builds with hipcc and has a ROCm
        # path, so enable it on HIP too (consistent with the CUDA path).
        self.can_use_write_back_jit = (
            _is_cuda or _is_hip
        ) and can_use_write_back_jit_kernel(
'''
GATE_NEW = '''        # The DSA indexer pool shares these indices and has no staged kernel on HIP.
        infera_staged_write_back = _is_cuda
        self.can_use_write_back_jit = (
            infera_staged_write_back
        ) and can_use_write_back_jit_kernel(
'''


def settle(tree):
    text = tree.get(FILE)
    if text is None or "can_use_write_back_jit_kernel" not in text:
        return Settled(NOT_NEEDED, f"{FILE} has no staged write-back kernel")
    holders = [file for file in POOLS if INDEXER in (tree.get(file) or "")]
    if len(holders) != 1:
        raise Refused(holders[-1] if holders else POOLS[0], INDEXER, f"class found in {len(holders)} of {' and '.join(POOLS)}, expected in one")
    block = tree.text(holders[0]).split(INDEXER, 1)[1].split("\nclass ", 1)[0]
    if block.count(INDEXER_GATE) != 1:
        raise Refused(holders[0], INDEXER_GATE, f"gate found {block.count(INDEXER_GATE)} times in {INDEXER}, expected once")
    if text.count(GATE) != 1:
        raise Refused(FILE, GATE, f"anchor found {text.count(GATE)} times, expected once")
    routed = tree.mentions("srt/mem_cache", ROUTED)
    # The group answers and the controller asks.
    if len(routed) >= 2:
        return Settled(NOT_NEEDED, f"indices are routed for each pool by its own answer ({ROUTED} in {' and '.join(routed)}), "
                       f"so the gates of {FILE} and {holders[0]} may differ")
    return None


PATCH = Patch(
    edits=(Edit(FILE, ((GATE, GATE_NEW),)),),
    needs=(Need(FILE, "    def _init_write_back_staging_buffers(self):\n", "where the gate is", 1),),
    markers={FILE: "infera_staged_write_back"},
    evidence="the MLA pool leaves the staged write-back kernel to CUDA, as the DSA indexer pool does",
    settle=settle,
)
