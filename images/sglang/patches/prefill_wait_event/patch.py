"""PD prefill: the transfer of a non-final chunk waits for the forward that writes it.

A chunk's KV is handed to the transfer worker while the kernels that write it may still run on `forward_stream`. The worker
honours a completion event on the sender, but stock code sets one for cached prefixes only. Under pipeline parallelism this
is a live race: while microbatch i is prepared, the forward of microbatch i-1, whose chunk is being sent, may still be running. Under the overlap
scheduler the copy of the result has been awaited before, so that site is defensive.

The event is recorded when the send is issued, so it may also wait for one later forward that was queued meanwhile: a delay of a
chunk, never wrong data. `self.device_module` is torch.cuda on HIP, and torch.cpu, whose events are empty, in the CPU image.
"""
from patchlib import UPSTREAM, Edit, Need, Patch, Settled

FILE = "srt/disaggregation/prefill.py"
TRANSPORT = "srt/disaggregation/mooncake/conn.py"
RECORDED = "disagg_kv_sender._early_send_wait_event = "

OVERLAP = '''                        f"Req {req.rid} does not have metadata buffer allocated"
                    )
                    self.send_kv_chunk(req, last_chunk=False, end_idx=req.tmp_end_idx)
'''
OVERLAP_NEW = '''                        f"Req {req.rid} does not have metadata buffer allocated"
                    )
                    infera_chunk_written = self.device_module.Event()
                    infera_chunk_written.record(self.forward_stream)
                    req.disagg_kv_sender._early_send_wait_event = infera_chunk_written
                    self.send_kv_chunk(req, last_chunk=False, end_idx=req.tmp_end_idx)
'''

PIPELINE = '''            else:
                self.send_kv_chunk(req)
'''
PIPELINE_NEW = '''            else:
                # Under pipeline parallelism the forward that writes this chunk may
                # still run on forward_stream.
                infera_chunk_written = self.device_module.Event()
                infera_chunk_written.record(self.forward_stream)
                req.disagg_kv_sender._early_send_wait_event = infera_chunk_written
                self.send_kv_chunk(req)
'''


def settle(tree):
    text = tree.get(FILE) or ""
    if "infera_chunk_written" not in text and text.count(RECORDED) >= 3:
        return Settled(UPSTREAM, f"{FILE} records a completion event at {text.count(RECORDED)} sends")
    return None


PATCH = Patch(
    edits=(Edit(FILE, ((OVERLAP, OVERLAP_NEW),)), Edit(FILE, ((PIPELINE, PIPELINE_NEW),))),
    needs=(
        Need(TRANSPORT, "kv_chunk.wait_event.synchronize()", "without it the event is inert: nothing would wait", 1),
        Need(TRANSPORT, 'wait_event = getattr(self, "_early_send_wait_event", None)', "the sender hands the event to the worker", 1,
             elsewhere=(("srt/disaggregation/common/conn.py", "wait_event = self._early_send_wait_event"),)),
        Need(FILE, "ev.record(self.forward_stream)", "the model for both sites: the event is recorded on forward_stream", 1),
        Need("srt/managers/scheduler.py", "self.device_module = torch.get_device_module(self.device)", "the module that makes events"),
    ),
    markers={FILE: "infera_chunk_written"},
    evidence="both sends of a non-final chunk record a completion event on forward_stream",
    settle=settle,
)
