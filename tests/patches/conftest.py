"""Fixtures: pristine and patched sources, the engine's Python, and what the real functions do on each."""
import json
import pathlib
import shutil
import subprocess
import sys

import pytest

from patches import engine_python as engine
from patches import sources

PATCHES = sources.ROOT / "images" / "sglang" / "patches"
VERSIONS = ("0.5.22", "0.5.23")


def apply(site, *options):
    """Run the applier on one site-packages folder; returns the finished process."""
    return subprocess.run([sys.executable, "-B", str(PATCHES / "apply.py"), "--site-packages", str(site), *options], capture_output=True, text=True)


def contents(site):
    """Relative path -> bytes of every Python source below a folder."""
    return {path.relative_to(site).as_posix(): path.read_bytes() for path in pathlib.Path(site).rglob("*.py")}


@pytest.fixture(scope="session")
def python():
    return engine.engine_python()


@pytest.fixture(scope="session", params=VERSIONS)
def version(request):
    return request.param


@pytest.fixture(scope="session")
def stock(version):
    """Site-packages folder of the pristine wheel, read-only."""
    return sources.unpacked("sglang", version)


@pytest.fixture(scope="session")
def patched(version, tmp_path_factory):
    """(site-packages folder, report) of a full copy after the applier ran on it."""
    site = sources.copied(version, tmp_path_factory.mktemp(f"patched-{version}"))
    done = apply(site, "--json", "--expect", version)
    assert done.returncode == 0, done.stdout + done.stderr
    yield site, json.loads(done.stdout)
    shutil.rmtree(sources.CACHE / "pycache" / str(site).lstrip("/"), ignore_errors=True)


@pytest.fixture(scope="session")
def observed(python, stock, patched):
    """What the real functions do: {"stock": {...}, "patched": {...}}, see behaviours/observe.py."""
    script = pathlib.Path(__file__).parent / "behaviours" / "observe.py"
    return {name: json.loads(engine.run(python, script, site / "sglang").stdout) for name, site in (("stock", stock), ("patched", patched[0]))}
