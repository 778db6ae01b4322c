# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""daemon.json is merged, never replaced."""
from __future__ import annotations

import json
import stat


def test_what_others_wrote_stays(run_module, tmp_path):
    path = tmp_path / "daemon.json"
    path.write_text('{"log-opts": {"max-size": "10m"}, "insecure-registries": ["a:5000"], "data-root": "/data/docker"}')
    path.chmod(0o640)
    settings = {"log-opts": {"max-file": "3"}, "insecure-registries": ["b:5000", "a:5000"], "live-restore": True}
    result = run_module("engine_config", path=str(path), settings=settings)
    assert result["changed"] and result["keys"] == ["insecure-registries", "live-restore", "log-opts"] and result["restart_keys"] == ["log-opts"]
    assert json.loads(path.read_text()) == {
        "log-opts": {"max-size": "10m", "max-file": "3"}, "insecure-registries": ["a:5000", "b:5000"], "data-root": "/data/docker", "live-restore": True}
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    written = path.read_bytes()
    again = run_module("engine_config", path=str(path), settings=settings)
    assert not again["changed"] and again["keys"] == [] and path.read_bytes() == written


def test_a_file_that_needs_nothing_is_not_even_reformatted(run_module, tmp_path):
    path = tmp_path / "daemon.json"
    path.write_text('{ "live-restore":true }')
    assert not run_module("engine_config", path=str(path), settings={"live-restore": True})["changed"]
    assert path.read_text() == '{ "live-restore":true }'


def test_check_mode_shows_and_does_not_write(run_module, tmp_path):
    path = tmp_path / "docker" / "daemon.json"
    tried = run_module("engine_config", check=True, path=str(path), settings={"live-restore": True})
    assert tried["changed"] and "live-restore" in tried["diff"]["after"] and tried["diff"]["before"] == "" and not path.parent.exists()
    assert run_module("engine_config", path=str(path), settings={"live-restore": True})["changed"]
    assert path.read_text() == tried["diff"]["after"] and stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [file.name for file in path.parent.iterdir()] == ["daemon.json"]


def test_a_broken_file_is_refused_and_left(run_module, tmp_path):
    path = tmp_path / "daemon.json"
    for text in ('{"a": 1,}', "[1]"):
        path.write_text(text)
        result = run_module("engine_config", path=str(path), settings={"live-restore": True})
        assert result["failed"] and str(path) in result["msg"] and "nothing was changed" in result["msg"]
        assert path.read_text() == text
