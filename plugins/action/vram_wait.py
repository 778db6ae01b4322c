# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look again and again until the GPUs' memory is free, and say meanwhile what is still held."""
from __future__ import annotations

import time

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Polls with the module of the same name; the loop is here so that progress can be shown."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_diff = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        args, host = dict(self._task.args), (task_vars or {}).get("inventory_hostname", "?")
        timeout, interval = float(args.get("timeout", 3900)), float(args.get("interval", 10))
        started, shown = time.monotonic(), 0.0
        while True:
            probe = self._execute_module(module_name="infera.serving.vram_wait", module_args=args, task_vars=task_vars)
            passed = time.monotonic() - started
            if probe.get("failed") or probe["clean"] or self._task.check_mode or passed >= timeout:
                break
            if passed - shown >= 60 or not shown:
                shown = passed or 0.1
                self._display.display(f"  {host}: waiting for VRAM: {passed:.0f} s of at most {timeout:.0f} s: {'; '.join(probe['lines'])}")
            time.sleep(min(interval, max(0.1, timeout - passed)))
        result.update(probe)
        if not probe.get("failed") and not probe["clean"] and not self._task.check_mode:
            probe["lines"].insert(0, f"not clean after {passed:.0f} s")
            if args.get("strict"):
                result.update(failed=True, msg=f"{host}: " + "; ".join(probe["lines"]))
        return result
