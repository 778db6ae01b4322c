# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.infera.serving.plugins.filter import mooncake as filters
from ansible_collections.infera.serving.plugins.module_utils import mooncake_devices
from ansible_collections.infera.serving.plugins.test import mooncake as tests


@pytest.mark.parametrize("value, form, devices, normalized", [
    ("ionic_0", "shared", ["ionic_0"], "ionic_0"),
    ("ionic_0, ionic_1 ,ionic_0", "shared", ["ionic_0", "ionic_1"], "ionic_0,ionic_1"),
    (["ionic_0", "ionic_1"], "shared", ["ionic_0", "ionic_1"], "ionic_0,ionic_1"),
    ('{"1": "ionic_1", "0": " ionic_0 , ionic_2"}', "map", ["ionic_0", "ionic_2", "ionic_1"], '{"0":"ionic_0,ionic_2","1":"ionic_1"}'),
    ({0: "ionic_0", "10": "ionic_1", 9: ["ionic_2"]}, "map", ["ionic_0", "ionic_2", "ionic_1"], '{"0":"ionic_0","9":"ionic_2","10":"ionic_1"}'),
    ("/etc/infera/map.json", "file", [], "/etc/infera/map.json"),
    (None, "none", [], None), ("", "none", [], None),
])
def test_forms(value, form, devices, normalized):
    found = filters.ib_device_spec(value)
    assert (found["form"], found["devices"], found["normalized"]) == (form, devices, normalized)


@pytest.mark.parametrize("value, message", [
    ('{"0": ["ionic_0"]}', 'the value of GPU 0 must be text such as "ionic_0,ionic_1"'), ("{}", "a JSON object from GPU index to device list"),
    ('{"a": "ionic_0"}', "key 'a' is no GPU index"), ('{"0": ""}', "GPU 0 has no device"), ('{"0": "x"', "is no JSON object"),
    ("/etc/infera/map.txt", "reads a file only when its name ends in .json"), (" , ", "names no device"), ('{"0": "a", "00": "b"}', "GPU 0 is named twice"),
])
def test_what_sglang_would_refuse(value, message):
    with pytest.raises(AnsibleFilterError, match=message.replace("(", r"\(")):
        filters.ib_device_spec(value)


def test_nic_peer_affinity():
    assert filters.parse_nic_peer_affinity("ionic_0=ionic_4, ionic_5 ; ionic_1=ionic_1;") == {"ionic_0": ["ionic_4", "ionic_5"], "ionic_1": ["ionic_1"]}
    for text, message in (("=a", "local=peer"), ("a=", "local=peer"), ("a=b;a=c", "twice"), ("", "holds no rule")):
        with pytest.raises(AnsibleFilterError, match=message):
            filters.parse_nic_peer_affinity(text)


def test_gids():
    assert filters.gid_to_ipv4("0000:0000:0000:0000:0000:ffff:0a64:0001") == "10.100.0.1" and filters.gid_to_ipv4("fe80::1") is None
    with pytest.raises(AnsibleFilterError, match="is no GID"):
        filters.gid_to_ipv4("10.0.0.1")
    good = ["::ffff:10.1.2.3", "2001:db8::1", "fd00::1"]
    bad = ["fe80::1", "::", "::ffff:169.254.1.1", "::ffff:127.0.0.1", "ff02::1", "::1", "nonsense", ""]
    assert [gid for gid in good + bad if tests.routable_gid(gid)] == good


def test_shared_depth():
    gpu = "/sys/devices/pci0000:05/0000:05:01.0/0000:06:00.0/0000:07:01.0/0000:0b:00.0"
    assert filters.pci_shared_depth(gpu, "/sys/devices/pci0000:05/0000:05:01.0/0000:06:00.0/0000:07:00.0/0000:08:00.0") == 3
    assert filters.pci_shared_depth(gpu, "/sys/devices/pci0000:05/0000:05:02.0/0000:09:00.0") == 1
    # The same characters in front are no shared component: 0000:05:01.0 and 0000:05:01.1 are two functions.
    assert filters.pci_shared_depth("/sys/devices/pci0000:05/0000:05:01.0", "/sys/devices/pci0000:05/0000:05:01.1") == 1
    assert filters.pci_shared_depth(gpu, "/sys/devices/virtual/infiniband/rxe0") == 0


def test_parity(facts):
    def compare(*hosts, **options):
        return filters.rail_parity({name: facts(tree, host, full=True) for name, tree, host in hosts}, **options)

    same = compare(("a", "tree1", 1), ("b", "tree1", 2))
    assert same["ok"] and same["faults"] == [] and same["warnings"] == [] and len(same["rails"]) == 8
    swapped = compare(("a", "tree1", 1), ("b", "other_subnet", 2))
    assert not swapped["ok"] and len(swapped["faults"]) == 2
    assert swapped["faults"][0].startswith("rail ionic_2: subnet 10.102.0.0/24 on a, 10.103.0.0/24 on b (that subnet is on ionic_3 there)")
    assert compare(("a", "tree1", 1), ("b", "other_subnet", 2), routed=True)["ok"]
    down = compare(("a", "tree1", 1), ("b", "tree2", 2))
    assert "usable rails differ: a has ionic_0,ionic_1,ionic_2,ionic_3," in down["faults"][0] and "b has ionic_0,ionic_1,ionic_2,ionic_4," in down["faults"][0]
    renamed = compare(("a", "tree1", 1), ("b", "renamed", 2))
    assert "ionic_0 is ionic_9 there" in renamed["faults"][0] and "ionic_1 is ionic_10 there" in renamed["faults"][0]
    slow = compare(("a", "tree1", 1), ("b", "slow", 2))
    assert slow["faults"] == ["rail ionic_4: MTU 9000 on a, 1500 on b", "rail ionic_4: rate in Gb/s 400 on a, 200 on b"]
    gids = compare(("a", "tree1", 1), ("b", "two_indexes", 2))
    assert gids["ok"] and gids["warnings"] == ["GID indexes differ between hosts, which is fine, since each host renders its own: a: 1, b: 3"]
    assert compare(("a", "tree1", 1), ("b", "tree2", 2), names=["ionic_0"])["ok"]


def test_parity_without_routes_and_with_ipv6(facts):
    assert filters.rail_parity({"a": facts("tree1", 1)["rails"], "b": facts("tree1", 2)["rails"]})["ok"]
    assert filters.rail_parity({"a": facts("ipv6", 1), "b": facts("ipv6", 2)})["ok"]
    order = filters.rail_parity({"a": facts("tree1", 1), "b": {"rails": list(reversed(facts("tree1", 2)["rails"]))}})
    assert "rails come in another order" in order["faults"][0]
    for wrong in (["x"], {"a": {"x": 1}}):
        with pytest.raises(AnsibleFilterError, match="rail_parity: "):
            filters.rail_parity(wrong)


@pytest.mark.parametrize("value, message", [
    (5, "text, a list of names, or a map is needed"), (True, "text, a list of names, or a map is needed"), (["a", None], "a list of device names is needed"),
    ("a b", "'a b' is no device name"), ("{\"0\": \"a/b\"}", "'a/b' is no device name"), ("{\"\u0663\": \"a\"}", "is no GPU index")])
def test_what_is_no_device_spec(value, message):
    with pytest.raises(mooncake_devices.DeviceSpecError, match=message):
        mooncake_devices.parse(value)
