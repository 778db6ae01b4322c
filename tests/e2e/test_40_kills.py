"""Kills: what a client sees until the record is gone, afterwards, and that the engine comes back by itself."""
import os
import signal
import time

import pytest
import requests
from e2e import support

LEASE = 30


def ids(deployment):
    return {w["worker_id"]: w for w in deployment.workers()}


def worker_of(deployment, name):
    container = next(c for c in deployment.record["containers"] if c["name"] == name)
    port = container["ports"]["http"]
    return next(worker for worker in ids(deployment) if worker.endswith(f":{port}"))


def pool_errors(deployment, worker, seconds):
    """Statuses of requests until the worker is gone, each within 5 s, and the seconds until it was gone."""
    started, statuses = time.monotonic(), []
    while worker in ids(deployment):
        asked = time.monotonic()
        answer = deployment.chat(timeout=30, max_tokens=2)
        assert time.monotonic() - asked < 5, "a request hung"
        statuses.append((answer.status_code, answer.text))
        assert time.monotonic() - started < seconds, f"{worker} still known after {seconds} s"
        time.sleep(0.2)
    return statuses, time.monotonic() - started


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_child_dies(deployment, role):
    """The supervisor deletes the record within 2 s; then 503 with Retry-After names the pool; the restart policy brings it back."""
    name = deployment.names(role)[0]
    worker = worker_of(deployment, name)
    os.kill(deployment.child(name), signal.SIGKILL)
    _statuses, took = pool_errors(deployment, worker, 2.5)
    print(f"{role}: record gone after {took:.2f} s")
    answer = deployment.chat(timeout=10, max_tokens=2)
    assert answer.status_code == 503 and answer.headers["Retry-After"] and role in answer.text
    print(f"{role}: serving again after {deployment.wait_serving(300):.0f} s")


def test_the_supervisor_dies(deployment):
    """The whole container killed: 502 that names the leg until the lease ends, 503 afterwards, back by the restart policy."""
    name = deployment.names("decode")[0]
    worker = worker_of(deployment, name)
    # Its own process: a `docker kill` would count as an operator's stop.
    os.kill(deployment.container(name).attrs["State"]["Pid"], signal.SIGKILL)
    statuses, took = pool_errors(deployment, worker, LEASE + 2.5)
    print(f"record gone after {took:.1f} s, {len(statuses)} answers until then")
    assert statuses and all(code in (502, 503) for code, _text in statuses), statuses
    assert any(code == 502 and "decode" in text for code, text in statuses), statuses
    print(f"serving again after {deployment.wait_serving(300):.0f} s")


def test_requests_afterwards_are_clean(deployment):
    for _number in range(5):
        assert deployment.chat(max_tokens=4).status_code == 200
    support.wait("the demand gauge at 0", 5, lambda: not sum(deployment.metric("infera_router_decode_demand_requests").values()))
    assert requests.get(deployment.url + "/health", timeout=5).json()["status"] == "ok"
