"""Write fixtures/golden.json from the real SGLang 0.5.22 wheel.

    INFERA_SGLANG_PYTHON=/path/to/python-with-sglang-0.5.22 python tests/kv/wheel/regenerate.py

Run with the router's interpreter from router_py/; the wheel's is started as a subprocess. About 30 s.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from kv import cases, models  # noqa: E402


def questions(base: pathlib.Path) -> dict:
    """What the oracle is asked; the model folders are made below `base`."""
    prompts = list(cases.prompt_cases().values())
    folders = [str(models.make_model(name, base / name)) for name in models.NAMES]
    return {
        "prompts": dict.fromkeys(folders, prompts),
        "hashes": cases.hash_cases(),
        "system": list(cases.system_cases().values()),
        "batches": None,
    }


def golden(run: Callable[[pathlib.Path, str], str]) -> dict:
    """Everything the tests compare with, straight from the wheel. `run(folder, stdin)` starts the oracle, with `folder` readable, for its stdout."""
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder)
        base.chmod(0o755)
        answers = json.loads(run(base, json.dumps(questions(base))))
        made = {name: answers["prompts"][str(base / name)] for name in models.NAMES}
    return {
        "prompts": {name: dict(zip(cases.prompt_cases(), rows)) for name, rows in made.items()},
        "hashes": answers["hashes"],
        "system": dict(zip(cases.system_cases(), answers["system"])),
        "batches": answers["batches"],
    }


def by_python(python: str) -> Callable[[pathlib.Path, str], str]:
    """Run the oracle by an interpreter that has the wheel; its standard error is shown only when it fails."""

    def run(base: pathlib.Path, stdin: str) -> str:
        environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run([python, str(HERE / "oracle.py")], input=stdin, capture_output=True, text=True, env=environment, timeout=600)
        if done.returncode:
            raise RuntimeError(f"the oracle failed: {done.stderr[-3000:]}")
        return done.stdout

    return run


if __name__ == "__main__":
    made = golden(by_python(os.environ["INFERA_SGLANG_PYTHON"]))
    (HERE.parent / "fixtures" / "golden.json").write_text(json.dumps(made, ensure_ascii=True, separators=(",", ":"), sort_keys=True) + "\n")
    print({key: len(value) for key, value in made.items()})
