# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

GLOG = "I1201 03:25:57.544255 14098 transfer_engine_impl.cpp:274] "
HEALTHY = "\n".join([
    GLOG + "Transfer Engine RPC using P2P handshake, listening on 10.100.0.1:15705",
    GLOG + "Topology discovery complete. Found 8 HCAs.",
    GLOG + "installTransport, type=rdma",
] + [GLOG + "Selected auto GID[1] on ionic_%d with class with network device" % number for number in range(8)] + [
    "W1201 03:25:58.1 1 rdma_transport.cpp:300] Auto-splitting buffer 0x7f00 (34359738368 bytes) into 32 chunks of <= 1073741824 bytes each",
])
# Lines that the real engine printed on a machine without RDMA.
FELL_BACK = "\n".join([
    GLOG + "Auto-discovering topology...", "W1201 03:25:57.544234 14098 topology.cpp:201] No RDMA devices found, check your device installation",
    GLOG + "Topology discovery complete. Found 0 HCAs.", "E1201 03:25:57.544361 14098 transfer_metadata.cpp:1098] Local segment descriptor not found",
    "I1201 03:25:57.544380 14098 tcp_transport.cpp:391] TcpTransport: listen on port 15507"])
REFUSED = "\n".join([
    GLOG + "Topology discovery complete. Found 0 HCAs.", "E1201 03:25:58.692689 14163 rdma_transport.cpp:1139] RdmaTransport: No available RNIC",
    "E1201 03:25:58.692696 14163 transfer_engine_impl.cpp:426] Failed to install transport, type=rdma"])


def test_a_healthy_log(run_module):
    found = run_module("mooncake_log_facts", text=HEALTHY, expect_transport="rdma", expect_rails=8)
    assert not found["failed"] and found["faults"] == [] and found["changed"] is False
    assert (found["transport"], found["tcp_fallback"], found["hcas_found"], found["engines"]) == ("rdma", False, 8, 1)
    assert found["gids"] == {"ionic_%d" % number: 1 for number in range(8)}
    assert (found["chunk_limit"], found["split_count"], found["chunks"], found["truncations"]) == (1073741824, 1, 32, 0)


def test_a_silent_fall_back_fails(run_module):
    found = run_module("mooncake_log_facts", text=FELL_BACK, expect_transport="rdma")
    assert found["failed"] and found["transport"] == "tcp" and found["tcp_fallback"] and found["hcas_found"] == 0
    assert "the engine runs over TCP, not RDMA (it fell back without an error)" in found["msg"]
    assert not run_module("mooncake_log_facts", text=FELL_BACK, expect_transport="tcp")["failed"]


def test_forced_tcp_is_no_fall_back_but_no_rdma_either(run_module):
    text = FELL_BACK + "\n" + GLOG + "MC_FORCE_TCP is set, using TCP transport only"
    found = run_module("mooncake_log_facts", text=text, expect_transport="rdma")
    assert found["failed"] and found["tcp_forced"] and not found["tcp_fallback"] and "MC_FORCE_TCP is set" in found["msg"]


def test_one_engine_of_two_fell_back(run_module):
    assert run_module("mooncake_log_facts", text=HEALTHY + "\n" + FELL_BACK)["transport"] == "tcp"


def test_rdma_that_could_not_start(run_module):
    found = run_module("mooncake_log_facts", text=REFUSED, expect_transport="rdma")
    assert found["transport"] == "failed" and "RDMA could not start (" in found["msg"] and "No available RNIC" in found["msg"]


@pytest.mark.parametrize("line, fault", [
    ("libibverbs: Warning: Driver ionic does not support the kernel ABI of 4 (supports 1 to 1) for device x",
     "the container's library for ionic supports kernel ABI 1 to 1, the host's driver has 4: inject the host's library"),
    ("W1 rdma_context.cpp:9] GID is NULL, please check your GID index by specifying MC_GID_INDEX", "a GID is NULL"),
    ("W1 topology.cpp:1] Skipping unavailable device: ionic_3", "devices were disabled: ionic_3"),
    ("E1 rdma_transport.cpp:4] Failed to export dma_buf for addr=0x7f12", "memory registration failed: E1 rdma_transport.cpp:4] Failed to export dma_buf"),
    ("E1 x] Memory region not registered by any active device(s): 0x7f", "memory registration failed"),
    ("E1 x] Failed to register memory 0x7f12: Invalid argument", "memory registration failed"),
    ("W1 rdma_context.cpp:3] The buffer length exceeds device max_mr_size, shrink it to 2147483648", "1 registrations were cut short"),
    ("E1201 config.cpp:241] Ignore value from environment variable MC_MTU, it should be 512|1024|2048|4096", "Mooncake ignored the value of MC_MTU"),
    ("Memory access fault by GPU node-4 (Agent handle: 0x55d) on address 0x7f1. Reason: Page not present or supervisor privilege.",
     "a GPU memory access fault stopped the engine (Memory access fault by GPU node-4"),
])
def test_what_goes_wrong_is_named(run_module, line, fault):
    found = run_module("mooncake_log_facts", text=HEALTHY + "\n" + line, expect_transport="rdma", expect_rails=8)
    assert found["failed"] and any(text.startswith(fault) for text in found["faults"]), found["faults"]


def test_too_few_rails_and_a_quiet_log(run_module):
    assert "8 of 9 rails were found" in run_module("mooncake_log_facts", text=HEALTHY, expect_transport="rdma", expect_rails=9)["msg"]
    quiet = run_module("mooncake_log_facts", text="nothing", expect_transport="rdma")
    assert quiet["transport"] is None and "the log shows no transport: MC_LOG_LEVEL has to be INFO" in quiet["msg"]


def test_from_a_file(run_module, tmp_path):
    (tmp_path / "engine.log").write_text(HEALTHY)
    assert run_module("mooncake_log_facts", path=str(tmp_path / "engine.log"))["transport"] == "rdma"
    assert "No such file" in run_module("mooncake_log_facts", path=str(tmp_path / "no.log"))["msg"]
