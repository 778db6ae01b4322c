# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sysfs as it should never be: whatever one file turns into, the answer comes, and the other seven rails stay what they were."""
from __future__ import annotations

import json
import os
import shutil

import pytest
from ansible_collections.infera.serving.plugins.module_utils import mooncake_env, preflight_rails, rails


def _remove(path):
    os.unlink(path) if os.path.islink(path) or not os.path.isdir(path) else shutil.rmtree(path)


def _text(text):
    def put(path):
        _remove(path)
        with open(path, "wb") as handle:
            handle.write(text)
    return put


def _link(target):
    def put(path):
        _remove(path)
        os.symlink(target, path)
    return put


def _folder(path):
    """Reading it fails as an unreadable file does, also for root."""
    _remove(path)
    os.mkdir(path)


BREAK = {
    "gone": _remove, "empty": _text(b""), "rubbish": _text(b"\x00\xff\xfe: rubbish\n"), "negative": _text(b"-99999999999999999999\n"),
    "huge": _text(b"9" * 5000 + b"\n"), "colon": _text(b":"), "unreadable": _folder, "loop": _link("loop"), "dangling": _link("/no/such/place"),
    "upwards": _link(".."),
}


# These kinds go to every place, the others to every third.
THOROUGH = ("gone", "rubbish", "unreadable")


def places(root):
    """Every file and link of rail 3, of its PCI function, and of GPU 3; by path."""
    found = []
    for folder, folders, names in os.walk(root / "sys"):
        here = os.path.relpath(folder, root)
        for name in names + [name for name in folders if os.path.islink(os.path.join(folder, name))]:
            path = os.path.join(here, name)
            if any(part in path for part in ("ionic_3", "0000:38:00.0", "uverbs3/", "nodes/5/", "0000:3b:00.0", "net/enp56s0", "infiniband/")):
                found.append(path)
    return sorted(found)


@pytest.fixture(scope="module")
def original(trees, tmp_path_factory):
    root = tmp_path_factory.mktemp("broken")
    trees.build("tree1", root)
    return root


def look(root):
    return rails.collect(str(root / "sys"), dev_root=str(root / "dev"), proc_root=str(root / "proc"), boot_root=str(root / "boot"))


@pytest.mark.parametrize("how", BREAK)
def test_one_broken_place(original, tmp_path, how):
    root = tmp_path / "tree"
    shutil.copytree(original, root, symlinks=True)
    healthy = {rail["name"]: rail for rail in look(root)["rails"]}
    tried = 0
    for number, place in enumerate(places(original)):
        if how not in THOROUGH and number % 3:
            continue
        full = root / place
        if not os.path.lexists(full):
            continue
        aside = str(tmp_path / "aside")
        if os.path.islink(full):
            os.symlink(os.readlink(full), aside)
        else:
            shutil.copy2(full, aside)
        BREAK[how](str(full))
        tried += 1
        found = look(root)
        json.dumps(found)
        for rail in found["rails"]:
            if rail["usable"] and rail["name"] in healthy and rail["name"] != "ionic_3" and "infiniband/ionic" not in place:
                assert rail["gid_index"] == 1 and rail["bdf"] == healthy[rail["name"]]["bdf"], place
        assert sum(rail["usable"] for rail in found["rails"]) >= 7, place
        assert all(rail["usable"] or rail["reasons"] for rail in found["rails"]), place
        assert all(link["gpu"] == int(link["rail"][-1]) for link in found["pairs"]), "%s: a wrong pair" % place
        assert preflight_rails.check_rails(found, range(8), 8)
        try:
            mooncake_env.render(found, gpus=[0, 1, 2, 3], visible_devices=[0, 1, 2, 3])
        except mooncake_env.MooncakeEnvError as error:
            assert error.faults
        if os.path.lexists(full):
            _remove(str(full))
        shutil.move(aside, full)
    assert tried > 15
    assert look(root)["warnings"] == []


@pytest.mark.parametrize("text, kind", [("", "empty"), ("no BDF", "class folder")])
def test_roots_that_are_no_sysfs(tmp_path, text, kind):
    root = tmp_path / kind
    root.mkdir()
    if text:
        (root / "class").write_text(text)
    found = rails.collect(str(root))
    assert found["rails"] == [] and found["gpus"] == [] and found["gid_index_common"] is None
    assert rails.collect(str(tmp_path / "none"))["rails"] == []
    os.symlink("self", tmp_path / "self")
    assert rails.collect(str(tmp_path / "self"))["rails"] == []


def test_a_loop_below_devices_ends(trees, tmp_path):
    """Without bus/pci the tree is walked; links in it are not followed for ever."""
    trees.build("tree1", tmp_path)
    shutil.rmtree(tmp_path / "sys/bus")
    os.symlink("..", tmp_path / "sys/devices/pci0000:05/0000:99:00.0")
    found = rails.collect(str(tmp_path / "sys"))
    assert [link["rail"] for link in found["pairs"]] == ["ionic_%d" % number for number in range(8)]


def test_two_devices_of_one_function_and_one_name(trees, tmp_path):
    """A second RDMA device of the same function: both are rails, no GPU gets two, none is lost."""
    tree = trees.build("tree1", tmp_path)
    tree.link("sys/class/infiniband/ionic_0b", "sys/class/infiniband/ionic_0")
    found = rails.collect(str(tmp_path / "sys"))
    assert len(found["rails"]) == 9 and sorted(link["gpu"] for link in found["pairs"]) == list(range(8))


def test_many_of_everything(trees, tmp_path):
    """256 GID slots on every rail, as cards have, and 64 partitions."""
    tree = trees.Tree(tmp_path)
    nics = {index: {"gids": [(trees.fe80(index), trees.V2, None)] + [None] * 200 + [(trees.mapped("10.%d.0.1" % (100 + index)), trees.V2, None)] + [None] * 54}
            for index in range(8)}
    trees.healthy(tree, nics=nics)
    tree.kernel()
    tree.done()
    assert rails.collect(str(tmp_path / "sys"))["gid_index_common"] == 201
