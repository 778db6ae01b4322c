"""A real etcd, the emulated engines and a real `infera-router`, each a process on loopback."""
import asyncio
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time

from fleet.etcd_server import EtcdServer, free_ports
from infera_emulator.balance.replay import wait_ready

ROOT = pathlib.Path(__file__).resolve().parents[3]
FILE = ROOT / "bench" / "balance" / "parameters.json"


def word_tokenizer(folder):
    """A model folder whose tokenizer makes one token of each word and whose template joins the messages."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    made = Tokenizer(models.WordLevel({"w": 0, "?": 1, **{f"w{i}": i + 2 for i in range(2000)}}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{% for m in messages %}{{ m['content'] }} {% endfor %}"}))
    (folder / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}))
    return folder


def base_port(engines):
    """P so that P + 400n, and each + 300 to 340, are free now; below the ephemeral range."""
    for base in range(11000, 19000, 37):
        wanted = [base + 400 * n + extra for n in range(engines) for extra in (0, 300, 310, 340)]
        if all(_free(port) for port in wanted):
            return base
    raise AssertionError("no free ports")


def _free(port):
    import socket

    with socket.socket() as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_for(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


@contextlib.contextmanager
def stack(tmp_path, case, prefills, speed=1.0, scale=1.0, tokenizer=None, engine_tokenizer=False, router_flags=(), interval=1, running=None):
    """Yields (router URL, decode URL). Everything that was started is ended; `running` is a list to put the processes in, the router last."""
    etcd = EtcdServer(tmp_path / "etcd")
    (tmp_path / "etcd").mkdir(parents=True, exist_ok=True)
    etcd.start()
    base, (port,) = base_port(prefills + 1), free_ports(1)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "router_py" / "src")}
    router, decode = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{base + 400 * prefills}"
    serve = [sys.executable, "-m", "infera_emulator.cli", "balance", "serve", "--parameters", str(FILE), "--case", case, "--speed", str(speed),
             "--scale", str(scale), "--port", str(base), "--etcd-endpoint", etcd.url, "--stream-interval", str(interval),
             *(["--tokenizer", str(tokenizer)] if engine_tokenizer else [])]
    route = [sys.executable, "-m", "infera_router.cli", "--host", "127.0.0.1", "--port", str(port), "--etcd-endpoint", etcd.url,
             *(["--router-tokenizer-path", str(tokenizer)] if tokenizer else []), *router_flags]
    running = [] if running is None else running
    try:
        for name, argv in (("emulator", serve), ("router", route)):
            with open(tmp_path / f"{name}.log", "wb") as log:
                running.append(subprocess.Popen(argv, stdout=log, stderr=log, env=env))
        try:
            asyncio.run(wait_ready(router, 30.0))
            if tokenizer:
                wait_for(lambda: "loaded in" in (tmp_path / "router.log").read_text(), 30.0, "the router has loaded its tokenizer")
        except Exception as error:
            raise AssertionError(f"{error}\n{(tmp_path / 'emulator.log').read_text()[-1500:]}\n{(tmp_path / 'router.log').read_text()[-1500:]}") from None
        yield router, decode
    finally:
        for process in reversed(running):
            process.terminate()
        deadline = time.monotonic() + 10
        for process in running:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        etcd.stop()
