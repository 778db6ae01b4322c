# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a host's rails to the containers of the plan."""
from __future__ import annotations

import json

import pytest
from ansible_collections.infera.serving.plugins.module_utils import mooncake_workers, plan

ALL = ",".join("ionic_%d" % number for number in range(8))


@pytest.fixture
def planned(facts):
    """Plan two prefills on host a and a decode on host b; returns the containers by name."""

    def make(tree="tree1", options=None, rails=True, **variables):
        found = {host: dict(facts(tree, number, full=True), mooncake=options or {}) for host, number in (("a", 1), ("b", 2))}
        made = plan.build(dict({
            "infera_shape": "own", "infera_model_path": "/models/glm", "prefill_workers": 2, "decode_workers": 1, "engine_max_running_requests": 128,
            "groups": {"etcd": ["a"], "prefill": ["a"], "decode": ["b"], "mixed": [], "router": ["a"]}, "addresses": {"a": "10.9.0.1", "b": "10.9.0.2"},
            "rails": found if rails else {}}, **variables)).as_dict()
        return {container["name"].replace("own-", ""): container for container in made["containers"]}

    return make


def refused(planned, *arguments, **options):
    with pytest.raises(plan.PlanError) as caught:
        planned(*arguments, **options)
    return caught.value.faults


def device(container):
    return mooncake_workers.flag(container["command"], "--disaggregation-ib-device")


def test_what_the_engines_get(planned):
    found = planned()
    for name, host in (("prefill-0", 1), ("prefill-1", 1), ("decode-0", 2)):
        env = found[name]["env"]
        assert {key: env[key] for key in env if key.startswith(("MC_", "MOONCAKE_"))} == {
            "MC_ENABLE_DEST_DEVICE_AFFINITY": "1", "MC_FORCE_HCA": "1", "MC_GID_INDEX": "1", "MC_MAX_MR_SIZE": "1073741824"}
        assert {env["GLOO_SOCKET_IFNAME"], env["SGLANG_LOCAL_IP_NIC"]} == {"enp8s0"}
        assert env["SGLANG_HOST_IP"] == "10.100.0.%d" % host and device(found[name]) == ALL
    assert found["prefill-1"]["env"]["HIP_VISIBLE_DEVICES"] == "4,5,6,7"


def test_no_gid_index_where_rails_differ(planned):
    assert "MC_GID_INDEX" not in planned("tree7")["decode-0"]["env"] and "MC_GID_INDEX" not in planned(rails=False)["decode-0"]["env"]


def test_a_topology_file_where_numa_nodes_are_wrong(planned):
    decode = planned("tree4")["decode-0"]
    assert device(decode) is None and decode["env"]["MC_CUSTOM_TOPO_JSON"] == "/etc/infera/mooncake/topology.json"
    file, = decode["files"]
    assert json.loads(file["content"])["hip:7"][0] == ["ionic_7"]
    assert any(mount["target"] == "/etc/infera/mooncake/topology.json" and mount["source"] == file["path"] for mount in decode["mounts"])


def test_the_roles_decisions_reach_the_engines(planned):
    decode = planned(options={"mr_size": "512MiB", "peer_rail_policy": "destination_preferred", "ib_device_mode": "map", "force_hca": False})["decode-0"]
    assert decode["env"]["MC_MAX_MR_SIZE"] == "536870912" and not {"MC_ENABLE_DEST_DEVICE_AFFINITY", "MC_FORCE_HCA"} & set(decode["env"])
    assert json.loads(device(decode)) == {str(number): "ionic_%d" % number for number in range(8)}
    assert "mr_split" not in str(refused(planned, options={"engine": {"mr_split": False}})) and any(
        "cuts an oversized registration short" in line for line in refused(planned, options={"engine": {"mr_split": False}}))


def test_the_operators_own_variables_are_checked_before_and_after_the_rails_are_known(planned):
    for rails in (False, True):
        faults = refused(planned, rails=rails, engine_env={"MC_FORCE_TCP": "0", "MC_IB_TCC": "1"})
        assert any(line.startswith("rails of b, decode-0: MC_FORCE_TCP='0' turns it ON") for line in faults)
        assert any("MC_IB_TCC: Mooncake has no such variable; did you mean MC_IB_TC?" in line for line in faults)
        assert planned(rails=rails, engine_env={"MC_IB_TC": 106})["decode-0"]["env"]["MC_IB_TC"] == "106"
        assert planned(rails=rails, engine_env={"MC_NEW": "1"}, mooncake_allow_names=["MC_NEW"])["decode-0"]["env"]["MC_NEW"] == "1"
    assert any("MC_USE_TENT is set on ionic rails" in line for line in refused(planned, decode_env={"MC_USE_TENT": "1"}))
    assert any("MC_GID_INDEX=3, but the routable" in line for line in refused(planned, engine_env={"MC_GID_INDEX": "3"}))


def test_the_operators_own_devices(planned):
    decode = planned("tree4", engine_ib_device=["ionic_0", "ionic_1"])["decode-0"]
    assert device(decode) == "ionic_0,ionic_1" and "MC_CUSTOM_TOPO_JSON" not in decode["env"], "a topology would make Mooncake ignore the list"
    fault, = [line for line in refused(planned, "tree2", decode_ib_device=["ionic_3"]) if "ionic_3" in line]
    assert fault.startswith("decode_ib_device: ['ionic_3']: ionic_3: no usable rail of b (there are: ionic_0, ionic_1, ionic_2, ionic_4")


def test_no_rail_at_all_is_refused(planned):
    assert refused(planned, "tree8")[0] == "rails of a, prefill-0: transport=rdma, but no usable rail was found; repair the rails, or say transport=tcp"


def test_how_many_rails_each_process_has_to_open(planned):
    def rails(**options):
        return {entry["name"].replace("own-", ""): entry["rails"] for entry in mooncake_workers.rdma_containers(planned(**options).values(), "a")}

    assert rails() == {"prefill-0": 8, "prefill-1": 8} and rails(tree="tree4") == {"prefill-0": 8, "prefill-1": 8}
    assert rails(options={"ib_device_mode": "map"}) == {"prefill-0": 1, "prefill-1": 1} == rails(options={"ib_device_mode": "file"})
    assert rails(rails=False) == {"prefill-0": None, "prefill-1": None}
    assert mooncake_workers.rdma_containers(planned(prefill_transfer_backend="mooncake_tcp", prefill_allow_tcp=True).values(), "a") == []


def test_the_table(facts):
    lines = mooncake_workers.table(facts("tree2"), [{"name": "own-decode-0", "env": {"MC_FORCE_HCA": "1", "HOST_IP": "x"}, "ib_device": ALL}])
    assert lines[4] == "ionic_3  0000:38:00.0  -    is DOWN  -     -     -     -    -" and lines[-1] == "own-decode-0: %s; MC_FORCE_HCA=1" % ALL


def test_the_fabrics_transfers(planned, facts):
    containers = list(planned().values())
    made = {"containers": containers, "hosts": [{"name": "a", "address": "10.9.0.1"}, {"name": "b", "address": "10.9.0.2"}]}
    rails = {"a": facts("tree1"), "b": facts("tree2", 2)}
    probes = mooncake_workers.fabric_probes(made, rails)
    assert [(probe["source"], probe["target"], probe["transport"]) for probe in probes] == [
        ("a", "b", "tcp"), ("a", "b", "rdma"), ("b", "a", "tcp"), ("b", "a", "rdma")]
    tcp, rdma = probes[:2]
    assert (tcp["source_env"], tcp["target_address"], tcp["target_devices"], tcp["hardware"]["devices"]) == ({"MC_FORCE_TCP": "1"}, "10.9.0.2", "", [])
    assert rdma["source_env"]["MC_FORCE_HCA"] == "1" and "MC_FORCE_TCP" not in rdma["source_env"] and rdma["target_address"] == "10.100.0.2"
    assert rdma["source_devices"] == ALL and "ionic_3" not in rdma["target_devices"]
    assert rdma["hardware"]["devices"] == ["/dev/kfd", "/dev/dri", "/dev/infiniband"]
    alone = mooncake_workers.fabric_probes(dict(made, containers=[one for one in containers if one["role"] == "decode"]), rails, ["tcp"])
    assert [(probe["source"], probe["target"]) for probe in alone] == [("b", "b")]


def test_what_is_wrong_with_figures():
    def row(transport, speed, intact=True, fault=""):
        return {"from": "a", "to": "b", "transport": transport, "GB/s": speed, "intact": intact, "fault": fault}

    check = mooncake_workers.fabric_faults
    assert check([row("tcp", 1.0), row("rdma", 40.0)], 20) == []
    assert check([row("tcp", 1.0), row("rdma", 0.9)]) == [
        "rdma from a to b: 0.9 GB/s, no more than over TCP (1.0): the rails are not used, or their switch ports are slow"]
    assert check([row("rdma", 9.0)], 20) == ["rdma from a to b: 9.0 GB/s, mooncake_fabric_min_gb_s is 20"]
    assert check([row("tcp", "-", False, "no image"), row("rdma", 5.0, False)]) == [
        "tcp from a to b: no image", "rdma from a to b: what was read back is not what was written"]
