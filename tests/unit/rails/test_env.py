# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import itertools
import json

import pytest
from ansible_collections.infera.serving.plugins.module_utils import mooncake_names
from ansible_collections.infera.serving.plugins.module_utils.mooncake_env import MooncakeEnvError, render
from hypothesis import given, settings
from hypothesis import strategies as st

ALL = ",".join("ionic_%d" % number for number in range(8))
ENGINE = {"mr_split": True, "dmabuf": True, "gpu_prefix": "hip"}


def refused(found, **options):
    with pytest.raises(MooncakeEnvError) as caught:
        render(found, **dict({"gpus": range(8), "engine": ENGINE}, **options))
    return caught.value.faults


def test_the_published_environment(facts):
    worker = render(facts("tree1", full=True), gpus=range(8), engine=ENGINE)
    assert worker.env == {
        "HOST_IP": "10.100.0.1", "SGLANG_HOST_IP": "10.100.0.1", "MC_ENABLE_DEST_DEVICE_AFFINITY": "1", "MC_FORCE_HCA": "1",
        "MC_GID_INDEX": "1", "MORI_IB_GID_INDEX": "1", "MC_MAX_MR_SIZE": "1073741824"}
    assert list(worker.env) == sorted(worker.env)
    assert worker.ib_device == ALL and worker.topology is None and worker.transfer_backend == "mooncake"
    for name in ("MC_FORCE_TCP", "MC_USE_TENT", "MC_ENABLE_HCA_PEER_AFFINITY", "MOONCAKE_DISABLE_HIP_DMABUF", "MC_CUSTOM_TOPO_JSON"):
        assert name in worker.unset
    assert not set(worker.unset) & set(worker.env)
    assert [text for text in worker.warnings if "pins what it registers" in text] == worker.warnings


def test_every_tree_renders_or_says_why(facts):
    assert render(facts("tree2"), gpus=[0, 1, 2, 3]).ib_device == "ionic_0,ionic_1,ionic_2,ionic_4,ionic_5,ionic_6,ionic_7"
    assert "ionic_5" not in render(facts("tree3"), gpus=[0]).ib_device.split(",")
    assert render(facts("tree5"), gpus=[0]).ib_device == ALL
    assert render(facts("tree6"), gpus=range(4), ib_device_mode="map").ib_device == '{"0":"ionic_4","1":"ionic_5","2":"ionic_6","3":"ionic_7"}'
    seven = render(facts("tree7"), gpus=range(8))
    assert "MC_GID_INDEX" not in seven.env and {"MC_GID_INDEX", "MORI_IB_GID_INDEX"} <= set(seven.unset)
    assert refused(facts("tree8")) == ["transport=rdma, but no usable rail was found; repair the rails, or say transport=tcp"]
    assert render(facts("tree8"), gpus=range(8), transport="tcp").transfer_backend == "mooncake_tcp"


def test_wrong_numa_nodes_need_a_topology(facts):
    worker = render(facts("tree4"), gpus=[4, 5, 6, 7], visible_devices=[4, 5, 6, 7])
    assert worker.ib_device is None and worker.env["MC_CUSTOM_TOPO_JSON"] == "/etc/infera/mooncake/topology.json"
    assert worker.topology["hip:0"][0] == ["ionic_4"] and worker.topology["hip:3"][0] == ["ionic_7"] and "hip:4" not in worker.topology
    assert len(worker.topology["hip:0"][1]) == 7 and worker.topology["cpu:0"][0] == ["ionic_4", "ionic_5", "ionic_6", "ionic_7"]
    assert any("ib_device_mode=topology keeps them" in text for text in render(facts("tree4"), gpus=[4], ib_device_mode="shared").warnings)


@pytest.mark.parametrize("visible, base, keys", [([4, 5, 6, 7], None, "0123"), (None, None, "4567"), (None, 4, "4567"), ([7, 6, 5, 4], 0, "0123")])
def test_map_keys_are_indexes_within_the_visible_devices(facts, visible, base, keys):
    worker = render(facts("tree1"), gpus=[4, 5, 6, 7], visible_devices=visible, base_gpu_id=base, ib_device_mode="map")
    found = json.loads(worker.ib_device)
    assert "".join(found) == keys
    expected = {str(visible.index(gpu) if visible else gpu): "ionic_%d" % gpu for gpu in (4, 5, 6, 7)}
    assert found == expected and any("out of reach under same_name" in text for text in worker.warnings)


def test_map_in_a_file(facts):
    worker = render(facts("tree1"), gpus=[0, 1], ib_device_mode="file")
    assert worker.ib_device == "/etc/infera/mooncake/ib_device.json" and json.loads(worker.ib_device_file) == {"0": "ionic_0", "1": "ionic_1"}


def test_map_faults(facts):
    assert refused(facts("tree1"), gpus=[4, 5], base_gpu_id=0) == ["base_gpu_id=0, but the worker's first GPU has index 4 within the visible devices"]
    assert refused(facts("tree1"), gpus=[4, 5], visible_devices=[0, 1]) == ["gpus=[4, 5]: 4, 5 not among visible_devices=[0, 1]"]
    assert refused(facts("tree1"), gpus=[1, 1]) == ["gpus=[1, 1] names a GPU twice"]
    assert "GPU 3 has no rail of its own" in refused(facts("tree2"), ib_device_mode="map")[0]
    assert "with one visible device per process" in refused(facts("tree1"), ib_device_mode="map", one_visible_device=True)[0]
    assert refused(facts("tree1"), gpus=[], ib_device_mode="map") == ["ib_device_mode=map needs the worker's gpus"]


def test_peer_rail_policies(facts):
    found = facts("tree1")
    free = render(found, gpus=[0], peer_rail_policy="destination_preferred")
    assert "MC_ENABLE_DEST_DEVICE_AFFINITY" not in free.env and "MC_ENABLE_DEST_DEVICE_AFFINITY" in free.unset
    # The infera launcher sets the variable itself unless it finds "0", which it removes.
    assert render(found, gpus=[0], peer_rail_policy="destination_preferred", launcher="infera").env["MC_ENABLE_DEST_DEVICE_AFFINITY"] == "0"
    explicit = render(found, gpus=[0], peer_rail_policy="explicit", nic_peer_affinity="ionic_0=ionic_4")
    assert explicit.env["MC_ENABLE_HCA_PEER_AFFINITY"] == "1" and explicit.env["MC_NIC_PEER_AFFINITY"] == "ionic_0=ionic_4"
    assert refused(found, peer_rail_policy="explicit") == ["peer_rail_policy=explicit needs nic_peer_affinity (local=peer[,peer];...)"]
    assert "does not use it" in refused(found, nic_peer_affinity="ionic_0=ionic_4")[0]


def test_memory_paths(facts):
    peer = render(facts("peermem", full=True), gpus=[0])
    assert peer.env["MOONCAKE_DISABLE_HIP_DMABUF"] == "1" and peer.env["RDMAV_FORK_SAFE"] == "1" and peer.gpu_mr_path == "peermem"
    assert "GPU memory cannot be registered" in refused(facts("no_p2pdma", full=True))[0]
    assert "pins what it registers" in render(facts("tree1", full=True), gpus=[0], engine=ENGINE).warnings[0]
    forced = render(facts("tree1", full=True), gpus=[0], gpu_mr_path="peermem")
    assert "gpu_mr_path=peermem, but no peer memory module is loaded" in forced.warnings


def test_engine_gate(facts):
    found = facts("tree1")
    assert "cuts an oversized registration short" in refused(found, engine={"mr_split": False})[0]
    assert "does not say whether it splits" in refused(found, engine={"mr_split": None})[0]
    assert "no dma-buf registration" in refused(found, engine={"mr_split": True, "dmabuf": False})[0]
    assert any("cuts an oversized" in text for text in render(found, engine={"mr_split": False}, allow_unverified_engine=True).warnings)
    assert any("was not checked" in text for text in render(found).warnings)
    assert render(facts("connectx", vendor_ids=["15b3"]), engine={"mr_split": False}, mr_size=None).env.get("MC_MAX_MR_SIZE") is None


def test_tcp(facts):
    worker = render(None, gpus=[], transport="tcp")
    assert worker.env == {"MC_FORCE_TCP": "1"} and worker.ib_device is None and "MC_FORCE_HCA" in worker.unset
    assert refused(None, transport="tcp", extra_env={"MC_FORCE_HCA": "1"}) == ["MC_FORCE_TCP and MC_FORCE_HCA are both set: TCP wins without an error"]


@pytest.mark.parametrize("name", mooncake_names.PRESENCE)
@pytest.mark.parametrize("value", ["0", "false", "no"])
def test_presence_switches_cannot_be_switched_off(facts, name, value):
    assert any("%s=%r turns it ON" % (name, value) in fault for fault in refused(facts("tree1"), extra_env={name: value}))


@pytest.mark.parametrize("extra, fault", [
    ({"MC_IB_TC": ""}, "MC_IB_TC is empty: Mooncake misreads empty text; leave the variable out"),
    ({"MOONCAKE_DISABLE_HIP_DMABUF": ""}, "MOONCAKE_DISABLE_HIP_DMABUF is empty: an empty text disables dma-buf"),
    ({"MC_ENABLE_HCA_PEER_AFFINITY": "1"}, "MC_ENABLE_DEST_DEVICE_AFFINITY and MC_ENABLE_HCA_PEER_AFFINITY are both set: Mooncake then turns both off"),
    ({"MC_USE_TENT": "1"}, "MC_USE_TENT is set on ionic rails: that engine neither splits registrations nor reads MC_MAX_MR_SIZE"),
    ({"MC_USE_TEV1": "1"}, "MC_USE_TEV1 is set on ionic rails: that engine neither splits registrations nor reads MC_MAX_MR_SIZE"),
    ({"MC_FORCE_TCP": "1"}, "MC_FORCE_TCP is set on an RDMA worker: it wins over everything and the transfer runs over TCP"),
    ({"MC_CUSTOM_TOPO_JSON": "/t.json"}, "MC_CUSTOM_TOPO_JSON and a device list are both given: Mooncake ignores the list when the topology loads"),
    ({"MC_GID_INDX": "1"}, "MC_GID_INDX: Mooncake has no such variable; did you mean MC_GID_INDEX? (mooncake_allow_names lets it through)"),
    ({"MC_DISABLE_HIP_TRANSPORT": "1"}, "MC_DISABLE_HIP_TRANSPORT: it does not exist in Mooncake (MC_DISABLE_HIP does)"),
    ({"MC_GID_INDEX": "3"}, "extra_env sets MC_GID_INDEX='3', the rails give '1': use the option for it instead"),
    ({"MC_GID_INDEX": "3"}, "MC_GID_INDEX=3, but the routable RoCEv2 GID is at index 1 on these rails"),
    ({"MC_MAX_MR_SIZE": "1GiB"}, "'1GiB' must be rendered as bytes; Mooncake reads it as 1"),
    ({"MC_MTU": "9000"}, "MC_MTU='9000': one of 512, 1024, 2048, 4096 is needed"),
    ({"MC_IB_PORT": "0"}, "MC_IB_PORT='0': a whole number from 1 to 255 is needed; Mooncake would misread or ignore it"),
    ({"MC_TRANSFER_TIMEOUT": "abc"}, "MC_TRANSFER_TIMEOUT='abc': a whole number from 5 to 86400 is needed; Mooncake would misread or ignore it"),
    ({"MC_SLICE_SIZE": -1}, "MC_SLICE_SIZE='-1': a whole number from 1 to 2147483647 is needed; Mooncake would misread or ignore it"),
    ({"MC_MIN_RPC_PORT": "40000", "MC_MAX_RPC_PORT": "40100"}, "MC_MIN_RPC_PORT=40000 lies in the ephemeral range 32768 to 60999; "
     "Mooncake would replace both by 15000 and 17000"),
    ({"MC_MIN_RPC_PORT": "18000"}, "MC_MIN_RPC_PORT=18000 is above MC_MAX_RPC_PORT=17000"),
    ({"MC_NIC_PEER_AFFINITY": "ionic_0"}, "MC_NIC_PEER_AFFINITY rule 'ionic_0': local=peer[,peer] is needed"),
    ({"MC_IB_TC": ["1"]}, "MC_IB_TC=['1'] is no text: a container's environment holds text only"),
])
def test_traps(facts, extra, fault):
    assert fault in refused(facts("tree1"), extra_env=extra)


def test_every_fault_in_one_go(facts):
    faults = refused(facts("tree1"), mr_size="2GiB", extra_env={"MC_USE_TENT": "1", "MC_IB_SL": "99", "MC_FORCE_TCPP": "1"})
    assert len(faults) == 4 and "MC_FORCE_TCPP: Mooncake has no such variable; did you mean MC_FORCE_TCP?" in faults[1]


def test_a_gid_index_when_rails_differ(facts):
    fault, = refused(facts("tree7"), extra_env={"MC_GID_INDEX": "1"})
    assert fault.startswith("MC_GID_INDEX=1, but no index is good on every rail (ionic_0: 1, ionic_1: 1, ionic_2: 3")


def test_names_can_be_let_through_and_good_values_pass(facts):
    extra = {"MC_NEW_THING": "x", "MC_IB_TC": 106, "NCCL_IB_DISABLE": "1", "MC_MTU": "4096"}
    worker = render(facts("tree1"), gpus=[0], allow_names=["MC_NEW_THING"], extra_env=extra)
    assert worker.env["MC_IB_TC"] == "106" and worker.env["MC_NEW_THING"] == "x" and worker.env["NCCL_IB_DISABLE"] == "1"


def test_variables_without_effect_are_warned_of(facts):
    texts = render(facts("tree1"), gpus=[0], extra_env={"MC_MS_AUTO_DISC": "1", "MC_LOG_LEVEL": "WARNING"}).warnings
    assert any("MC_MS_AUTO_DISC is read by Mooncake's store client only" in text for text in texts)
    assert any("MC_LOG_LEVEL=WARNING hides the lines" in text for text in texts)


@pytest.mark.parametrize("name, value", [("transport", "roce"), ("gpu_mr_path", "x"), ("peer_rail_policy", "x"), ("ib_device_mode", "x"), ("launcher", "x")])
def test_choices(facts, name, value):
    assert refused(facts("tree1"), **{name: value})[0].startswith("%s=%r: one of " % (name, value))


def test_order_of_the_input_does_not_matter(facts):
    extra = {"MC_IB_TC": "1", "MC_RETRY_CNT": "7", "MC_IB_SL": "2"}
    made = {json.dumps(render(facts("tree4"), gpus=gpus, extra_env=dict(order)).__dict__)
            for order in itertools.permutations(extra.items()) for gpus in ((0, 1), [1, 0])}
    assert len(made) == 1


@given(st.dictionaries(st.sampled_from(sorted(mooncake_names.KNOWN) + ["MC_BOGUS"]), st.text(max_size=6) | st.integers(-5, 70000).map(str), max_size=4))
@settings(max_examples=80, deadline=None)
def test_whatever_passes_is_what_mooncake_reads(facts, extra):
    try:
        worker = render(facts("tree1"), gpus=[0], extra_env=extra)
    except MooncakeEnvError as error:
        assert error.faults
        return
    assert "MC_BOGUS" not in worker.env and "MC_FORCE_TCP" not in worker.env
    assert worker.env["MC_MAX_MR_SIZE"] == "1073741824" and worker.env["MC_GID_INDEX"] == "1"
    assert all(value.strip() for name, value in worker.env.items() if name.startswith("MC_"))


@pytest.mark.parametrize("options, fault", [
    ({"gpus": [-1]}, "gpus=[-1]: no GPU -1 on this host; it has 0, 1, 2, 3, 4, 5, 6, 7"),
    ({"gpus": [8]}, "gpus=[8]: no GPU 8 on this host; it has 0, 1, 2, 3, 4, 5, 6, 7"),
    ({"gpus": ["0"]}, "gpus=['0']: no GPU 0 on this host; it has 0, 1, 2, 3, 4, 5, 6, 7"),
    ({"extra_env": {"A B": "x"}}, "'A B' is no name of an environment variable"),
    ({"extra_env": {1: "x"}}, "1 is no name of an environment variable"),
    ({"extra_env": {"FOO": "a\nMC_FORCE_TCP=1"}}, "FOO='a\\nMC_FORCE_TCP=1': a line break or NUL in a value would end its line in an environment file"),
    ({"ib_device_mode": "file", "ib_device_path": "/etc/map"}, "ib_device_path=/etc/map: SGLang reads a file only when its name ends in .json"),
    ({"topology_path": "topology.json"}, "topology_path='topology.json': an absolute path inside the container is needed"),
    ({"peer_rail_policy": "explicit", "nic_peer_affinity": "ionic_9=ionic_1"},
     "nic_peer_affinity: ionic_9 is no usable rail of this host (there are: %s)" % ALL.replace(",", ", ")),
])
def test_what_no_worker_can_be(facts, options, fault):
    assert refused(facts("tree1"), **dict({"gpus": [0]}, **options)) == [fault]
