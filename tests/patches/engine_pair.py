#!/usr/bin/env python3
"""Serve a tiny model by one prefill and one decode inside the cpu image, ask, and print one JSON object of what came back.

usage: engine_pair.py [pipeline]    in a container of the image, best without a network; two real engines, Mooncake over loopback TCP

The prefill takes 64 tokens at a time, so longer prompts are sent in several chunks. With `pipeline` it has two stages and no overlap
scheduler, as the published prefills have, whose sends take another path. `events` names the functions that recorded
a completion event on the prefill: the observation is made by a wrapper around torch.cpu.Event.record, in place of a GPU's stream.
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

PREFILL, DECODE, BOOTSTRAP = 31000, 31001, 31300
PROMPTS = ["hello world", "Rails carry KV from prefill to decode. " * 30, "def f(x):\n    return " * 12]
START_S = 420
ENV = {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "SGLANG_HOST_IP": "127.0.0.1",
       "HOST_IP": "127.0.0.1", "SGLANG_LOCAL_IP_NIC": "lo", "GLOO_SOCKET_IFNAME": "lo", "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "0",
       "PYTHONHASHSEED": "0"}
RECORDER = """
import os, sys
if os.environ.get("PAIR_EVENTS"):
    import torch
    def record(self, stream=None, _real=torch.cpu.Event.record):
        with open(os.environ["PAIR_EVENTS"], "a") as out:
            out.write(sys._getframe(1).f_code.co_name + chr(10))
        return _real(self, stream)
    torch.cpu.Event.record = record
"""


def start(work, role, *options, **env):
    port = PREFILL if role == "prefill" else DECODE
    argv = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(work / "model"), "--served-model-name", "tiny", "--device", "cpu",
            "--attention-backend", "torch_native", "--host", "127.0.0.1", "--port", str(port), "--max-total-tokens", "4096", "--mem-fraction-static", "0.1",
            "--sleep-on-idle", "--disaggregation-mode", role, "--disaggregation-transfer-backend", "mooncake_tcp", "--tool-call-parser", "qwen25", *options]
    log = (work / f"{role}.log").open("wb")
    return subprocess.Popen(argv, env={**os.environ, **ENV, **env}, stdout=log, stderr=subprocess.STDOUT)


def healthy(work, engines):
    began = time.monotonic()
    for role, port in (("prefill", PREFILL), ("decode", DECODE)):
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10):
                    break
            except (urllib.error.URLError, OSError):
                pass
            if engines[role].poll() is not None or time.monotonic() - began > START_S:
                raise SystemExit(f"{role} does not serve:\n{(work / (role + '.log')).read_text(errors='replace')[-3000:]}")
            time.sleep(0.5)


def post(port, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=180) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{path}: {error.code} {error.read().decode()[:500]}") from None


def both(path, body, room):
    """Send one request to both legs; returns the decode's answer."""
    body = {**body, "bootstrap_host": "127.0.0.1", "bootstrap_port": BOOTSTRAP, "bootstrap_room": room}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        prefill, decode = pool.submit(post, PREFILL, path, body), pool.submit(post, DECODE, path, body)
        prefill.result()
        return decode.result()


def responses(room):
    """A required tool over /v1/responses: what a client puts together, and the final item."""
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    text = both("/v1/responses", {"model": "tiny", "input": "Weather in Paris?", "tools": [tool], "tool_choice": "required", "stream": True, "store": False,
                                  "temperature": 0, "max_output_tokens": 64}, room)
    events = [json.loads(line[len("data: "):]) for line in text.splitlines() if line.startswith("data: {")]
    final = next(event["response"]["output"] for event in events if event["type"] in ("response.completed", "response.incomplete"))
    return {"types": [event["type"] for event in events],
            "deltas": "".join(event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"),
            "done": [event["arguments"] for event in events if event["type"] == "response.function_call_arguments.done"],
            "final": [item["arguments"] for item in final if item["type"] == "function_call"]}


def main():
    stages, more = [], {}
    if sys.argv[1:] == ["pipeline"]:
        stages, more = ["--pp-size", "2", "--disable-overlap-schedule"], {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    work = pathlib.Path(tempfile.mkdtemp())
    subprocess.run(["infera-make-model", "--out", str(work / "model"), "--vocab", "2048", "--context", "4096"], check=True, stdout=subprocess.DEVNULL)
    (work / "site").mkdir()
    (work / "site" / "sitecustomize.py").write_text(RECORDER)
    (work / "events").touch()
    engines = {
        "prefill": start(work, "prefill", "--disaggregation-bootstrap-port", str(BOOTSTRAP), "--chunked-prefill-size", "64", *stages,
                         **more, PYTHONPATH=str(work / "site"), PAIR_EVENTS=str(work / "events")),
        "decode": start(work, "decode", "--disaggregation-decode-retraction-backup", "none")}
    try:
        healthy(work, engines)
        before = len((work / "events").read_text().splitlines())
        sampling = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
        answers = [json.loads(both("/generate", {"text": prompt, "sampling_params": sampling}, 1000 + number)) for number, prompt in enumerate(PROMPTS)]
        out = {"prompt_tokens": [one["meta_info"]["prompt_tokens"] for one in answers], "tokens": [one["output_ids"] for one in answers],
               "texts": [one["text"] for one in answers], "events": (work / "events").read_text().splitlines()[before:], "responses": responses(2000)}
        json.dump(out, sys.stdout, indent=1)
        print()
    finally:
        for engine in engines.values():
            engine.kill()


if __name__ == "__main__":
    main()
