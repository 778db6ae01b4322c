# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import copy
import importlib.util
import json
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).parent


def load_trees():
    spec = importlib.util.spec_from_file_location("rail_trees", HERE / "trees.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("rail_trees", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def trees():
    return load_trees()


@pytest.fixture(scope="session")
def tree(trees, tmp_path_factory):
    """Build a tree once; returns its root."""
    made = {}

    def build(name, host=1):
        if (name, host) not in made:
            made[name, host] = tmp_path_factory.mktemp(name)
            trees.build(name, made[name, host], host)
        return made[name, host]

    return build


@pytest.fixture(scope="session")
def facts(tree):
    """Collect a tree's rails; with ``full`` the fake proc, dev and boot are read as well."""
    from ansible_collections.infera.serving.plugins.module_utils import rails

    made = {}

    def collect(name, host=1, full=False, **options):
        key = repr((name, host, full, sorted(options.items())))
        if key not in made:
            root = tree(name, host)
            if full:
                options.update(dev_root=str(root / "dev"), proc_root=str(root / "proc"), boot_root=str(root / "boot"))
            made[key] = rails.collect(str(root / "sys"), **options)
        return copy.deepcopy(made[key])

    return collect


class Exit(Exception):
    """What a module ended with; ``result`` is its dictionary."""

    def __init__(self, result):
        super().__init__(json.dumps(result, default=str))
        self.result = result


@pytest.fixture
def run_module(monkeypatch):
    """Run a module's main() with arguments; returns its result, with ``failed`` and ``warnings`` always there."""
    from ansible.module_utils import basic

    def run(name, check=False, diff=False, **arguments):
        module = importlib.import_module("ansible_collections.infera.serving.plugins.modules." + name)
        arguments.update(_ansible_check_mode=check, _ansible_diff=diff, _ansible_remote_tmp=arguments.pop("remote_tmp", "/tmp"))
        warned = []
        monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode())
        monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
        monkeypatch.setattr(basic.AnsibleModule, "warn", lambda self, text, **_more: warned.append(text))

        def leave(failed):
            def end(self, **result):
                raise Exit(dict(result, failed=failed, warnings=list(warned)))
            return end

        monkeypatch.setattr(basic.AnsibleModule, "exit_json", leave(False))
        monkeypatch.setattr(basic.AnsibleModule, "fail_json", leave(True))
        with pytest.raises(Exit) as caught:
            module.main()
        return caught.value.result

    return run
