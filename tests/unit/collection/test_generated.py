"""What is generated is current: a stale table fails, with the command that writes it anew."""
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("script", ["ci/published_table.py", "ci/engine_reference.py", "ci/router_reference.py"])
def test_current(script):
    done = subprocess.run([sys.executable, str(ROOT / script), "--check"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
