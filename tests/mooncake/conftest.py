# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real Mooncake from PyPI, in processes of its own. Wheels are kept in INFERA_TEST_CACHE (default .cache/)."""
from __future__ import annotations

import ctypes.util
import hashlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
CACHE = pathlib.Path(os.environ.get("INFERA_TEST_CACHE") or ROOT / ".cache") / "mooncake"
# SHA-256 of the wheels for CPython 3.11 that the claims in the documentation were checked on.
PINNED = {
    "mooncake_transfer_engine_non_cuda-0.3.12.post1-cp311-cp311-manylinux_2_28_x86_64.whl": "691b4df2a74e32fd9b1877317097d26fd8c5f48692fba920caf5e3a518f36911",
    "mooncake_transfer_engine_non_cuda-0.3.13.post1-cp311-cp311-manylinux_2_28_x86_64.whl": "ca9f668a04ffe648b250fda28b97d0a7da149cb110dec5cf3d166a9e68afc940",
    "mooncake_transfer_engine_rocm-0.3.13.post1-cp311-cp311-manylinux_2_35_x86_64.whl": "2ea80c901c7ef088306349560059f542877b6b74e34693cb498acd7f8891a410",
}


def _load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_rails = _load(ROOT / "tests/unit/rails/conftest.py", "rails_conftest")
trees, tree, facts, run_module = _rails.trees, _rails.tree, _rails.facts, _rails.run_module


@pytest.fixture(scope="session")
def wheel():
    """Return the path of a Mooncake wheel, downloaded once."""

    def get(flavour, version):
        CACHE.mkdir(parents=True, exist_ok=True)
        pattern = "mooncake_transfer_engine_%s-%s-*.whl" % (flavour, version)
        if not list(CACHE.glob(pattern)):
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(CACHE), "--disable-pip-version-check"]
            if flavour == "rocm":
                # Only read, never loaded: its platform tag may be newer than this machine's C library.
                command += ["--only-binary", ":all:", "--platform", "manylinux_2_35_x86_64"]
            subprocess.run(command + ["mooncake-transfer-engine-%s==%s" % (flavour.replace("_", "-"), version)], check=True, timeout=300)
        path, = CACHE.glob(pattern)
        expected = PINNED.get(path.name)
        assert expected in (None, hashlib.sha256(path.read_bytes()).hexdigest()), "%s is not the file that it was" % path.name
        return path

    return get


@pytest.fixture(scope="session")
def site(wheel):
    """A folder with the CPU engine 0.3.13.post1, ready to import."""
    missing = [name for name in ("ibverbs", "numa", "curl") if not ctypes.util.find_library(name)]
    assert not missing, "the real Mooncake needs lib%s: apt-get install --no-install-recommends libibverbs1 libnuma1 libcurl4" % ", lib".join(missing)
    path = wheel("non_cuda", "0.3.13.post1")
    folder = CACHE / path.name[:-len(".whl")]
    if not folder.is_dir():
        partial = folder.with_suffix(".partial%d" % os.getpid())
        with zipfile.ZipFile(path) as archive:
            archive.extractall(partial)
        partial.rename(folder)
    return folder


CONFIG = """
import ctypes, mooncake.engine as engine
ctypes.CDLL(engine.__file__)._ZN8mooncake16dumpGlobalConfigEv()
"""
START = """
import mooncake.engine as engine, sys
print("rc", engine.TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", sys.argv[1]), flush=True)
"""


@pytest.fixture(scope="session")
def mooncake(site):
    """Run a Python text with the real engine and exactly the given MC_* variables; returns the process's result."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MC_", "MOONCAKE_", "NCCL_"))}

    def run(code, env=None, arguments=()):
        return subprocess.run([sys.executable, "-c", code] + list(arguments), env=dict(clean, PYTHONPATH=str(site), **(env or {})),
                              capture_output=True, text=True, timeout=60)

    return run


@pytest.fixture(scope="session")
def global_config(mooncake):
    """Return what the real parser made of an environment: ``({name: text}, log)``."""

    def read(env):
        done = mooncake(CONFIG, env)
        assert done.returncode == 0, done.stderr
        lines = [line.split("] ", 1)[1] for line in done.stderr.splitlines() if "config.cpp" in line and " = " in line]
        return dict(line.split(" = ", 1) for line in lines), done.stderr

    return read


@pytest.fixture(scope="session")
def start(mooncake):
    """Initialise an engine for RDMA; returns ``(return code or None for an exception, log)``."""

    def run(env=None, devices=""):
        done = mooncake(START, env, [devices])
        code = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("rc ")]
        return (code[0] if code else None), done.stderr

    return run
