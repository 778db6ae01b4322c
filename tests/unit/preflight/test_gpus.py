# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs on fake machines: present, idle, whose, and unusable after a memory access fault. Nothing is reset."""
from __future__ import annotations

import shutil

import pytest
from ansible_collections.infera.serving.plugins.module_utils import preflight_gpus as gpus

CONTAINER = "a" * 64


@pytest.fixture
def machine(trees, tmp_path):
    """Build a tree of its own; returns the root and a way to check it."""

    def make(name):
        root = tmp_path / name
        trees.build(name, root)

        def check(expected=8, used=(), log="", own_ids=(), max_vram_gib=2.0):
            return gpus.check_gpus(str(root / "sys"), str(root / "proc"), str(root / "dev"), expected, list(used), max_vram_gib, own_ids, log)

        return root, check

    return make


def test_a_healthy_machine(machine, lines):
    _root, check = machine("tree1")
    assert lines(check()) == {"pass": ["gpu driver: amdgpu 6.16.13", "gpus: 8 found, 8 needed", "gpu memory: 8 idle (below 2.0 GiB)",
                                       "gpu faults: none in the kernel's log"]}
    assert lines(check(expected=0)) == {"n/a": ["%s: no engine on this host uses a GPU" % name for name in ("gpu driver", "gpus", "gpu memory", "gpu faults")]}


def test_too_few_gpus(machine, lines):
    root, check = machine("tree6")
    assert lines(check())["FAIL"] == [
        "gpus: 4 GPUs, 8 needed (infera_gpus_per_host); see the kernel's log for a GPU that failed to start; correct the shape otherwise"]
    assert lines(check(used=[7]))["n/a"] == ["gpu memory: no GPU that an engine may use"]
    assert "engines are to use GPU 6, the host has 0 to 3" in lines(check(expected=4, used=[3, 6]))["FAIL"][0]
    (root / "sys/bus/pci/drivers/amdgpu/0000:99:00.0").mkdir()
    assert "4 GPUs, 8 needed (infera_gpus_per_host); bound to amdgpu but not in KFD: 0000:99:00.0" in lines(check())["FAIL"][0]


def test_no_driver(machine, lines, tmp_path):
    (tmp_path / "empty").mkdir()
    found = gpus.check_gpus(str(tmp_path / "empty"), str(tmp_path), None, 8, [], 2, (), "")
    assert lines(found)["FAIL"][0] == "gpu driver: amdgpu is not loaded; install and load AMD's driver; this collection installs none"
    root, check = machine("tree1")
    (root / "dev/kfd").unlink()
    assert "device files are missing: /dev/kfd;" in lines(check())["FAIL"][0]


def test_memory_in_use(machine, lines):
    _root, check = machine("busy")
    assert lines(check())["FAIL"] == [
        "gpu memory: GPU 2 is held by process 4242 (python3 train.py), 200.0 GiB; end it, or give the engines other GPUs",
        "gpu memory: GPU 5 has 120.0 GiB in use, and no living process holds it; wait: after an engine with HiCache the driver may take 10 to 65 minutes "
        "to release it; look at the kernel's log otherwise"]
    assert "FAIL" not in lines(check(used=[0, 1])), "only the GPUs that engines get matter"


def test_our_own_engines_may_hold_memory(machine, lines):
    root, check = machine("busy")
    (root / "proc/4242/cgroup").write_text("0::/system.slice/docker-%s.scope\n" % CONTAINER)
    assert lines(check(used=[2], own_ids=[CONTAINER]))["pass"][2] == "gpu memory: 0 idle (below 2.0 GiB), 1 used by our own engines"
    assert "FAIL" in lines(check(used=[2], own_ids=["b" * 64])), "another deployment's container is foreign"


def test_a_memory_access_fault_leaves_the_gpu_unusable(machine, lines):
    root, check = machine("faulted")
    log = (root / "kernel.log").read_text()
    found = lines(check(log=log))
    assert len(found["FAIL"]) == 1, "one fault, told once"
    text = found["FAIL"][0]
    assert text.startswith("gpu faults: GPU 5 (0000:5b:00.0) is unusable after a GPU memory access fault: [ 8123.4] amdgpu 0000:5b:00.0")
    assert "KFD still lists process 31337, which is gone, with 250.0 GiB; 250.0 GiB in use without a living holder" in text
    assert "Failed to evict process queues" in text and text.endswith("; " + gpus.RESET) and "this collection never resets a GPU" in text


def test_a_fault_that_the_gpu_outlived_only_warns(machine, lines):
    root, check = machine("tree1")
    line = "amdgpu 0000:5b:00.0: amdgpu: [gfxhub0] page fault (src_id:0 ring:24)"
    assert "GPU 5 (0000:5b:00.0) had a memory access fault" in lines(check(log=line))["warn"][0]
    assert "warn" not in lines(check(log=line + "\namdgpu 0000:5b:00.0: amdgpu: GPU reset(2) succeeded!")), "an administrator has reset it since"
    shutil.rmtree(root / "sys/class/kfd/kfd/topology/nodes/7")
    text = [line for line in lines(check(log=line))["FAIL"] if line.startswith("gpu faults")][0]
    assert "the GPU at 0000:5b:00.0 left KFD after a memory access fault" in text


def test_an_unreadable_kernel_log_is_said(machine, lines):
    _root, check = machine("tree1")
    assert lines(check(log=None))["warn"] == [
        "gpu faults: the kernel's log cannot be read; run with become, so that a GPU memory access fault can be recognised"]


def test_partitioned_gpus_count(machine, lines):
    _root, check = machine("partitions")
    assert lines(check(expected=16))["pass"][1] == "gpus: 16 found, 16 needed"


@pytest.mark.parametrize("path, text", [
    ("sys/class/kfd/kfd/proc/31337/vram_50007", "much"), ("sys/class/kfd/kfd/proc/x/vram_50007", "5"), ("sys/class/kfd/kfd/proc/31337/vram_", "5"),
    ("sys/class/kfd/kfd/topology/nodes/5/gpu_id", "\xff\xfe"), ("sys/class/kfd/kfd/topology/nodes/5/properties", "location_id -1\nsimd_count x\n"),
    ("sys/class/kfd/kfd/topology/nodes/5/properties", "location_id %d\n" % 2 ** 70), ("proc/31337/cmdline", "\0\0"),
    ("sys/class/kfd/kfd/topology/nodes/not-a-number/gpu_id", "3"), ("sys/class/kfd/kfd/topology/nodes/5/extra", "")])
def test_odd_trees_break_nothing(machine, path, text):
    root, check = machine("faulted")
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="latin-1")
    assert check(log="amdgpu : page fault\namdgpu zz: page fault\n" + "x" * 100000)
