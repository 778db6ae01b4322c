# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is rendered, and what is refused, read back by Mooncake's own code."""
from __future__ import annotations

import json

import pytest
from ansible_collections.infera.serving.plugins.module_utils import mooncake_log, mooncake_mr
from ansible_collections.infera.serving.plugins.module_utils.mooncake_env import render
from ansible_collections.infera.serving.plugins.module_utils.mooncake_topology import TopologyError, dump, validate

TIB = 1099511627776


def test_the_rendered_environment_takes_effect(facts, global_config):
    worker = render(facts("tree1", full=True), gpus=range(8), extra_env={
        "MC_IB_TC": 106, "MC_IB_SL": 3, "MC_MTU": 4096, "MC_NUM_QP_PER_EP": 4, "MC_MAX_WR": 512, "MC_MAX_INLINE": 128, "MC_RDMA_RAIL_PAUSE_SECONDS": 60,
        "MC_PKEY_INDEX": 1, "MC_MAX_SGE": 8, "MC_MAX_CQE_PER_CTX": 8192, "MC_NUM_CQ_PER_CTX": 2, "MC_ENABLE_PARALLEL_REG_MR": 1})
    config, log = global_config(worker.env)
    assert config["max_mr_size"] == "1073741824"
    expected = {"gid_index": "1", "ib_traffic_class": "106", "ib_service_level": "3", "mtu_length": "IBV_MTU_4096", "num_qp_per_ep": "4", "max_wr": "512",
                "max_inline": "128", "rdma_rail_pause_seconds": "60", "pkey_index": "1", "max_sge": "8", "max_cqe": "8192", "num_cq_per_ctx": "2",
                "parallel_reg_mr": "1"}
    assert {name: config[name] for name in expected} == expected
    assert mooncake_log.parse(log)["ignored_variables"] == []


def test_rails_that_differ_leave_the_gid_index_to_mooncake(facts, global_config):
    config, _log = global_config(render(facts("tree7"), gpus=range(8), mr_size="512MiB").env)
    assert (config["gid_index"], config["max_mr_size"]) == ("-1", "536870912")


@pytest.mark.parametrize("text, size", [("1GiB", 1), ("1e9", 1), ("-1", 2 ** 64 - 1), ("1073741824x", 2 ** 30), ("0x40000000", TIB), ("", TIB), ("abc", TIB)])
def test_what_mr_sizes_really_become(global_config, text, size):
    """The reason for every refusal: the real parser reads what `check_raw` says it reads."""
    assert global_config({"MC_MAX_MR_SIZE": text})[0]["max_mr_size"] == str(size)
    with pytest.raises(mooncake_mr.MrSizeError) as caught:
        mooncake_mr.check_raw(text)
    assert ("reads it as %d" % size if size != TIB else "ignores it and keeps its default") in str(caught.value)


def test_a_wrong_gid_index_becomes_the_link_local_one(global_config):
    assert global_config({"MC_GID_INDEX": "x"})[0]["gid_index"] == "0"


def test_both_affinities_switch_each_other_off(global_config):
    _config, log = global_config({"MC_ENABLE_DEST_DEVICE_AFFINITY": "1", "MC_ENABLE_HCA_PEER_AFFINITY": "1", "MC_NIC_PEER_AFFINITY": "a=b"})
    assert "cannot be enabled at the same time" in log


def test_force_hca_makes_a_start_without_rails_fail(facts, start):
    worker = render(facts("tree1"), gpus=range(8))
    assert worker.env["MC_FORCE_HCA"] == "1"
    code, log = start(worker.env, worker.ib_device)
    found = mooncake_log.parse(log)
    assert code not in (0, None) and found["transport"] == "failed" and "No available RNIC" in log
    assert "RDMA could not start" in mooncake_log.faults(found)[0]


def test_without_it_the_engine_falls_back_without_a_word(facts, start):
    worker = render(facts("tree1"), gpus=range(8), force_hca=False)
    code, log = start(worker.env, worker.ib_device)
    found = mooncake_log.parse(log)
    assert code == 0 and found["transport"] == "tcp" and found["tcp_fallback"] and found["hcas_found"] == 0 and found["engines"] == 1
    assert "fell back without an error" in mooncake_log.faults(found, "rdma", 8)[0]


def test_presence_switches_count_zero_as_on(start):
    assert start({"MC_FORCE_HCA": "0"})[0] not in (0, None)
    code, log = start({"MC_FORCE_TCP": "0"})
    assert code == 0 and mooncake_log.parse(log)["tcp_forced"]


def test_the_tcp_environment_forces_tcp(start):
    code, log = start(render(None, transport="tcp").env)
    found = mooncake_log.parse(log)
    assert code == 0 and found["tcp_forced"] and not found["tcp_fallback"] and mooncake_log.faults(found, "tcp") == []


def test_a_good_topology_is_read_whole(facts, start, tmp_path):
    path = tmp_path / "topology.json"
    worker = render(facts("tree4"), gpus=range(8), topology_path=str(path))
    assert worker.ib_device is None and validate(worker.topology) == []
    path.write_text(dump(worker.topology))
    _code, log = start(worker.env)
    found = mooncake_log.parse(log)
    # The names are those of the fake machine: all are read, none can be opened here.
    assert found["hcas_found"] == 8 and sorted(found["disabled_devices"]) == ["ionic_%d" % number for number in range(8)] and not found["topology_failed"]


@pytest.mark.parametrize("text", ['{"hip:0": [["ionic_0"]]}', '{"hip:0": "ionic_0"}', '{}', '[1]', '{"hip:0": [['])
def test_a_bad_topology_is_tcp_without_an_error_so_it_is_refused(start, tmp_path, text):
    path = tmp_path / "topology.json"
    path.write_text(text)
    code, log = start({"MC_CUSTOM_TOPO_JSON": str(path)})
    found = mooncake_log.parse(log)
    assert code is None or (code == 0 and found["hcas_found"] == 0 and found["transport"] == "tcp")
    with pytest.raises((TopologyError, ValueError)):
        validate(json.loads(text))


def test_a_missing_topology_is_noticed_in_the_log(start, tmp_path):
    _code, log = start({"MC_CUSTOM_TOPO_JSON": str(tmp_path / "none.json")})
    assert mooncake_log.parse(log)["topology_failed"]
