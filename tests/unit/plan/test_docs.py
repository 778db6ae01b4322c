"""docs/inventory.md tells what the code says; `.venv/bin/python ci/option_tables.py` writes it anew."""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_the_option_tables_are_current():
    done = subprocess.run([sys.executable, str(ROOT / "ci" / "option_tables.py"), "--check"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
