"""Kills: what a client sees until the record is gone, afterwards, and that the engine comes back by itself."""
import os
import signal
import subprocess
import time

import requests
from e2e import support

LEASE = 30


def key(deployment, name):
    """The worker id of a container."""
    container = next(c for c in deployment.record["containers"] if c["name"] == name)
    address = next(h["address"] for h in deployment.record["hosts"] if h["name"] == container["host"])
    return f"{address}:{container['ports']['http']}"


def active(deployment, worker):
    """Generation of the worker while it is routable, else None."""
    return next((w["generation"] for w in deployment.workers() if w["worker_id"] == worker and (w["status"] or "active") == "active"), None)


def until_gone(deployment, worker, seconds):
    """Ask again and again until the record is gone: (answers [(status, text)], seconds). No request may hang."""
    started, answers = time.monotonic(), []
    first = active(deployment, worker)
    while first is not None and active(deployment, worker) == first:
        asked = time.monotonic()
        answer = deployment.chat(timeout=30, max_tokens=2)
        took = time.monotonic() - asked
        assert took < 5, f"a request hung for {took:.1f} s: {answer.status_code} {answer.text}"
        answers.append((answer.status_code, answer.text))
        assert time.monotonic() - started < seconds, f"{worker} still known after {seconds} s"
        time.sleep(0.1)
    return answers, time.monotonic() - started


def unavailable(deployment, role):
    """503 with Retry-After that names the missing pool."""
    answer = deployment.chat(timeout=10, max_tokens=2)
    assert answer.status_code == 503 and int(answer.headers["Retry-After"]) > 0 and role in answer.text, (answer.status_code, answer.text)


def test_the_child_dies(deployment):
    """The supervisor deletes the record within 2 s; the restart policy brings the engine back, also one that was taken out and back by hand."""
    name = deployment.names("decode")[0]
    worker = key(deployment, name)
    generation = active(deployment, worker)
    for number, routable in (("USR1", None), ("USR2", generation)):  # as docs/engine.md says
        subprocess.run(["docker", "exec", name, "sh", "-c", f"kill -{number} 1"], check=True)
        support.wait(f"what SIG{number} does", 10, lambda wanted=routable: active(deployment, worker) == wanted, every=0.05)
    os.kill(deployment.child(name), signal.SIGKILL)
    _value, took = support.wait("the record's end", 3, lambda: active(deployment, worker) != generation, every=0.05)
    print(f"decode: record gone after {took:.2f} s")
    assert took <= 2
    unavailable(deployment, "decode")
    print(f"decode: serving again after {deployment.wait_serving(420):.0f} s")
    assert active(deployment, worker) not in (None, generation)


def test_the_container_dies_and_stays_away(deployment):
    """Its restart policy off, to see the lease run out: 502 that names the leg, no hang, then 503; the record is gone after 30 + 2 s at most."""
    name = deployment.names("decode")[0]
    worker = key(deployment, name)
    subprocess.run(["docker", "update", "--restart", "no", name], check=True, stdout=subprocess.DEVNULL)
    try:
        os.kill(deployment.container(name).attrs["State"]["Pid"], signal.SIGKILL)
        answers, took = until_gone(deployment, worker, LEASE + 2.5)
        print(f"decode: record gone after {took:.1f} s; until then {[code for code, _text in answers]}")
        assert answers and {code for code, _text in answers} <= {502, 503}, answers
        assert all("decode" in text for code, text in answers), answers
        assert answers[0][0] == 502, answers[0]
        unavailable(deployment, "decode")
    finally:
        subprocess.run(["docker", "update", "--restart", "unless-stopped", name], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["docker", "start", name], check=True, stdout=subprocess.DEVNULL)


def test_the_supervisor_dies(deployment):
    """Killed as a crash would; Docker brings it back with no manual step, and the fleet is whole again."""
    name = deployment.names("prefill")[0]
    worker = key(deployment, name)
    generation = active(deployment, worker)
    # Its own process: a `docker kill` would count as an operator's stop.
    os.kill(deployment.container(name).attrs["State"]["Pid"], signal.SIGKILL)
    answers, took = until_gone(deployment, worker, LEASE + 2.5)
    print(f"prefill: not routable after {took:.1f} s; until then {[code for code, _text in answers]}")
    assert {code for code, _text in answers} <= {502, 503}, answers
    print(f"serving again after {deployment.wait_serving(420):.0f} s")
    assert active(deployment, worker) not in (None, generation)
    assert deployment.container(name).attrs["RestartCount"] >= 1


def test_requests_afterwards_are_clean(deployment):
    for _number in range(5):
        assert deployment.chat(max_tokens=4).status_code == 200
    support.wait("the demand gauge at 0", 5, lambda: not sum(deployment.metric("infera_router_decode_demand_requests").values()))
    assert requests.get(deployment.url + "/health", timeout=5).json()["status"] == "ok"
