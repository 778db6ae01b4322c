# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rails of one host and of several: each broken kind fails with a message of its own."""
from __future__ import annotations

import pytest
from ansible_collections.infera.serving.plugins.filter import preflight as filters
from ansible_collections.infera.serving.plugins.module_utils import ionic_lib
from ansible_collections.infera.serving.plugins.module_utils.preflight_across import across
from ansible_collections.infera.serving.plugins.module_utils.preflight_rails import check_rails

ALL = range(8)


@pytest.fixture
def rails(facts, lines):
    def check(name, gpus=ALL, expect=8, **options):
        return lines(check_rails(facts(name, full=True, **options.pop("collect", {})), gpus, expect, **options))

    return check


def test_a_healthy_host(rails):
    found = rails("tree1", environments={"decode-0": {"MC_FORCE_HCA": "1"}})
    assert "FAIL" not in found and [line.split(":")[0] for line in found["pass"]] == ["rails", "gpu rails", "gid", "rail network", "environment"]
    assert found["warn"] == ["memory path: dma-buf without on-demand paging: registered memory is pinned, and KFD counts it a second time; "
                             "works on ionic (/boot/config-6.8.0-test); leave room in engine_mem_fraction_static"]


@pytest.mark.parametrize("name, wanted", [
    ("tree2", ["rails: rail ionic_3 (0000:38:00.0) is DOWN; check cable, transceiver and switch port, and that its network device is up",
               "rails: 7 of 8 rails usable; check the cards and their driver (ionic, ionic_rdma); other vendors go into preflight_vendor_ids",
               "gpu rails: GPU 3 has no rail on its switch; repair the rail on its switch; see PCI paths with rails_info"]),
    ("tree3", ["rails: rail ionic_5 (0000:58:00.0) has no routable RoCEv2 GID (0: RoCE v2 link_local, 1: IB/RoCE v1 ipv4_mapped); "
               "give its network device an address (IPv4, or global IPv6) so that it gets a routable RoCE v2 GID",
               "rails: 7 of 8 rails usable; check the cards and their driver (ionic, ionic_rdma); other vendors go into preflight_vendor_ids",
               "gpu rails: GPU 5 has no rail on its switch; repair the rail on its switch; see PCI paths with rails_info"]),
    ("no_uverbs", ["rails: rail ionic_7 (0000:78:00.0) has no uverbs device; see the driver's messages in the kernel's log",
                   "rails: 7 of 8 rails usable; check the cards and their driver (ionic, ionic_rdma); other vendors go into preflight_vendor_ids",
                   "gpu rails: GPU 7 has no rail on its switch; repair the rail on its switch; see PCI paths with rails_info"]),
    ("no_p2pdma", ["memory path: no peer memory module, and the kernel lacks CONFIG_DMABUF_MOVE_NOTIFY (/boot/config-6.8.0-test): GPU memory cannot be "
                   "registered; load a peer memory module (ib_peer_mem, amdp2p), or use a kernel with both options"]),
    ("slow", ["rail network: rail ionic_4 (enp72s0) has MTU 1500, at least 4200 wanted; set the MTU (9000) on host and switch, or lower preflight_min_mtu",
              "rail network: rails have different rates: 200, 400; make them equal",
              "rail network: rails have different MTUs: 1500, 9000; make them equal"]),
])
def test_each_broken_kind_has_its_message(rails, name, wanted):
    assert rails(name)["FAIL"] == wanted


def test_no_rail_at_all(rails):
    found = rails("tree8")["FAIL"]
    assert found[0].startswith("rails: no RDMA device of vendor 0x1dd8; ") and len([line for line in found if line.startswith("gpu rails")]) == 8


def test_only_the_gpus_in_use_need_a_rail(rails):
    assert not [line for line in rails("tree2", gpus=[0, 1], expect=7)["FAIL"] if line.startswith("gpu rails")]


def test_wrong_numa_nodes_and_gid_indexes_only_warn(rails):
    assert any("NUMA nodes disagree for 8 of them" in line for line in rails("tree4")["warn"]) and "FAIL" not in rails("tree4")
    assert any("gid: no index in common: ionic_0: 1, ionic_1: 1, ionic_2: 3" in line for line in rails("tree7")["warn"]) and "FAIL" not in rails("tree7")


def test_a_rate_that_was_asked_for(rails):
    assert rails("tree1", min_rate_gbps=800)["FAIL"][0].startswith("rail network: rail ionic_0 runs at 400 Gb/s, 800 wanted; check cable")


def test_peer_memory_switches_dma_buf_off(rails):
    assert any(line.startswith("memory path: peer memory module: /sys/module/ib_peer_mem") for line in rails("peermem")["pass"])


def test_traps_in_the_planned_environment(rails):
    found = rails("tree7", environments={"prefill-0": {"MC_FORCE_TCP": "0", "MC_GID_INDEX": "1"}, "decode-0": {"MC_MAX_MR_SIZ": "1"}})
    text = "\n".join(found["FAIL"])
    assert "environment: decode-0: MC_MAX_MR_SIZ" in text and "did you mean MC_MAX_MR_SIZE" in text
    assert "prefill-0: MC_FORCE_TCP" in text and "prefill-0: MC_GID_INDEX" in text and text.count("correct the engines' env variables") == len(found["FAIL"])


def test_libionic(rails, facts, tmp_path):
    library = tmp_path / "libionic.so.1"
    checked = facts("tree1")["rails"]

    def look(**more):
        action, reasons = ionic_lib.decide(checked, ionic_lib.inspect(str(library)), None, **more)
        return rails("tree1", libionic={"action": action, "reasons": reasons, "kernel_abi": [1]})

    assert "libionic: %s does not exist on the host (kernel ABI 1): install libionic" % library in look()["FAIL"][0]
    library.mkdir()
    assert "is a folder, not a file" in look()["FAIL"][0]
    library.rmdir()
    library.write_bytes(b"x")
    assert any("libionic: inject: the host's library is there" in line for line in look()["pass"])
    assert "libionic" in "".join(rails("connectx", collect={"vendor_ids": ["0x15b3"]}, vendors=["0x15b3"])["n/a"])


def test_the_filter_takes_a_host_without_rdma():
    assert {check["status"] for check in filters.preflight_rails(None)} == {"n/a"}


# Across hosts


def fact(facts, tree="tree1", host=1, **more):
    return dict({"rails": facts(tree, host), "images": ["sha256:" + "1" * 64], "model": {"shards": 3, "bytes": 9}, "kernel": "6.8.0", "driver": "6.16",
                 "clock": {"offset_s": 0.1 * host, "uncertainty_s": 0.01}}, **more)


def test_a_healthy_pair(facts, lines):
    found = lines(across({"a": fact(facts), "b": fact(facts, host=2)}))
    assert list(found) == ["pass", "n/a"] and found["n/a"] == ["firewall: not probed"]
    assert found["pass"][0] == "rail parity: 8 rails alike on a, b" and "clocks: 0.10 s between a and b" in found["pass"][3]


def test_nothing_to_compare_is_not_called_alike(facts, lines):
    """Two hosts of one clock and without a usable rail, whose own check says so."""
    none = {"rails": [dict(rail, usable=False) for rail in facts("tree1")["rails"]], "clock": {"offset_s": 0.0, "uncertainty_s": 0.01}}
    found = lines(across({"a": fact(facts, **none), "b": fact(facts, **none)}))
    assert "rail parity: no host has a usable rail" in found["n/a"] and "clocks: 0.00 s between all (measured to 0.02 s)" in found["pass"]


@pytest.mark.parametrize("other, wanted", [
    ({"tree": "tree2"}, "rail parity: usable rails differ: a has ionic_0,"),
    ({"tree": "renamed"}, "rail parity: usable rails differ: a has ionic_0,ionic_1,"),
    ({"tree": "other_subnet"}, "rail parity: rail ionic_2: subnet 10.102.0.0/24 on a, 10.103.0.0/24 on b (that subnet is on ionic_3 there)"),
    ({"tree": "slow"}, "rail parity: rail ionic_4: MTU 9000 on a, 1500 on b"),
    ({"images": ["sha256:" + "2" * 64]}, "images: engine images differ: sha256:1"),
    ({"images": ["sha256:1", "sha256:2"]}, "images: b runs engines of 2 images; roll the engines out"),
    ({"model": {"shards": 3, "bytes": 8}}, "models: the model differs: 3 shards of 8 bytes on b; 3 shards of 9 bytes on a; copy the same model to every host"),
    ({"clock": {"offset_s": -3.0, "uncertainty_s": 0.05}}, "clocks: 3.10 s between b and a (measured to 0.06 s), 1.0 allowed; synchronise the clocks"),
])
def test_each_difference_names_both_sides(facts, lines, other, wanted):
    tree = other.pop("tree", "tree1")
    found = lines(across({"a": fact(facts), "b": fact(facts, tree, 2, **other)}))["FAIL"]
    assert any(line.startswith(wanted) for line in found), found


def test_an_uncertain_clock_fails_nobody(facts, lines):
    assert "FAIL" not in lines(across({"a": fact(facts), "b": fact(facts, host=2, clock={"offset_s": 3.0, "uncertainty_s": 5.0})}))


def test_other_kernels_and_drivers_warn(facts, lines):
    found = lines(across({"a": fact(facts), "b": fact(facts, host=2, kernel="6.9.0", driver="7")}))
    assert [line.split(":")[0] for line in found["warn"]] == ["amdgpu drivers", "kernels"] and "FAIL" not in found


def test_one_host_compares_nothing(facts, lines):
    assert list(lines(across({"a": fact(facts)}))) == ["n/a"]


def test_firewall(facts, lines):
    def reach(listening, *attempts):
        return {"listening": listening, "attempts": [dict(zip(("host", "address", "port", "outcome"), attempt)) for attempt in attempts]}

    def check(one, two):
        return [line for status in lines(across({"a": fact(facts, reach=one), "b": fact(facts, host=2, reach=two)})).items() for line in status[1]
                if line.startswith("firewall")]

    fine = check(reach([31000], ("b", "10.0.0.2", 31000, "open")), reach([31000], ("a", "10.0.0.1", 31000, "open")))
    assert fine == ["firewall: 2 connections both ways"]
    assert check(reach([], ("b", "10.0.0.2", 31000, "refused")), reach([], ("a", "10.0.0.1", 31000, "open"))) == fine, "it answered that nobody listens"
    cut = check(reach([31000], ("b", "10.0.0.2", 31000, "no answer")), reach([31000], ("a", "10.0.0.1", 31000, "refused")))
    fix = "; open the port in the firewalls of both hosts and between them; engines of a pair also use 15000 to 17000 and any port above 32767"
    assert cut == ["firewall: a cannot reach port 31000 of b (10.0.0.2): no answer" + fix,
                   "firewall: b cannot reach port 31000 of a (10.0.0.1): rejected" + fix]
    many = check(reach([], *[("b", "10.0.0.2", 31000 + number, "no answer") for number in range(20)]), reach([]))
    assert len(many) == 9 and many[-1].startswith("firewall: 12 more")


def test_ignored_names_have_to_exist(facts):
    checks = across({"a": fact(facts), "b": fact(facts, "tree2", 2)})
    assert "FAIL" not in {check["status"] for check in filters.preflight_ignore(checks, ["rail parity"])}
    failures = filters.FilterModule().filters()["preflight_failures"](filters.preflight_ignore(checks, ["rial parity"]))
    assert any("no check is called rial parity; use a name of the table: rail parity, images" in line for line in failures), failures
