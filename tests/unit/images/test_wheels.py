# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wheels are pinned, fit the image's Python whatever the host's is, and torch is a CPU build or nothing is fetched."""
from __future__ import annotations

import pathlib
import sys

import pytest
from ansible_collections.infera.serving.plugins.module_utils import image_wheels

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_torch_without_the_cpu_label_is_refused_before_anything_is_fetched(run_module, tmp_path):
    for version in ("2.13.0", "2.13.0+cu130"):
        result = run_module("image_wheelhouse", dest=str(tmp_path / "w"), requirements=["torch==" + version], python="/nonexistent/python",
                            local_versions={"torch": "cpu"})
        assert result["failed"] and result["msg"] == f"image_torch_version {version!r} is not a +cpu build: set it to 2.13.0+cpu"
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("line", ["torch", "torch>=2", "git+https://example.org/x", "-r other.txt"])
def test_only_pins_are_taken(line):
    with pytest.raises(image_wheels.WheelError, match="NAME==VERSION"):
        image_wheels.pins([line])


@pytest.mark.parametrize("name", ["images/router/requirements-router.txt", "images/sglang/cpu/requirements-cpu.txt"])
def test_the_locks_are_pins_and_name_each_distribution_once(name):
    pinned = image_wheels.pins((ROOT / name).read_text().splitlines())
    names = [item[0] for item in pinned]
    assert len(names) > 5 and len(set(names)) == len(names)
    assert "torch" not in names and "triton" not in names


def test_pip_is_asked_for_the_images_python_and_c_library():
    tags = image_wheels.platforms("x86_64", "2.36")
    assert tags[0] == "manylinux_2_36_x86_64" and "manylinux_2_37_x86_64" not in tags and "manylinux2014_x86_64" in tags
    arguments = image_wheels.pip_arguments("r.txt", "out", "3.11", tags, ["/wheels"], ["https://index.example/simple"])
    for pair in (["--python-version", "3.11"], ["--find-links", "/wheels"], ["--extra-index-url", "https://index.example/simple"]):
        place = arguments.index(pair[0])
        assert arguments[place:place + 2] == pair
    assert "--only-binary=:all:" in arguments and "--no-deps" in arguments
    assert "--index-url" not in arguments  # the host's own settings stay in force


def test_the_digest_follows_the_pins_and_not_their_order():
    one = image_wheels.digest([("a", "1"), ("b", "2")], "3.11", ["x"])
    assert one == image_wheels.digest([("b", "2"), ("a", "1")], "3.11", ["x"])
    assert len({one, image_wheels.digest([("a", "1"), ("b", "3")], "3.11", ["x"]), image_wheels.digest([("a", "1"), ("b", "2")], "3.12", ["x"])}) == 3


def test_a_wheel_that_no_index_has_is_named_with_the_variable_to_set(run_module, tmp_path):
    """A real pip, offline: it finds nothing, and nothing is left behind."""
    result = run_module("image_wheelhouse", dest=str(tmp_path), requirements=["infera-no-such-thing==1.0"], python=sys.executable,
                        find_links=[str(tmp_path)])
    assert result["failed"] and "image_pip_find_links" in result["msg"] and "infera-no-such-thing==1.0" in result["msg"], result
    assert list(tmp_path.iterdir()) == []


def test_missing_wheels_are_found_by_name_and_version():
    names = ["prometheus_client-0.26.0-py3-none-any.whl", "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", "notes.txt"]
    assert image_wheels.missing([("prometheus-client", "0.26.0"), ("torch", "2.13.0+cpu"), ("orjson", "1")], names) == ["orjson==1"]
