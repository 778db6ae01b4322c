# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks that need neither GPU nor rails: each passes on a good host and fails with the variable and the fix on a bad one."""
from __future__ import annotations

import http.server
import json
import os
import socket
import threading

import pytest
from ansible_collections.infera.serving.plugins.module_utils import host_ports
from ansible_collections.infera.serving.plugins.module_utils import preflight_host as host

SYSTEMS = ["Debian 12", "Ubuntu 22.04", "Ubuntu 24.04"]


@pytest.mark.parametrize("text, known", [
    ('NAME="Debian GNU/Linux"\nVERSION_ID="12"\n', True),
    ('NAME="Ubuntu"\nVERSION_ID="24.04"\n', True),
    ("NAME=Ubuntu\nVERSION_ID=22.04.1\n", True),
    ('NAME="Debian GNU/Linux"\nVERSION_ID="11"\n', False),
    ('NAME="Ubuntu"\nVERSION_ID="22.10"\n', False),
    ('NAME="Fedora Linux"\nVERSION_ID=40\n', False),
    ("", False),
])
def test_os(tmp_path, lines, text, known):
    path = tmp_path / "os-release"
    path.write_text(text)
    found = lines(host.check_os(str(path), SYSTEMS))
    assert list(found) == ["pass" if known else "FAIL"]
    if not known:
        assert found["FAIL"][0].startswith("os: preflight_supported_systems: ") and "use one of Debian 12, Ubuntu 22.04" in found["FAIL"][0]


def test_a_missing_os_release_fails(tmp_path, lines):
    assert lines(host.check_os(str(tmp_path / "none"), SYSTEMS)) == {
        "FAIL": ["os: preflight_supported_systems: unknown is not among them; use one of %s, or extend preflight_supported_systems" % ", ".join(SYSTEMS)]}


def test_python(lines):
    assert "ansible_python_interpreter: Python 3.8 is too old" in lines(host.check_python((3, 8, 10), True))["FAIL"][0]
    assert lines(host.check_python((3, 11, 2), True)) == {"pass": ["python: 3.11"]}
    assert "without requests yet" in lines(host.check_python((3, 9), False))["pass"][0]


def test_memory(proc, lines):
    root = proc(meminfo="MemTotal:       24000000 kB\nMemFree: 1 kB\nMemAvailable:   4000000 kB\n")
    assert lines(host.check_memory(root, 4)) == {"pass": ["memory: 4.1 GB free, 4.0 needed"]}
    assert lines(host.check_memory(root, 6)) == {"FAIL": [
        "memory: preflight_min_memory_gb: too little memory: 4.1 GB free, 6.0 needed; free memory, use a larger host, or lower preflight_min_memory_gb"]}
    assert lines(host.check_memory(root, 6, running=True)) == {"pass": ["memory: 24.6 GB in all (our engines run), 6.0 needed"]}


@pytest.mark.parametrize("stages, needed", [(4, 1230), (8, 2460)])
def test_hicache_needs_1_23_times_its_size(proc, lines, stages, needed):
    enough = proc(meminfo="MemTotal: 9 kB\nMemAvailable: %d kB\n" % ((needed + 7) * 1e9 / 1024))
    assert "pass" in lines(host.check_memory(enough, 6, stages, 250))
    short = proc(meminfo="MemTotal: 9 kB\nMemAvailable: %d kB\n" % ((needed + 5) * 1e9 / 1024))
    text = lines(host.check_memory(short, 6, stages, 250))["FAIL"][0]
    assert text.startswith("memory: prefill_hicache (size_gb): too little memory: %d.0 GB free, %d.0 needed" % (needed + 5, needed + 6))
    assert "%d HiCache stages x 250 GB x 1.23 = %d GB" % (stages, needed) in text


def test_memory_without_meminfo_is_said(proc, lines):
    assert "n/a" in lines(host.check_memory(proc(), 6)) and "n/a" in lines(host.check_memory(proc(meminfo="rubbish"), 6))


def test_disk(tmp_path, lines):
    data = os.statvfs(tmp_path)
    free, size = data.f_bavail * data.f_frsize / 1e9, data.f_blocks * data.f_frsize / 1e9
    deep = str(tmp_path / "not" / "there" / "yet")
    assert "pass" in lines(host.check_disk([{"path": deep, "gb": free / 2}]))
    text = lines(host.check_disk([{"path": deep, "gb": free + 10}]))["FAIL"][0]
    assert text.startswith("disk: preflight_min_disk_gb: too little disk: ") and deep in text and "lower preflight_min_disk_gb" in text
    assert "FAIL" in lines(host.check_disk([{"path": deep, "gb": size + 10}], running=True)), "not even an empty disk would do"
    assert "pass" in lines(host.check_disk([{"path": deep, "gb": (free + size) / 2}], running=True)), "running engines have their images already"
    assert len(host.check_disk([{"path": str(tmp_path), "gb": 1}, {"path": deep, "gb": 1}])) == 1, "one file system is measured once"


def test_a_container_that_holds_a_port_is_named():
    owner = {"pid": 7, "command": "python3 -m http.server", "container": "0123456789ab" * 5 + "cdef"}
    assert host_ports.describe(owner) == "process 7, python3 -m http.server in container 0123456789ab (docker ps names it)"


def test_ports(lines):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        asked = [{"port": port, "variable": "router_port", "use": "router http"}]
        text = [line for line in lines(host.check_ports("/proc", asked, set()))["FAIL"] if "held by" in line][0]
        assert text.startswith("ports: router_port: %d (router http) is held by process %d, " % (port, os.getpid()))
        assert text.endswith("stop it or choose another port")
    assert not [line for line in lines(host.check_ports("/proc", asked, set())).get("FAIL", []) if "held by" in line]


def test_a_port_in_the_ephemeral_range(proc, lines):
    root = proc(net__tcp="  sl\n", sys__net__ipv4__ip_local_port_range="32768\t60999\n", sys__net__ipv4__ip_local_reserved_ports="40000-40010\n")
    ask = [{"port": 40000, "variable": "router_port", "use": "r"}, {"port": 41000, "variable": "engine_port_base", "use": "e"}]
    found = lines(host.check_ports(root, ask, set()))
    assert found == {"FAIL": ["ports: engine_port_base: 41000 (e) lies in this host's ephemeral range 32768-60999; "
                              "choose a port outside, since any outgoing connection may take it"]}


LIMITS = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024      20000      files\nMax locked memory         8388608   8388608    bytes\n"


def test_limits(proc, lines):
    wanted = {"memlock": "-1:-1", "nofile": "1048576:1048576"}
    low = proc(**{"1__limits": LIMITS, "1__status": "CapBnd:\t000001fffeffffff\n", "sys__fs__nr_open": "1073741816\n"})
    found = lines(host.check_limits(low, wanted))["FAIL"]
    tail = " of this machine, which lacks CAP_SYS_RESOURCE; raise the limit for the Docker service, or lower engine_ulimits"
    assert found == ["limits: memlock unlimited is above the hard limit 8388608" + tail, "limits: nofile 1048576 is above the hard limit 20000" + tail]
    able = proc(**{"1__status": "CapBnd:\t000001ffffffffff\n"})
    assert lines(host.check_limits(able, wanted)) == {"pass": ["limits: memlock -1:-1, nofile 1048576:1048576"]}
    assert "fs.nr_open 65536" in lines(host.check_limits(proc(sys__fs__nr_open="65536\n"), wanted))["FAIL"][0]
    proc(**{"77__comm": "dockerd\n", "77__limits": LIMITS, "77__status": "CapBnd:\t000001fffeffffff\n"})
    assert "of dockerd, which lacks" in lines(host.check_limits(proc(sys__fs__nr_open="1073741816\n"), wanted))["FAIL"][0]


def test_model(tmp_path, lines):
    def check(path=tmp_path):
        checks, found = host.check_model(str(path))
        return lines(checks), found

    assert check("")[0] == {"n/a": ["model: the deployment makes its own model"]}
    assert check(tmp_path / "none")[0]["FAIL"][0].startswith("model: infera_model_path: %s/none does not exist on this host" % tmp_path)
    assert len(check()[0]["FAIL"]) == 2, "neither config.json nor weights"
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    names = ["model-%05d-of-00003.safetensors" % number for number in (1, 2, 3)]
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w%d" % n: name for n, name in enumerate(names + names[:1])}}))
    for name in names:
        (blobs / name).write_bytes(b"12345")
        (folder / name).symlink_to(blobs / name)
    assert check(folder) == ({"pass": ["model: %s: 3 shards, 0.0 GB" % folder]}, {"shards": 3, "bytes": 15})
    (blobs / names[1]).unlink()
    (blobs / names[2]).write_bytes(b"")
    assert "infera_model_path: 2 of 3 shards are missing or empty in %s: %s, %s" % (folder, names[1], names[2]) in check(folder)[0]["FAIL"][0]
    for text in ("{", "[]", '{"weight_map": 3}', '{"weight_map": {"w": 3}}', '{"weight_map": {"w": "../../etc/passwd"}}'):
        (folder / "model.safetensors.index.json").write_text(text)
        assert "FAIL" in check(folder)[0], text


def test_mounts(tmp_path, lines):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    checks = host.check_mounts([
        {"source": str(tmp_path / "none"), "variable": "engine_libionic_file", "file": True},
        {"source": str(tmp_path / "folder"), "variable": "engine_libionic_file", "file": True},
        {"source": str(tmp_path / "file"), "variable": "etcd_tls_ca_file", "file": True}])
    found = lines(checks)["FAIL"]
    assert len(found) == 2
    assert found[0].startswith("mounts: engine_libionic_file: %s/none does not exist on this host; Docker would make an empty folder of it" % tmp_path)
    assert "is a folder, not a file; remove it (Docker made it for a missing source)" in found[1]


@pytest.fixture
def etcd():
    """A server that answers /health; set ``answer`` on it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.server.answer)

        def log_message(self, *_args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    server.answer = b'{"health":"true"}'
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_etcd(etcd, lines):
    url = "http://127.0.0.1:%d" % etcd.server_port
    assert lines(host.check_etcd([url], False, False)) == {"pass": ["etcd: " + url]}
    assert "n/a" in lines(host.check_etcd([url], True, False)) and "n/a" in lines(host.check_etcd([], False, False))
    etcd.answer = b'{"health":"false"}'
    assert "says that it is unhealthy" in lines(host.check_etcd([url], True, True))["FAIL"][0]
    for answer in (b"<html>", b"[]", b"3"):
        etcd.answer = answer
        assert "FAIL" in lines(host.check_etcd([url], True, True))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        gone = "http://127.0.0.1:%d" % closed.getsockname()[1]
        text = lines(host.check_etcd([gone], False, False))["FAIL"][0]
        assert gone + " cannot be reached: " in text and "open the firewall" in text
        etcd.answer = b'{"health":"true"}'
        assert list(lines(host.check_etcd([url, gone], False, False))) == ["warn"], "one member of several is down"
    missing = lines(host.check_etcd(["https://127.0.0.1:1"], False, False, {"ca": "/no/such/ca.pem"}))
    assert missing["FAIL"] == ["etcd: etcd_tls_ca_file, etcd_tls_cert_file, etcd_tls_key_file: /no/such/ca.pem, None, None: "
                               "[Errno 2] No such file or directory; put the three files there in PEM, readable for root"]


def test_numa_balancing(proc, lines):
    assert "warn" in lines(host.check_numa_balancing(proc(sys__kernel__numa_balancing="1\n")))
    assert "pass" in lines(host.check_numa_balancing(proc(sys__kernel__numa_balancing="0\n")))
