# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts dial each other, here as loopback addresses; tables; what a plan asks of a host."""
from __future__ import annotations

import concurrent.futures
import socket

import pytest
from ansible_collections.infera.serving.plugins.module_utils import plan, preflight_check, preflight_wants
from ansible_collections.infera.serving.plugins.module_utils.preflight_reach import probe


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield free.getsockname()[1]


def outcomes(found):
    return {(attempt["address"], attempt["port"]): attempt["outcome"] for attempt in found["attempts"]}


def test_both_ways_at_once(port):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        one = pool.submit(probe, "127.0.0.2", [port], [{"host": "b", "address": "127.0.0.3", "ports": [port]}], 2)
        two = pool.submit(probe, "127.0.0.3", [port], [{"host": "a", "address": "127.0.0.2", "ports": [port]}], 2)
        one, two = one.result(), two.result()
    assert one["listening"] == two["listening"] == [port]
    assert outcomes(one) == {("127.0.0.3", port): "open"} and outcomes(two) == {("127.0.0.2", port): "open"}


def test_nobody_listens(port):
    assert outcomes(probe("127.0.0.2", [], [{"host": "b", "address": "127.0.0.3", "ports": [port]}], 0.5)) == {("127.0.0.3", port): "refused"}


def test_somebody_else_listens_already(port):
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", port))
        taken.listen()
        found = probe("127.0.0.2", [port], [], 0.2)
    assert found == {"listening": [port], "attempts": []}


def test_a_port_of_an_outgoing_connection_is_not_listened_on(port):
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.2", 0))
        server.listen()
        client.bind(("127.0.0.2", port))
        client.connect(server.getsockname())
        assert probe("127.0.0.2", [port], [], 0.2)["listening"] == []


def test_an_address_that_is_not_ours_or_not_there(port):
    found = probe("203.0.113.9", [port], [{"host": "b", "address": "no..such.host", "ports": [port]}], 0.5)
    assert found["listening"] == [] and list(outcomes(found).values()) == ["no such host"]


def test_a_silent_peer(port):
    """A full backlog drops further connections, as a firewall that drops would."""
    held = []
    with socket.socket() as full:
        full.bind(("127.0.0.4", port))
        full.listen(0)
        try:
            for _number in range(8):
                one = socket.socket()
                one.setblocking(False)
                one.connect_ex(("127.0.0.4", port))
                held.append(one)
            assert outcomes(probe("127.0.0.2", [], [{"host": "b", "address": "127.0.0.4", "ports": [port]}], 0.7)) == {("127.0.0.4", port): "no answer"}
        finally:
            for one in held:
                one.close()


def test_table_and_failures():
    checks = [preflight_check.passed("os", "Debian 12"), preflight_check.failed("memory", "little", "buy some"), preflight_check.warned("clocks", "late"),
              preflight_check.not_applicable("gid", "no RDMA"), preflight_check.not_applicable("rails", "no RDMA")]
    assert preflight_check.table(checks, "gpu01") == [
        "gpu01", "  pass  os      Debian 12", "  FAIL  memory  little", "                -> buy some", "  warn  clocks  late", "  n/a   gid, rails: no RDMA",
        "  1 passed, 1 failed, 1 warnings, 2 not applicable"]
    assert preflight_check.failures(checks) == ["memory: little; buy some"]
    ignored = preflight_check.ignore(checks, ["memory", "os"])
    assert [check["status"] for check in ignored] == ["pass", "warn", "warn", "n/a", "n/a"] and "ignored by preflight_ignore" in ignored[1]["fix"]


VARIABLES = {"infera_shape": "own", "infera_model_path": "/models/glm", "prefill_workers": 2, "decode_workers": 1, "engine_max_running_requests": 128,
             "engine_libionic_file": "/usr/lib/x86_64-linux-gnu/libionic.so.1", "etcd_tls_ca_file": "/etc/e/ca.pem", "etcd_tls_cert_file": "/etc/e/cert.pem",
             "etcd_tls_key_file": "/etc/e/key.pem",
             "groups": {"etcd": ["a"], "prefill": ["a"], "decode": ["b"], "mixed": [], "router": ["a"]}, "addresses": {"a": "10.9.0.1", "b": "10.9.0.2"}}


def test_what_a_plan_asks_of_its_hosts():
    made = plan.build(VARIABLES).as_dict()
    a, b = preflight_wants.wants(made, "a"), preflight_wants.wants(made, "b")
    assert (a["roles"], a["rdma"], a["gpus"], a["gpus_expected"]) == (["etcd", "prefill", "router"], True, list(range(8)), 8)
    assert (a["hicache_stages"], a["hicache_gb"], b["hicache_stages"]) == (8, 250, 0)
    assert a["model"] == b["model"] == "/models/glm" and a["address"] == "10.9.0.1"
    assert {(entry["port"], entry["variable"]) for entry in a["ports"]} >= {
        (8000, "router_port"), (2379, "etcd_client_port"), (2380, "etcd_peer_port"), (31000, "engine_port_base"), (31400, "engine_port_base")}
    assert a["ulimits"]["memlock"] == "-1:-1" and a["etcd_files"] == {"ca": "/etc/e/ca.pem", "cert": "/etc/e/cert.pem", "key": "/etc/e/key.pem"}
    assert {mount["variable"]: mount["file"] for mount in a["mounts"]} == {
        "engine_libionic_file": True, "etcd_tls_ca_file": True, "etcd_tls_cert_file": True, "etcd_tls_key_file": True}
    assert b["environments"]["own-decode-0"]["MC_FORCE_HCA"] == "1"
    assert preflight_wants.peers(made, "a") == [{"host": "b", "address": "10.9.0.2", "ports": b["reach_ports"]}] and b["reach_ports"]
    assert set(b["reach_ports"]) >= {31000, 15000, 17000, 47999}
    empty = preflight_wants.wants(made, "c")
    assert not empty["roles"] and not empty["ports"] and not empty["rdma"] and not empty["model"] and empty["gpus_expected"] == 0


def test_this_machine_alone_has_no_peers():
    made = plan.build(dict(VARIABLES, groups={"etcd": ["a"], "prefill": ["a"], "decode": ["a"], "mixed": [], "router": ["a"]}, prefill_workers=1, decode_gpus=4,
                           addresses={"a": "127.0.0.1"})).as_dict()
    assert preflight_wants.peers(made, "a") == []
