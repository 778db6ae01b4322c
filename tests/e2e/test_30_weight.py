"""DECODE_REQUEST_WEIGHT on the running deployment: only the router changes, and open streams end properly."""
import threading
import time

import pytest
from e2e import support

WEIGHT = ("-e", "DECODE_REQUEST_WEIGHT=250000")


@pytest.fixture()
def weight_zero_again(deployment):
    yield
    support.play("site.yml", "-t", "router")
    deployment.wait_serving()


def test_check_mode_shows_exactly_the_router(deployment):
    before = deployment.identities()
    _code, output = support.play("site.yml", "--check", "--diff", *WEIGHT)
    assert deployment.identities() == before and deployment.record["weight"] == 0
    assert support.changed(output) >= 1 and "250000" in output
    for role in ("etcd", "prefill", "decode"):
        for name in deployment.names(role):
            assert f"recreate {name}" not in output


def test_only_the_router_restarts_and_an_open_stream_ends(deployment, weight_zero_again):
    before = deployment.identities()
    answer = {}

    def stream():
        response = deployment.chat(stream=True, max_tokens=3000, ignore_eos=True, timeout=300)
        answer["status"] = response.status_code
        answer["lines"] = []
        for line in response.iter_lines(decode_unicode=True):
            if line.startswith("data: "):
                answer["lines"].append(line)

    client = threading.Thread(target=stream)
    client.start()
    support.wait("the stream's first tokens", 60, lambda: len(answer.get("lines", ())) > 5)
    started = time.monotonic()
    support.play("site.yml", *WEIGHT)
    print(f"weight change: {time.monotonic() - started:.0f} s; the stream had {len(answer['lines'])} lines by then")
    client.join(timeout=300)
    assert not client.is_alive()
    assert answer["status"] == 200 and answer["lines"][-1] == "data: [DONE]" and "error" not in answer["lines"][-2]
    after = deployment.identities()
    differing = {name for name in before if before[name] != after.get(name)}
    assert differing == set(deployment.names("router"))
    assert deployment.record["weight"] == 250000
    assert set(deployment.metric("infera_router_decode_request_weight").values()) == {250000}


def test_a_literal_that_contradicts_the_command_line_is_refused(deployment, tmp_path):
    """group_vars with a literal weight and -e DECODE_REQUEST_WEIGHT with another value: both are shown, nothing is touched."""
    before = deployment.identities()
    literal = tmp_path / "literal.yml"
    literal.write_text("decode_request_weight: 5000\n")
    code, output = support.play("site.yml", "-e", f"@{literal}", *WEIGHT, check=False)
    assert code != 0 and "5000" in output and "250000" in output and "DECODE_REQUEST_WEIGHT" in output
    assert deployment.identities() == before
