# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import importlib.util
import pathlib

import pytest

_spec = importlib.util.spec_from_file_location("rails_conftest", pathlib.Path(__file__).parents[1] / "rails" / "conftest.py")
_rails = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_rails)
trees, tree, facts, run_module = _rails.trees, _rails.tree, _rails.facts, _rails.run_module


@pytest.fixture
def lines():
    """Checks as ``{status: ["name: finding; fix"]}``, in order."""
    from ansible_collections.infera.serving.plugins.module_utils import preflight_check

    def sort(checks):
        found = {}
        for check in checks:
            found.setdefault(check["status"], []).append(preflight_check.line(check))
        return found

    return sort


@pytest.fixture
def proc(tmp_path):
    """Write files of a fake /proc; returns its root."""
    root = tmp_path / "proc"

    def write(**files):
        for name, text in files.items():
            path = root / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        root.mkdir(exist_ok=True)
        return str(root)

    return write
