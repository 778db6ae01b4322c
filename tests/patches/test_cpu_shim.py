"""The CPU shim's own promise: an idle engine sleeps."""
import json

from patches import engine_python

SCRIPT = """
import json, sys, threading, time, types
import zmq
from sglang.srt.managers import data_parallel_controller as controller
if sys.argv[1] == "shim":
    from infera_cpu_shim import plugin
    plugin.activate()
context = zmq.Context()
here, there = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
here.bind("inproc://requests")
there.connect("inproc://requests")
got = []
loop = types.SimpleNamespace(recv_from_tokenizer=here, soft_watchdog=types.SimpleNamespace(feed=lambda: None), _request_dispatcher=got.append)
threading.Thread(target=controller.DataParallelController.event_loop, args=(loop,), daemon=True).start()
time.sleep(0.2)
before = time.process_time()
time.sleep(1.5)
busy = (time.process_time() - before) / 1.5
from sglang.srt.managers.io_struct import sock_send
sock_send(there, {"request": 1})
deadline = time.monotonic() + 10
while not got and time.monotonic() < deadline:
    time.sleep(0.01)
print(json.dumps({"busy": busy, "got": len(got)}))
import os
sys.stdout.flush()
os._exit(0)
"""


def test_an_idle_data_parallel_controller_sleeps(python, tmp_path):
    """Share of a core that the idle loop takes, without the shim's change and with it; a message still arrives."""
    script = tmp_path / "idle.py"
    script.write_text(SCRIPT, encoding="utf-8")
    stock, shim = (json.loads(engine_python.run(python, script, mode).stdout.splitlines()[-1]) for mode in ("stock", "shim"))
    assert stock["got"] == shim["got"] == 1
    assert shim["busy"] < 0.05 and shim["busy"] < stock["busy"] / 4, (stock, shim)
