# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module of the same name, and compares the host's clock with the controller's.

A bare `date` takes one round trip, so it can be placed in time far better than a module: the host's time lies between the
moments of sending and receiving, and the quickest of three tries counts.
"""
from __future__ import annotations

import time

from ansible.plugins.action import ActionBase

TRIES = 3


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        result.update(self._execute_module(module_args=self._task.args, task_vars=task_vars))
        if not result.get("failed"):
            clock = self._clock()
            if clock:
                result["clock"] = clock
        return result

    def _clock(self):
        best = None
        for _number in range(TRIES):
            sent = time.time()
            answer = self._low_level_execute_command("date +%s.%N", sudoable=False)
            received = time.time()
            try:
                there = float((answer.get("stdout") or "").strip().splitlines()[-1])
            except (IndexError, ValueError):
                continue
            unsure = (received - sent) / 2
            if best is None or unsure < best["uncertainty_s"]:
                best = {"offset_s": round(there - (sent + received) / 2, 3), "uncertainty_s": round(unsure, 3)}
        return best
