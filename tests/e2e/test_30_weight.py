"""DECODE_REQUEST_WEIGHT on the running deployment: only the router changes, open streams end properly, and no connection is refused."""
import shutil
import threading
import time

import pytest
from e2e import support

WEIGHT = ("-e", "DECODE_REQUEST_WEIGHT=250000")


@pytest.fixture()
def edited(tmp_path):
    """A copy of the inventory whose group_vars say 250000 where they said 0."""
    copy = tmp_path / "local"
    shutil.copytree(support.ROOT / "inventories" / "local", copy)
    variables = copy / "group_vars" / "all" / "main.yml"
    text = variables.read_text()
    assert text.count("DECODE_REQUEST_WEIGHT | default(0)") == 1
    variables.write_text(text.replace("DECODE_REQUEST_WEIGHT | default(0)", "DECODE_REQUEST_WEIGHT | default(250000)"))
    return copy


class Stream:
    """A long answer, read in a thread of its own."""

    def __init__(self, deployment, tokens=3000):
        self.lines, self.status, self.error = [], None, None
        self._thread = threading.Thread(target=self._read, args=(deployment, tokens), daemon=True)
        self._thread.start()

    def _read(self, deployment, tokens):
        try:
            response = deployment.chat(stream=True, max_tokens=tokens, ignore_eos=True, timeout=300)
            self.status = response.status_code
            for line in response.iter_lines(decode_unicode=True):
                if line.startswith("data: "):
                    self.lines.append(line)
        except OSError as error:
            self.error = error

    def ended(self):
        """Wait for the end; it has to be a proper one."""
        self._thread.join(timeout=300)
        assert not self._thread.is_alive() and self.error is None, self.error
        assert self.status == 200 and self.lines[-1] == "data: [DONE]" and "error" not in self.lines[-2], self.lines[-3:]


def differing(before, after):
    return {name for name in set(before) | set(after) if before.get(name) != after.get(name)}


def test_check_mode_shows_exactly_the_router(deployment, edited):
    before = deployment.identities()
    _code, output = support.play("site.yml", "--check", "--diff", inventory=edited)
    assert deployment.identities() == before and deployment.record["weight"] == 0
    router = deployment.names("router")[0]
    assert f"{router}: recreated, since these keys differ: command" in output
    assert any(line.startswith("+") and "250000" in line for line in output.splitlines()), output[-4000:]
    for role in ("etcd", "prefill", "decode"):
        for name in deployment.names(role):
            assert f"{name}: recreated" not in output and f"{name}: created" not in output


def test_a_change_in_group_vars_reaches_the_router_alone(deployment, edited):
    before = deployment.identities()
    stream = Stream(deployment)
    support.wait("the stream's first tokens", 60, lambda: len(stream.lines) > 5)
    with support.Knocking(deployment.url + "/health", 200) as knocking:
        started = time.monotonic()
        support.play("site.yml", inventory=edited)
        took = time.monotonic() - started
    print(f"weight change: {took:.0f} s; {knocking.asked} new connections meanwhile ({knocking.asked / took:.0f}/s), {len(knocking.failed)} failed")
    stream.ended()
    assert not knocking.failed and knocking.asked > 20 * took, knocking.failed[:3]
    assert differing(before, deployment.identities()) == set(deployment.names("router"))
    assert deployment.record["weight"] == 250000
    assert set(deployment.metric("infera_router_decode_request_weight").values()) == {250000}


def old_logs():
    """What is kept of the logs of routers that a change replaced."""
    return (support.ROOT / "runs" / "local" / "logs").glob("*/local-router-0-old.log")


def test_the_weight_playbook_puts_it_back(deployment):
    before = deployment.identities()
    kept = set(old_logs())
    stream = Stream(deployment, tokens=1000)
    support.wait("the stream's first tokens", 60, lambda: len(stream.lines) > 5)
    _code, output = support.play("playbooks/weight.yml")
    stream.ended()
    assert "250000 before, 0 now" in output and "does nothing here" not in output
    logs = {path: path.read_text() for path in set(old_logs()) - kept}
    assert logs and all(text.rstrip().endswith("infera_router: stopping") for text in logs.values()), logs
    assert differing(before, deployment.identities()) == set(deployment.names("router"))
    assert deployment.record["weight"] == 0 and set(deployment.metric("infera_router_decode_request_weight").values()) == {0}


def test_a_literal_that_contradicts_the_command_line_is_refused(deployment, edited):
    """group_vars with a literal weight and -e DECODE_REQUEST_WEIGHT with another value: both are shown, nothing is touched."""
    before = deployment.identities()
    variables = edited / "group_vars" / "all" / "main.yml"
    variables.write_text(variables.read_text().replace('"{{ DECODE_REQUEST_WEIGHT | default(250000) }}"', "5000"))
    code, output = support.play("site.yml", *WEIGHT, check=False, inventory=edited)
    told = [line for line in output.splitlines() if "decode_request_weight" in line and "5000" in line and "250000" in line]
    assert code != 0 and told, output[-3000:]
    assert deployment.identities() == before
