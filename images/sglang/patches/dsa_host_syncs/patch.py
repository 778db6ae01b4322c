"""DSA metadata: no device-to-host copy when the host mirror of the sequence lengths is absent.

With speculation the scheduler leaves `seq_lens_cpu` unset. Stock `init_forward_metadata` then waits for the device three times
on every rank of an eager draft-extend step, and a rank that waits while another launches a collective stalls the group. Neither
value is needed there: the page table's static width bounds every length (graph replay already uses it), and the draft-extend arm
asserts, but never reads, the prefix lengths.

Cost: on the eager path the page table and the indexer's logits take the static width.
Not covered: the HIP-only `Indexer._should_skip_logits_computation` waits once per eager decode in the same way.
"""
from patchlib import Edit, Need, Patch

FILE = "srt/layers/attention/dsa_backend.py"

WIDTH = '''            # needs_cpu_seq_lens=False nulls the host mirror for spec-v2 relay
            # batches; graph replay uses the static page-table width, so only this
            # eager (e.g. over-capture-bs) fallback needs a length here.
            max_seqlen_k = int(forward_batch.seq_lens.max().item()) + draft_token_num
'''
WIDTH_NEW = '''            # The static page-table width bounds every length, as in graph replay;
            # reading the largest one would wait for the device.
            infera_static_width = self.req_to_token.shape[1]
            max_seqlen_k = infera_static_width
'''

ARM = '''            if forward_batch.extend_prefix_lens_cpu is None:
                assert forward_batch.extend_prefix_lens is not None
                forward_batch.extend_prefix_lens_cpu = (
                    forward_batch.extend_prefix_lens.cpu().tolist()
                )
            if forward_batch.seq_lens_cpu is None:
                forward_batch.seq_lens_cpu = forward_batch.seq_lens.cpu()
                forward_batch.seq_lens_sum = int(forward_batch.seq_lens_cpu.sum())
            assert (
                forward_batch.extend_seq_lens_cpu is not None
                and forward_batch.extend_seq_lens is not None
                and forward_batch.extend_prefix_lens_cpu is not None
            ), "All of them must not be None"

            extend_seq_lens_cpu = forward_batch.extend_seq_lens_cpu
            assert forward_batch.extend_seq_lens is not None

            max_seqlen_q = 1
'''
ARM_NEW = '''            # Prefix lengths and the host mirror are not read in this arm.
            assert (
                forward_batch.extend_seq_lens_cpu is not None
                and forward_batch.extend_seq_lens is not None
            ), "infera: draft extend needs extend_seq_lens and its host copy"

            extend_seq_lens_cpu = forward_batch.extend_seq_lens_cpu

            max_seqlen_q = 1
'''

PATCH = Patch(
    edits=(Edit(FILE, ((WIDTH, WIDTH_NEW),)), Edit(FILE, ((ARM, ARM_NEW),))),
    needs=(
        Need(FILE, "self.req_to_token = model_runner.req_to_token_pool.req_to_token", "the static width", 1),
        Need(FILE, "                max_seqlen_k = self.req_to_token.shape[1]", "graph replay uses the static width", 2),
    ),
    markers={FILE: "infera_static_width"},
    evidence="init_forward_metadata copies no length to the host on the eager draft-extend arm",
)
