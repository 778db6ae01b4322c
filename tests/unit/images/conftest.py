# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import importlib
import json

import pytest


class Exit(Exception):
    pass


@pytest.fixture
def run_module(monkeypatch):
    """Run a module's main() with arguments; returns its result, with ``failed`` always there."""
    from ansible.module_utils import basic

    def run(name, check=False, **arguments):
        module = importlib.import_module("ansible_collections.infera.serving.plugins.modules." + name)
        arguments.update(_ansible_check_mode=check, _ansible_remote_tmp="/tmp")
        monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode())
        monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)

        def leave(failed):
            def end(self, **result):
                raise Exit(dict(result, failed=failed))
            return end

        monkeypatch.setattr(basic.AnsibleModule, "exit_json", leave(False))
        monkeypatch.setattr(basic.AnsibleModule, "fail_json", leave(True))
        with pytest.raises(Exit) as caught:
            module.main()
        return caught.value.args[0]

    return run
