# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of the fresh machine's proof."""
from __future__ import annotations

import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "ci" / "step_times.py"


def test_plays_and_tasks_are_timed_and_the_output_passes_through():
    output = "make output\n\nPLAY [Images] ***\n\nTASK [image : Build] ***\nok: [localhost]\nTASK [image : Push] ***\n\nPLAY [Smoke] ***\n"
    done = subprocess.run([sys.executable, SCRIPT, "--first", "venv", "--top", "1"], input=output, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(output)
    table = done.stdout[len(output):].split()
    assert [word for word in table if word in ("venv", "Images", "Smoke", "all")] == ["venv", "Images", "Smoke", "all"]
    assert "Build" in done.stdout[len(output):] or "Push" in done.stdout[len(output):]
