# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""64 MiB from one process to another and back over the real engine's TCP transport."""
from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
from ansible_collections.infera.serving.plugins.module_utils import mooncake_log
from ansible_collections.infera.serving.plugins.module_utils.mooncake_env import render

SIZE = 64 * 2 ** 20

# Offers a buffer, says where, then prints the SHA-256 of what lies in it for every line on stdin.
TARGET = """
import ctypes, hashlib, sys
import mooncake.engine as engine
size = int(sys.argv[1])
transfer = engine.TransferEngine()
assert transfer.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
memory = ctypes.create_string_buffer(size)
assert transfer.register_memory(ctypes.addressof(memory), size) == 0
print(transfer.get_rpc_port(), ctypes.addressof(memory), flush=True)
for line in sys.stdin:
    print(hashlib.sha256(memory).hexdigest(), flush=True)
"""
# Writes random bytes to the target, wipes its own copy and reads them back.
SOURCE = """
import ctypes, hashlib, os, sys
import mooncake.engine as engine
size, session, remote = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
transfer = engine.TransferEngine()
assert transfer.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
memory = ctypes.create_string_buffer(os.urandom(size), size)
assert transfer.register_memory(ctypes.addressof(memory), size) == 0
sent = hashlib.sha256(memory).hexdigest()
assert transfer.transfer_sync_write(session, ctypes.addressof(memory), remote, size) == 0
ctypes.memset(memory, 0, size)
assert transfer.transfer_sync_read(session, ctypes.addressof(memory), remote, size) == 0
print(sent, hashlib.sha256(memory).hexdigest(), flush=True)
"""


@pytest.fixture
def target(site, tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("MC_")}
    env.update(render(None, transport="tcp").env, PYTHONPATH=str(site))
    with open(tmp_path / "target.log", "w") as log:
        process = subprocess.Popen([sys.executable, "-c", TARGET, str(SIZE)], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    process.environment = env
    yield process
    process.stdin.close()
    assert process.wait(timeout=30) == 0


def test_64_mib_arrive_whole(target, tmp_path):
    port, remote = target.stdout.readline().split()
    assert 15000 <= int(port) <= 17000
    done = subprocess.run([sys.executable, "-c", SOURCE, str(SIZE), "127.0.0.1:" + port, remote], env=target.environment,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    sent, read_back = done.stdout.split()
    target.stdin.write("\n")
    target.stdin.flush()
    arrived = target.stdout.readline().strip()
    assert sent == arrived == read_back and sent != hashlib.sha256(b"\0" * SIZE).hexdigest()
    for log in (done.stderr, (tmp_path / "target.log").read_text()):
        assert mooncake_log.faults(mooncake_log.parse(log), "tcp") == []
