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

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from kv import cases, models  # noqa: E402


def ask(python: str, *arguments: str, cases: object = None) -> object:
    """The oracle's answer; its standard error is shown only when it fails."""
    environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [python, str(HERE / "oracle.py"), *arguments], input=json.dumps(cases), capture_output=True, text=True, env=environment, timeout=300
    )
    if done.returncode:
        raise RuntimeError(f"the oracle failed: {done.stderr[-3000:]}")
    return json.loads(done.stdout)


def golden(python: str) -> dict:
    """Everything the tests compare with, straight from the wheel."""
    prompts, bodies = cases.prompt_cases(), cases.system_cases()
    made: dict = {"prompts": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("glm", "plain"):
            model = models.make_model(name, pathlib.Path(folder) / name)
            made["prompts"][name] = dict(zip(prompts, ask(python, "prompts", str(model), cases=list(prompts.values()))))
    made["hashes"] = ask(python, "hashes", cases=cases.hash_cases())
    made["system"] = dict(zip(bodies, ask(python, "system", cases=list(bodies.values()))))
    made["batches"] = ask(python, "batches")
    return made


if __name__ == "__main__":
    made = golden(os.environ["INFERA_SGLANG_PYTHON"])
    (HERE.parent / "fixtures" / "golden.json").write_text(json.dumps(made, ensure_ascii=True, separators=(",", ":"), sort_keys=True) + "\n")
    print({key: len(value) for key, value in made.items()})
