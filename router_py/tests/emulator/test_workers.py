"""`--workers 2` over emulated engines: sessions and bookings of both processes, and what a killed one leaves behind."""
import concurrent.futures
import json
import os
import pathlib
import signal
import urllib.error
import urllib.request
import uuid
from http.client import HTTPException

import pytest
from emulator_stack import stack, wait_for, word_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FLAGS = ["--workers", "2", "--session-affinity", "prefill", "--decode-input-demand", "on", "--decode-request-weight", "1000000",
         "--demand-audit-interval", "0.2"]
BROKEN = (OSError, HTTPException)


def get(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()


def chat(router, session, tokens=4, name=None):
    """One streamed chat on a connection of its own; its request id, or None when the connection broke."""
    name = name or uuid.uuid4().hex
    body = json.dumps({"model": "emulated", "messages": [{"role": "user", "content": "w " * 30}], "max_tokens": tokens, "stream": True}).encode()
    headers = {"Content-Type": "application/json", "X-Correlation-ID": session, "X-Request-ID": name}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{router}/v1/chat/completions", body, headers), timeout=60) as answer:
            return name if answer.read().endswith(b"data: [DONE]\n\n") else None
    except urllib.error.HTTPError:
        raise
    except BROKEN:
        return None


def test_a_killed_process_takes_its_own_bookings_along_and_sessions_stay(tmp_path):
    running = []
    with (stack(tmp_path, "2p1d-c176", 2, 10.0, 1.0, word_tokenizer(tmp_path / "model"), router_flags=FLAGS, interval=64, running=running) as (router, decode),
          concurrent.futures.ThreadPoolExecutor(24) as pool):
        def children():
            pid = running[-1].pid
            return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

        def homes(sessions):
            asked = [(s, pool.submit(chat, router, s)) for _ in range(3) for s in sessions]
            ids = {f.result(): s for s, f in asked}
            assert None not in ids
            found = {}
            for name, prefill, *_rest in json.loads(get(f"{decode}/emulator/requests"))["requests"]:
                if name in ids:
                    found.setdefault(ids[name], set()).add(prefill)
            assert len(found) == len(sessions) and all(len(prefills) == 1 for prefills in found.values()), found
            return found

        def held():
            return [t["requests"] for t in json.loads(get(f"{router}/v1/admin/demand"))["targets"]]

        def differences():
            rows = [line for line in get(f"{router}/metrics").splitlines() if line.startswith("infera_router_decode_demand_difference{")]
            return [float(line.rpartition(" ")[2]) for line in rows]

        wait_for(lambda: len(children()) == 2, 20, "two processes")
        sessions = [f"s{i}" for i in range(12)]
        before = homes(sessions)
        assert {p for prefills in before.values() for p in prefills} == {0, 1}
        wait_for(lambda: held() == [0] * 8, 10, "an empty ledger")

        long = [pool.submit(chat, router, f"long{i}", 200_000) for i in range(16)]
        wait_for(lambda: held() == [2] * 8, 20, "two requests on each of eight ranks, whichever process took them")
        victim = children()[0]
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: victim not in children() and len(children()) == 2, 20, "another process in its place")
        wait_for(lambda: sum(f.done() for f in long) > 0, 20, "the ends of its connections")
        wait_for(lambda: sum(held()) == 16 - sum(f.done() for f in long), 20, "a ledger of what still runs")
        lost = sum(f.done() for f in long)
        assert 0 < lost < 16 and all(f.result() is None for f in long if f.done())
        wait_for(lambda: differences() == [0.0] * 8, 20, "the engines and the ledger agree")

        assert homes(sessions) == before, "the sessions are where they were"
        more = [pool.submit(chat, router, f"more{i}", 200_000) for i in range(lost)]
        wait_for(lambda: sorted(held()) == [2] * 8, 20, "new requests fill the ranks that lost theirs")
        assert not any(f.done() for f in more)
        for process in running[-1:]:
            process.terminate()         # the drain's time is not waited for: what runs is ended below with the emulator
        running[0].terminate()
        for f in long + more:
            f.exception(timeout=60)
