# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import stat

import pytest


def test_rails_info_works_with_sysfs_alone(run_module, tree):
    result = run_module("rails_info", sysfs_root=str(tree("tree1") / "sys"))
    assert not result["failed"] and result["changed"] is False and result["warnings"] == []
    assert [(link["gpu"], link["rail"]) for link in result["pairs"]] == [(gpu, "ionic_%d" % gpu) for gpu in range(8)]
    assert {"rails", "other_rdma", "gpus", "unpaired_gpus", "gid_index_common", "gid_indexes"} <= set(result)
    json.dumps(result)


def test_rails_info_strict_fails_with_every_reason_and_all_facts(run_module, tree):
    result = run_module("rails_info", sysfs_root=str(tree("tree2") / "sys"), strict=True, expect_rails=8)
    assert result["failed"] and result["msg"] == (
        "rail ionic_3 (0000:38:00.0) is DOWN; GPU 3 has no rail on its switch; 7 of 8 expected rails usable")
    assert len(result["rails"]) == 8
    assert not run_module("rails_info", sysfs_root=str(tree("tree1") / "sys"), strict=True, expect_rails=8, require_names=["ionic_7"])["failed"]
    assert len(run_module("rails_info", sysfs_root=str(tree("tree4") / "sys"))["warnings"]) == 8


def test_rails_info_refuses_wrong_arguments(run_module, tree):
    assert "no GPU 8" in run_module("rails_info", sysfs_root=str(tree("tree1") / "sys"), visible_devices=[8])["msg"]
    assert run_module("rails_info", sysfs_root=str(tree("tree1") / "sys"), vendor_ids=["ionic"])["failed"]


def test_rails_info_leaves_the_tree_as_it_was(run_module, tree):
    def look():
        return sorted((root, sorted(names)) for root, _dirs, names in os.walk(tree("tree4")))

    before = look()
    run_module("rails_info", sysfs_root=str(tree("tree4") / "sys"))
    assert look() == before


def test_mooncake_env_check_and_diff(run_module, facts, tmp_path):
    path = tmp_path / "worker.env"
    arguments = {"rails": facts("tree1"), "gpus": [0, 1], "path": str(path), "mr_size": "512MiB", "remote_tmp": str(tmp_path)}
    tried = run_module("mooncake_env", check=True, **arguments)
    assert tried["changed"] and not path.exists() and tried["diff"]["before"] == "" and "MC_MAX_MR_SIZE=536870912\n" in tried["diff"]["after"]
    assert run_module("mooncake_env", **arguments)["changed"]
    assert path.read_text() == tried["diff"]["after"] and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().splitlines() == sorted(path.read_text().splitlines())
    assert not run_module("mooncake_env", **arguments)["changed"]
    again = run_module("mooncake_env", check=True, **dict(arguments, mr_size="1GiB"))
    assert again["changed"] and "536870912" in again["diff"]["before"] and "1073741824" in again["diff"]["after"]


def test_mooncake_env_compares_with_the_running_worker(run_module, facts):
    made = run_module("mooncake_env", rails=facts("tree1"), gpus=[0])
    assert not made["changed"] and "diff" not in made
    assert not run_module("mooncake_env", rails=facts("tree1"), gpus=[0], current_env=dict(made["env"], PATH="/bin"))["changed"]
    stale = run_module("mooncake_env", rails=facts("tree1"), gpus=[0], current_env=dict(made["env"], MC_FORCE_TCP="0"))
    assert stale["changed"] and "MC_FORCE_TCP=0\n" in stale["diff"]["before"]


def test_mooncake_env_fails_with_every_fault(run_module, facts):
    result = run_module("mooncake_env", rails=facts("tree1"), gpus=[0], mr_size="2GiB", extra_env={"MC_FORCE_TCP": "0"})
    assert result["failed"] and len(result["faults"]) == 4 and "; ".join(result["faults"]) == result["msg"]
    assert "ambiguous" in run_module("mooncake_env", rails=facts("tree1"), mr_size="1G")["msg"]
    assert "no result of infera.serving.rails_info" in run_module("mooncake_env", rails={"rails": [{"x": 1}]})["msg"]


def test_mooncake_topology(run_module, facts, tmp_path):
    path = tmp_path / "topology.json"
    arguments = {"path": str(path), "rails": facts("tree4"), "remote_tmp": str(tmp_path)}
    assert run_module("mooncake_topology", check=True, **arguments)["changed"] and not path.exists()
    made = run_module("mooncake_topology", **arguments)
    assert made["changed"] and made["warnings"] == [] and json.loads(path.read_text()) == made["topology"]
    assert made["topology"]["hip:2"] == [["ionic_2"], ["ionic_0", "ionic_1", "ionic_3", "ionic_4", "ionic_5", "ionic_6", "ionic_7"]]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert not run_module("mooncake_topology", **arguments)["changed"]
    path.write_text(json.dumps(made["topology"]))
    assert not run_module("mooncake_topology", **arguments)["changed"], "the same content in another form is no change"
    other = run_module("mooncake_topology", backup=True, path=str(path), topology={"hip:0": [["ionic_1"], []]}, remote_tmp=str(tmp_path))
    assert other["changed"] and "ionic_1" in other["diff"]["after"] and os.path.exists(other["backup_file"])
    assert run_module("mooncake_topology", path=str(path), state="absent")["changed"] and not path.exists()
    assert not run_module("mooncake_topology", path=str(path), state="absent")["changed"]


@pytest.mark.parametrize("topology, message", [
    ({"hip:0": [["ionic_0"]]}, "hip:0: exactly two lists are needed"),
    ({"hip:0": "ionic_0"}, "hip:0: exactly two lists are needed"),
    ({"gpu0": [["ionic_0"], []]}, "location 'gpu0' is none of hip:N, cpu:N"),
    ({"hip:0": [[], []]}, "hip:0 lists no device"),
    ({"hip:0": [["ionic_0 "], []]}, 'hip:0: "ionic_0 " is no device name'),
    ({"hip:0": [["ionic_0"], ["ionic_0"]]}, "hip:0 lists ionic_0 twice"),
    ({"hip:0": [["ionic_9"], []]}, "no usable rail is called ionic_9 (there are: ionic_0)"),
    ({}, "and not empty"),
])
def test_a_malformed_topology_is_never_written(run_module, tmp_path, topology, message):
    result = run_module("mooncake_topology", path=str(tmp_path / "t.json"), topology=topology, known_devices=["ionic_0"], remote_tmp=str(tmp_path))
    assert result["failed"] and message in result["msg"] and not (tmp_path / "t.json").exists()


def test_topology_warnings_and_traps(run_module, tmp_path, facts):
    cuda = run_module("mooncake_topology", path=str(tmp_path / "t.json"), topology={"cuda:0": [["ionic_0"], []]}, remote_tmp=str(tmp_path))
    assert "location cuda:0 is never looked at by this engine: its GPU rows are called hip:N" in cuda["warnings"]
    assert "is a folder, not a file" in run_module("mooncake_topology", path=str(tmp_path), topology={"hip:0": [["a"], []]})["msg"]
    assert "no GPU has a usable rail" in run_module("mooncake_topology", path=str(tmp_path / "t.json"), rails=facts("tree8"))["msg"]
