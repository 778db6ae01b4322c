# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each fake machine with its right answer: first the eight of the ground page, then kinds met elsewhere."""
from __future__ import annotations

import pytest
from ansible_collections.infera.serving.plugins.module_utils import rails

NAMES = ["ionic_%d" % number for number in range(8)]


def pairs(found):
    return {link["gpu"]: link["rail"] for link in found["pairs"]}


def by_name(found, name):
    return next(rail for rail in found["rails"] + found["other_rdma"] if rail["name"] == name)


def test_1_healthy(facts):
    found = facts("tree1")
    assert pairs(found) == dict(enumerate(NAMES))
    assert all(isinstance(link["gpu"], int) and link["kind"] == "pcie_switch" and link["numa_match"] is True for link in found["pairs"])
    assert found["gid_index_common"] == 1 and found["gid_indexes"] == dict.fromkeys(NAMES, 1)
    assert found["warnings"] == [] and found["unpaired_gpus"] == [] and found["other_rdma"] == [] and not found["map_required"]
    assert rails.shortcomings(found, 8, NAMES) == []
    first = found["rails"][0]
    assert (first["vendor"], first["driver"], first["rate_gbps"], first["mtu"], first["numa"], first["abi_version"]) == ("0x1dd8", "ionic", 400, 9000, 0, 1)
    assert (first["gid_kind"], first["ipv4"], first["netdev"], first["state"], first["is_vf"]) == ("ipv4_mapped", "10.100.0.1", "enp8s0", "ACTIVE", False)
    assert [gid["kind"] for gid in first["gids"]] == ["link_local", "ipv4_mapped"]
    assert found["gpus"][0]["render_minor"] == 130 and found["gpus"][7]["numa"] == 1


def test_2_a_rail_is_down(facts):
    found = facts("tree2")
    assert found["unpaired_gpus"] == [3] and pairs(found) == {gpu: NAMES[gpu] for gpu in range(8) if gpu != 3}
    assert sum(rail["usable"] for rail in found["rails"]) == 7
    assert "; ".join(rails.shortcomings(found, 8)) == (
        "rail ionic_3 (0000:38:00.0) is DOWN; GPU 3 has no rail on its switch; 7 of 8 expected rails usable")
    assert found["mooncake_preferred"]["3"] == ["ionic_0", "ionic_1", "ionic_2"]


def test_3_no_routable_gid(facts):
    found = facts("tree3")
    rail = by_name(found, "ionic_5")
    assert not rail["usable"] and rail["gid_index"] is None
    assert rail["reasons"] == ["has no routable RoCEv2 GID (0: RoCE v2 link_local, 1: IB/RoCE v1 ipv4_mapped)"]
    assert found["unpaired_gpus"] == [5] and found["gid_index_common"] == 1 and "ionic_5" not in found["gid_indexes"]
    assert rail["mooncake_gid_index"] == 0, "Mooncake itself would take the link-local one"


def test_4_numa_nodes_are_wrong(facts):
    found = facts("tree4")
    assert pairs(found) == dict(enumerate(NAMES))
    assert all(link["numa_match"] is False for link in found["pairs"])
    assert len(found["warnings"]) == 8 and all(text.startswith("numa_mismatch: ") for text in found["warnings"])
    assert found["map_required"] and found["mooncake_preferred"]["0"] == NAMES[4:]


def test_5_a_management_adapter(facts):
    found = facts("tree5")
    assert [rail["name"] for rail in found["rails"]] == NAMES and [nic["name"] for nic in found["other_rdma"]] == ["mlx5_0"]
    assert found["gid_index_common"] == 1 and pairs(found) == dict(enumerate(NAMES))
    assert by_name(found, "mlx5_0")["gid_index"] == 3 and by_name(found, "mlx5_0")["rate_gbps"] == 100


def test_6_four_gpus(facts):
    found = facts("tree6")
    assert pairs(found) == {0: "ionic_4", 1: "ionic_5", 2: "ionic_6", 3: "ionic_7"}
    assert found["spare_rails"] == NAMES[:4] and found["warnings"] == []


def test_7_gid_indexes_differ(facts):
    found = facts("tree7")
    assert found["gid_index_common"] is None
    assert found["gid_indexes"] == dict(dict.fromkeys(NAMES, 1), ionic_2=3, ionic_6=3)
    assert len(found["warnings"]) == 1 and "MC_GID_INDEX must stay unset" in found["warnings"][0]


def test_8_no_rdma_at_all(facts):
    found = facts("tree8")
    assert found["rails"] == [] and found["pairs"] == [] and found["unpaired_gpus"] == list(range(8)) and found["gid_index_common"] is None
    assert rails.shortcomings(found)[0] == "no RDMA device of vendor 0x1dd8"


def test_virtual_functions_are_no_rails_unless_asked_for(facts):
    found = facts("vfs")
    assert [rail["name"] for rail in found["rails"]] == NAMES and found["rails"][0]["vfs"] == 2
    assert [(nic["name"], nic["is_vf"], nic["device"]) for nic in found["other_rdma"]] == [("ionic_8", True, "0x1003"), ("ionic_9", True, "0x1003")]
    assert pairs(found) == dict(enumerate(NAMES))
    assert len(facts("vfs", include_vfs=True)["rails"]) == 10


def test_vlan_and_bond_give_the_gids_device(facts):
    found = facts("vlan")
    assert by_name(found, "ionic_0")["netdev"] == "enp8s0.100" and by_name(found, "ionic_0")["mtu"] == 4200
    assert by_name(facts("bond"), "ionic_0")["netdev"] == "bond0"


def test_a_slow_rail(facts):
    found = facts("slow")
    assert any("rails differ in rate: 200 Gb/s (ionic_4)" in text for text in found["warnings"])
    assert any("rails differ in MTU: 1500 (ionic_4)" in text for text in found["warnings"])
    strict = rails.shortcomings(facts("slow", min_rate_gbps=400), 8)
    assert "rail ionic_4 (0000:48:00.0) runs at 200 Gb/s, below min_rate_gbps 400" in strict and "7 of 8 expected rails usable" in strict


def test_numa_unknown_pairs_by_path(facts):
    found = facts("numa_unknown")
    assert pairs(found) == dict(enumerate(NAMES)) and {link["numa_match"] for link in found["pairs"]} == {None}
    assert found["rails"][0]["numa"] == -1 and found["warnings"] == []


def test_the_second_port_is_not_the_first(facts):
    rail = by_name(facts("second_port"), "ionic_2")
    assert rail["reasons"] == ["is DOWN (port 2 is ACTIVE; Mooncake opens the one port of MC_IB_PORT on every rail)"]


def test_connectx_rails_by_vendor(facts):
    assert facts("connectx")["rails"] == [] and len(facts("connectx")["other_rdma"]) == 8
    found = facts("connectx", vendor_ids=["15b3"])
    assert found["gid_index_common"] == 3 and pairs(found) == {gpu: "mlx5_%d" % gpu for gpu in range(8)}


def test_names_say_nothing(facts):
    found = facts("renamed")
    expected = ["ionic_9", "ionic_10", "ionic_7", "rocep56s0", "ionic_3", "ionic_2", "ionic_1", "ionic_0"]
    assert pairs(found) == dict(enumerate(expected)) and [rail["name"] for rail in found["rails"]] == expected


def test_gids_without_a_netdev(facts):
    found = facts("no_netdev")
    assert by_name(found, "ionic_6")["usable"] and by_name(found, "ionic_6")["netdev"] is None
    assert by_name(found, "ionic_6")["mooncake_gid_index"] == 1 and found["gid_index_common"] == 1 and found["warnings"] == []


def test_no_uverbs_device(facts):
    assert by_name(facts("no_uverbs"), "ionic_7")["reasons"] == ["has no uverbs device"]


def test_no_character_device(facts, trees, tmp_path):
    tree = trees.build("tree1", tmp_path)
    (tmp_path / "dev/infiniband/uverbs4").unlink()
    found = rails.collect(str(tmp_path / "sys"), dev_root=str(tmp_path / "dev"))
    assert [rail["name"] for rail in found["rails"] if not rail["usable"]] == ["ionic_4"]
    assert found["rails"][4]["reasons"] == ["has no character device %s/dev/infiniband/uverbs4" % tree.root]


def test_mixed_kernel_abi(facts):
    assert "rails differ in kernel ABI: 1 (ionic_0, ionic_2, ionic_3, ionic_4, ionic_5, ionic_6, ionic_7); 4 (ionic_1)" in facts("abi_mixed")["warnings"]


def test_global_ipv6(facts):
    found = facts("ipv6")
    assert found["gid_index_common"] == 1 and found["rails"][0]["gid_kind"] == "ipv6_global" and found["rails"][0]["ipv4"] is None


def test_ipv4_before_ipv6_unless_told_otherwise(facts):
    found = facts("both_families")
    assert found["gid_index_common"] == 2 and len([text for text in found["warnings"] if "would be GID 1, not 2" in text]) == 8
    assert facts("both_families", gid_policy="ipv6_global")["gid_index_common"] == 1
    assert facts("both_families", gid_policy="any_v2")["gid_index_common"] == 1


def test_an_index_in_common_is_found_though_the_lowest_differ(facts):
    found = facts("two_indexes")
    assert found["gid_index_common"] == 3 and set(found["gid_indexes"].values()) == {3}


def test_link_local_ipv4_is_not_routable(facts):
    assert by_name(facts("link_local_v4"), "ionic_1")["reasons"] == ["has no routable RoCEv2 GID (0: RoCE v2 link_local, 1: RoCE v2 ipv4_local)"]


def test_cpu_nodes_between_and_node_numbers_past_nine(facts):
    found = facts("cpus_between")
    assert [gpu["kfd_node"] for gpu in found["gpus"]] == [1, 2, 3, 4, 6, 7, 8, 9] and pairs(found) == dict(enumerate(NAMES))


def test_kfd_order_is_hip_order(facts):
    assert pairs(facts("reversed_gpus")) == dict(enumerate(reversed(NAMES)))


def test_the_deepest_switch_wins(facts):
    found = facts("deep")
    assert pairs(found) == {0: "ionic_1", 1: "ionic_0"} and {link["shared_depth"] for link in found["pairs"]} == {5}


def test_two_gpus_on_one_switch(facts):
    found = facts("shared_switch")
    assert pairs(found) == {0: "ionic_0", 2: "ionic_1", 4: "ionic_2", 6: "ionic_3"} and found["unpaired_gpus"] == [1, 3, 5, 7]
    assert [(link["gpu"], link["rail"], link["shared"]) for link in found["fallback"]] == [
        (1, "ionic_0", True), (3, "ionic_1", True), (5, "ionic_2", True), (7, "ionic_3", True)]


def test_a_host_bridge_is_no_pair(facts):
    found = facts("host_bridge")
    assert found["pairs"] == [] and found["unpaired_gpus"] == [0]
    assert [(link["rail"], link["kind"], link["shared_depth"]) for link in found["fallback"]] == [("ionic_1", "host_bridge", 1)]
    assert "GPU 0 has no rail on its switch; nearest free rail is ionic_1 (host_bridge)" in found["warnings"]


def test_partitions_share_their_cards_rail(facts):
    found = facts("partitions")
    assert len(found["gpus"]) == 16 and found["unpaired_gpus"] == []
    assert pairs(found) == {gpu: "ionic_%d" % (gpu // 8) for gpu in range(16)}


def test_pci_domains(facts):
    found = facts("domains")
    assert pairs(found) == {0: "ionic_0", 1: "ionic_1"} and found["gpus"][1]["bdf"] == "0002:03:00.0"


def test_soft_roce_is_another_device(facts):
    found = facts("soft_roce")
    assert [(nic["name"], nic["bdf"], nic["vendor"]) for nic in found["other_rdma"]] == [("rxe0", None, None)] and len(found["pairs"]) == 8


def test_visible_devices_renumber_the_gpus(facts):
    found = facts("tree1", visible_devices=[6, 2])
    assert pairs(found) == {0: "ionic_6", 1: "ionic_2"} and [gpu["physical_index"] for gpu in found["gpus"]] == [6, 2]
    with pytest.raises(ValueError, match="visible_devices: no GPU 9; the host has 8"):
        facts("tree1", visible_devices=[9])


def test_subnets_come_from_the_routes(facts):
    assert facts("tree1", full=True)["rails"][3]["subnet"] == "10.103.0.0/24" and facts("tree1")["rails"][3]["subnet"] is None


@pytest.mark.parametrize("name, path, usable", [("tree1", "dmabuf_pinned", True), ("peermem", "peermem", True), ("no_p2pdma", "none", False)])
def test_memory_path_evidence(facts, name, path, usable):
    found = facts(name, full=True)
    assert found["gpu_mr_path"] == path and found["p2pdma"]["usable"] is usable and found["p2pdma"]["source"] == "/boot/config-6.8.0-test"
    assert found["peermem"]["present"] is (path == "peermem")
    if path == "peermem":
        assert found["peermem"]["evidence"] == ["/sys/module/ib_peer_mem", "/sys/kernel/mm/memory_peers/amdkfd"]


def test_memory_path_from_symbols_in_a_container(trees, tmp_path):
    trees.build("tree1", tmp_path)
    (tmp_path / "proc/kallsyms").write_text("0 T pci_p2pdma_add_resource\n0 T dma_buf_move_notify\n")
    found = rails.collect(str(tmp_path / "sys"), proc_root=str(tmp_path / "proc"))
    assert found["p2pdma"]["usable"] is True and found["p2pdma"]["source"] == "/proc/kallsyms"


def test_sysfs_alone_says_nothing_about_the_kernel(facts):
    found = facts("tree1")
    assert found["gpu_mr_path"] is None and found["p2pdma"]["usable"] is None


def test_required_names(facts):
    assert rails.shortcomings(facts("tree1"), require_names=["ionic_0", "ionic_8"])[0].startswith("required rails are missing: ionic_8 (there are: ionic_0,")
