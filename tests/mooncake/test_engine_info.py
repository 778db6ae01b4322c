# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Capabilities of the engines that PyPI has."""
from __future__ import annotations

import pytest
from ansible_collections.infera.serving.plugins.module_utils import mooncake_names


@pytest.mark.parametrize("flavour, version, split, truncates, dmabuf, hip, prefix", [
    ("non_cuda", "0.3.12.post1", False, True, False, False, "cuda"),
    ("non_cuda", "0.3.13.post1", True, False, False, False, "cuda"),
    ("rocm", "0.3.13.post1", True, False, True, True, "hip"),
])
def test_capabilities(run_module, wheel, flavour, version, split, truncates, dmabuf, hip, prefix):
    result = run_module("mooncake_engine_info", path=str(wheel(flavour, version)))
    found = result["capabilities"]
    assert not result["failed"] and (result["distribution"], result["version"]) == ("mooncake-transfer-engine-" + flavour.replace("_", "-"), version)
    assert (found["mr_split"], found["truncates"], found["dmabuf"], found["hip"], found["routing"]) == (split, truncates, dmabuf, hip, False)
    assert found["gpu_prefix"] == prefix and found["reads_mr_size"] and found["force_hca"]


def test_requirements_name_what_is_missing_and_its_consequence(run_module, wheel):
    old = run_module("mooncake_engine_info", path=str(wheel("non_cuda", "0.3.12.post1")), require=["mr_split", "no_truncation"])
    assert old["failed"] and len(old["missing"]) == 2 and "mr_split is missing: a buffer above the limit is cut short" in old["msg"]
    rocm = str(wheel("rocm", "0.3.13.post1"))
    assert not run_module("mooncake_engine_info", path=rocm, require=["mr_split", "no_truncation", "dmabuf", "hip"])["failed"]
    lacking = run_module("mooncake_engine_info", path=rocm, require=["mr_split", "routing"])
    assert lacking["failed"] and [text.split(":")[0] for text in lacking["missing"]] == ["routing is missing"]


def test_a_folder_and_the_file_itself_give_the_same(run_module, site):
    folder = run_module("mooncake_engine_info", path=str(site))
    direct = run_module("mooncake_engine_info", path=str(site / "mooncake" / "engine.so"))
    assert folder["sha256"] == direct["sha256"] and folder["version"] == direct["version"] == "0.3.13.post1"


def test_every_variable_of_the_real_engine_is_known(run_module, wheel):
    """The list of names against the binary; those that only other builds or the store read are listed here."""
    names = {name for name in run_module("mooncake_engine_info", path=str(wheel("rocm", "0.3.13.post1")))["capabilities"]["environment"]
             if name.startswith("MC_")}
    assert names <= set(mooncake_names.KNOWN)
    assert set(mooncake_names.KNOWN) - names == {"MC_DISABLE_HIP", "MC_MS_AUTO_DISC", "MC_MS_FILTERS"}
    assert not names & set(mooncake_names.NO_SUCH)
