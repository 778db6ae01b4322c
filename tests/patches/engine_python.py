"""A Python in which SGLang's import chain works on a CPU: INFERA_SGLANG_PYTHON, or a virtual environment in the test cache."""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import yaml
from ansible_collections.infera.serving.plugins.module_utils import image_wheels

from patches.sources import CACHE, ROOT

CPU = ROOT / "images" / "sglang" / "cpu"
ROLE = yaml.safe_load((ROOT / "roles" / "image" / "defaults" / "main.yml").read_text(encoding="utf-8"))
VERSION, GLIBC = "3.11", "2.36"


def engine_python():
    """Path of the interpreter. Built once for each list of pins: a minute or two, 1.5 GB; libibverbs is not needed here."""
    given = os.environ.get("INFERA_SGLANG_PYTHON")
    if given:
        assert os.access(given, os.X_OK), f"INFERA_SGLANG_PYTHON: {given} is no program"
        return pathlib.Path(given)
    lines = (CPU / "requirements-cpu.txt").read_text(encoding="utf-8").splitlines()
    wheels = wheelhouse(image_wheels.pins([*lines, f"torch=={ROLE['image_torch_version']}"]))
    shim = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(CPU.rglob("*.p*")) if path.suffix in (".py", ".pth")))
    target = CACHE / f"sglang-cpu-{wheels.name}-{shim.hexdigest()[:8]}"
    if not (target / ".ready").exists():
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run([_python311(), "-m", "venv", str(target)], check=True)
        python = str(target / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile", "--no-index", "--no-deps",
                        "--find-links", str(wheels), "-r", str(wheels / "requirements.txt")], check=True)
        subprocess.run([python, str(CPU / "install_shim.py")], check=True)
        (target / ".ready").touch()
    return target / "bin" / "python"


def wheelhouse(pinned):
    """Folder with the cpu image's wheels: the image role's own where it has collected one, else one in the test cache."""
    tags = image_wheels.platforms("x86_64", GLIBC)
    name = image_wheels.digest(pinned, VERSION, tags)
    ours = CACHE / "wheelhouse" / name
    for found in (pathlib.Path(ROLE["image_cache_dir"]) / "wheels" / name, ours):
        if os.access(found / "requirements.txt", os.R_OK):
            return found
    ours.parent.mkdir(parents=True, exist_ok=True)
    fresh = pathlib.Path(tempfile.mkdtemp(dir=ours.parent))
    listing = fresh / "requirements.txt"
    listing.write_text("".join(f"{one}=={version}\n" for one, version in pinned), encoding="utf-8")
    arguments = image_wheels.pip_arguments(str(listing), str(fresh), VERSION, tags, [], [])
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, image_wheels.explain(done.stdout + done.stderr, VERSION)
    fresh.rename(ours)
    return ours


def _python311():
    """The list of requirements is for CPython 3.11."""
    if sys.version_info[:2] == (3, 11):
        return sys.executable
    found = shutil.which("python3.11")
    assert found, "tests/patches needs python3.11 or INFERA_SGLANG_PYTHON"
    return found


def run(python, *argv, sites=(), check=True, stdin=None, **env):
    """Run the engine's Python with unpacked wheels in front of its own packages; returns the finished process."""
    with tempfile.TemporaryDirectory() as home:
        # Compiled modules are kept beside the cache: importing SGLang uncompiled doubles the time of each run.
        environment = {"PATH": os.environ["PATH"], "HOME": home, "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1",
                       "PYTHONPYCACHEPREFIX": str(CACHE / "pycache"), "HF_HUB_OFFLINE": "1", **env}
        if sites:
            environment["PYTHONPATH"] = os.pathsep.join(map(str, sites))
        done = subprocess.run([str(python), *map(str, argv)], input=stdin, env=environment, capture_output=True, text=True, timeout=400)
    assert not check or done.returncode == 0, f"{argv}: exit {done.returncode}\n{done.stderr[-3000:]}"
    return done
