"""KV metrics: the scheduler never waits for a reader of its metrics.

`emit_kv_metrics` sends on a ZMQ PUSH socket from the scheduler's loop with a blocking send. Nothing in SGLang binds the other
end; with no pipe, or a full finite queue, the send never returns and the rank stands still. A send that would wait is dropped and
counted: the next one carries the newer values.

Not changed: the socket's queue is unbounded, so a connected socket with an absent peer still piles messages up.
"""
from patchlib import NOT_NEEDED, Edit, Need, Patch, Settled

FILE = "srt/managers/scheduler_components/kv_events_publisher.py"

SEND = '''            sock_send(self.send_metrics_from_scheduler, kv_metrics)
'''
SEND_NEW = '''            try:
                sock_send(
                    self.send_metrics_from_scheduler, kv_metrics, flags=zmq.NOBLOCK
                )
            except zmq.Again:
                # No reader, or one that does not keep up: the next send carries newer values.
                self.infera_kv_metrics_dropped = (
                    getattr(self, "infera_kv_metrics_dropped", 0) + 1
                )
'''


def settle(tree):
    if not tree.mentions("srt/managers", "def emit_kv_metrics"):
        return Settled(NOT_NEEDED, "no emit_kv_metrics below srt/managers")
    text = tree.get(FILE) or ""
    return Settled(NOT_NEEDED, f"{FILE} sends with zmq.NOBLOCK") if "NOBLOCK" in text and "infera_" not in text and SEND not in text else None


PATCH = Patch(
    edits=(Edit(FILE, ((SEND, SEND_NEW),)),),
    needs=(
        Need("srt/managers/io_struct.py", "\ndef sock_send(socket: zmq.Socket, obj: Any, flags: int = 0) -> None:\n", "the send takes flags", 1),
        Need(FILE, "\nclass SchedulerKvEventsPublisher", "the sender's class", 1),
        Need(FILE, "\nimport zmq\n", "zmq is imported", 1),
    ),
    markers={FILE: "infera_kv_metrics_dropped"},
    evidence="emit_kv_metrics sends without waiting and counts what it drops",
    settle=settle,
)
