"""A Python in which SGLang's import chain works on a CPU: INFERA_SGLANG_PYTHON, or a virtual environment in the test cache."""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from patches.sources import CACHE, ROOT

CPU = ROOT / "images" / "sglang" / "cpu"
TORCH = "torch==2.13.0"


def engine_python():
    """Path of the interpreter. Built once for each list of requirements (about two minutes, 2 GB); libibverbs is not needed here."""
    given = os.environ.get("INFERA_SGLANG_PYTHON")
    if given:
        assert os.access(given, os.X_OK), f"INFERA_SGLANG_PYTHON: {given} is no program"
        return pathlib.Path(given)
    requirements = CPU / "requirements-cpu.txt"
    recipe = hashlib.sha256(TORCH.encode() + b"".join(path.read_bytes() for path in sorted(CPU.rglob("*")) if path.suffix in (".py", ".txt", ".pth")))
    target = CACHE / f"sglang-cpu-{recipe.hexdigest()[:12]}"
    if not (target / ".ready").exists():
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run([_python311(), "-m", "venv", str(target)], check=True)
        pip = [str(target / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, TORCH], check=True)
        subprocess.run([*pip, "--no-deps", "-r", str(requirements)], check=True)
        subprocess.run([str(target / "bin" / "python"), str(CPU / "install_shim.py")], check=True)
        (target / ".ready").touch()
    return target / "bin" / "python"


def _python311():
    """The list of requirements is for CPython 3.11."""
    if sys.version_info[:2] == (3, 11):
        return sys.executable
    found = shutil.which("python3.11")
    assert found, "tests/patches needs python3.11 or INFERA_SGLANG_PYTHON"
    return found


def run(python, *argv, sites=(), check=True, **env):
    """Run the engine's Python with unpacked wheels in front of its own packages; returns the finished process."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"PATH": os.environ["PATH"], "HOME": home, "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
                       "HF_HUB_OFFLINE": "1", **env}
        if sites:
            environment["PYTHONPATH"] = os.pathsep.join(map(str, sites))
        done = subprocess.run([str(python), *map(str, argv)], env=environment, capture_output=True, text=True, timeout=240)
    assert not check or done.returncode == 0, f"{argv}: exit {done.returncode}\n{done.stderr[-3000:]}"
    return done
