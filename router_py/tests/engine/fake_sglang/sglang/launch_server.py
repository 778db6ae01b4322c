"""A FAKE server. It reads FAKE_STATE (JSON) at every request: ready, held (metric name → value), info, hide_metrics, ignore_term, exit."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

METRICS = ("num_running_reqs", "num_queue_reqs", "num_prefill_bootstrap_queue_reqs", "num_prefill_inflight_queue_reqs",
           "num_decode_prealloc_queue_reqs", "num_decode_transfer_queue_reqs")


def state():
    with open(os.environ["FAKE_STATE"]) as stream:
        return json.load(stream)


def argument(name, default=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def info():
    config = json.loads(argument("--kv-events-config", "null"))
    events = config and {"publisher": "zmq", "endpoint_port_base": int(config["endpoint"].rpartition(":")[2]), "topic": config["topic"],
                         "block_size": 64, "dp_size": 2, "replay_endpoint_port_base": int(config["replay_endpoint"].rpartition(":")[2])}
    return {"page_size": 64, "dp_size": 1, "attn_dp_size": 2, "tp_size": 2, "pp_size": 1, "served_model_name": "fake", "kv_events": events,
            "api_key": None, **state().get("info", {})}


def loads():
    held = state().get("loads")
    return None if held is None else {"loads": held}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        said = state()
        if self.path == "/health":
            return self.answer(200 if said.get("ready", True) else 503, b"")
        if self.path == "/server_info":
            return self.answer(200, json.dumps(info()).encode())
        if self.path == "/metrics":
            names = [name for name in METRICS if name not in said.get("hide_metrics", [])]
            page = "".join(f'sglang:{name}{{engine_type="x",dp_rank="{rank}"}} {value}\n' for name in names for rank, value in
                           enumerate(said.get("held", {}).get(name, [0, 0])))
            return self.answer(200, ("# HELP x\n" + page).encode())
        if self.path.startswith("/v1/loads") and loads() is not None:
            return self.answer(200, json.dumps(loads()).encode())
        return self.answer(404, b"")

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    said = state()
    with open(os.environ["FAKE_STATE"] + ".pids", "w") as stream:
        stream.write(str(os.getpid()))
    if said.get("exit") is not None:
        sys.exit(said["exit"])
    if said.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if said.get("orphan"):
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open(os.environ["FAKE_STATE"] + ".pids", "a") as stream:
            stream.write(f" {helper.pid}")
    server = ThreadingHTTPServer(("127.0.0.1", int(argument("--port"))), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while True:
        time.sleep(0.05)
        if state().get("die") is not None:
            os._exit(state()["die"])


main()
