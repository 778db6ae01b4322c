# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The digest that becomes an image's tag: equal for equal content, another for any change that matters."""
from __future__ import annotations

import os
import tarfile

import pytest
from ansible_collections.infera.serving.plugins.filter.image_digest import image_digest


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    (root / "images/router").mkdir(parents=True)
    (root / "images/router/Dockerfile").write_text("FROM scratch\n")
    (root / "images/router/run.sh").write_text("#!/bin/sh\n")
    return root


def digest(run_module, root, **more):
    result = run_module("image_sources", root=str(root), paths=["images/router"], **more)
    assert not result["failed"], result
    return result["digest"]


def test_times_owners_and_generated_files_do_not_count(run_module, tree):
    before = digest(run_module, tree)
    os.utime(tree / "images/router/Dockerfile", (1, 1))
    (tree / "images/router/__pycache__").mkdir()
    (tree / "images/router/__pycache__/x.pyc").write_bytes(b"x")
    (tree / "images/router/README.md").write_text("words")
    assert digest(run_module, tree) == before and len(before) == 16


@pytest.mark.parametrize("change", ["content", "name", "mode", "new file", "value"])
def test_every_change_that_matters_counts(run_module, tree, change):
    before = digest(run_module, tree, values={"base": "a"})
    file = tree / "images/router/run.sh"
    if change == "content":
        file.write_text("#!/bin/bash\n")
    elif change == "name":
        file.rename(file.with_name("go.sh"))
    elif change == "mode":
        file.chmod(0o755)
    elif change == "new file":
        (tree / "images/router/more").write_text("")
    assert digest(run_module, tree, values={"base": "b" if change == "value" else "a"}) != before


def test_the_archive_is_what_was_digested_and_is_made_once(run_module, tree, tmp_path):
    options = {"root": str(tree), "paths": ["images/router"], "archive": str(tmp_path / "packed")}
    tried = run_module("image_sources", check=True, **options)
    assert tried["changed"] and not (tmp_path / "packed").exists()
    made = run_module("image_sources", **options)
    assert made["changed"] and made["archive"].endswith(made["digest"] + ".tar")
    with tarfile.open(made["archive"]) as tar:
        assert tar.getnames() == ["images/router/Dockerfile", "images/router/run.sh"] and {member.mtime for member in tar} == {0}
    assert not run_module("image_sources", **options)["changed"]


def test_a_missing_path_is_named(run_module, tree):
    result = run_module("image_sources", root=str(tree), paths=["images/etcd"])
    assert result["failed"] and "images/etcd is missing" in result["msg"]


def test_digest_of_an_image_prefers_the_registrys():
    local = {"Id": "sha256:id", "RepoTags": ["infera/router:1"], "RepoDigests": []}
    pushed = {"Id": "sha256:id", "RepoTags": ["reg:5000/infera/router:1"], "RepoDigests": ["other/router@sha256:x", "reg:5000/infera/router@sha256:pushed"]}
    assert image_digest("infera/router:1", [pushed, local]) == "sha256:id"
    assert image_digest("reg:5000/infera/router:1", [local, pushed]) == "sha256:pushed"
    assert image_digest("infera/router:2", [local, pushed]) == ""
