"""The published AgentX client in an environment of its own, and what it needs to run without a network."""
import hashlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

from kv.models import make_model

ROOT = pathlib.Path(__file__).resolve().parents[3]
PINS = ROOT / "roles" / "agentx" / "files" / "constraints.txt"
CLIENT = "agentx-harness==1.0.12"


def client():
    """Folder of the client's programs; installed under the role's pins the first time, which takes about a minute."""
    cache = pathlib.Path(os.environ.get("INFERA_TEST_CACHE", ROOT / ".cache"))
    venv = cache / f"agentx-client-{hashlib.sha256(PINS.read_bytes() + CLIENT.encode()).hexdigest()[:12]}"
    if not (venv / ".complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        subprocess.run([venv / "bin" / "pip", "install", "-q", "--disable-pip-version-check", "-c", PINS, CLIENT], check=True, timeout=600,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        (venv / ".complete").touch()
    return venv / "bin"


def tokenizer(folder):
    """The tests' small byte-level tokenizer, as a folder that transformers loads too."""
    make_model("glm", folder)
    return folder


def traces(folder, count, model, **scale):
    """Synthetic sessions in the Weka format, from the collection's own generator; what was written, in tokens and requests."""
    spec = importlib.util.spec_from_file_location("agentx_trace", ROOT / "plugins" / "module_utils" / "agentx_trace.py")
    generator = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = generator
    spec.loader.exec_module(generator)
    return generator.write(str(folder), count, 42, model, scale=generator.TraceScale(**scale))


def replay(folder, router, model, tokenizer_folder, trace_folder, lanes, seconds):
    """Run the client as InferenceX does, without its session headers: X-Correlation-ID, which it always sends, is all that names a session.

    Returns (exit status, output, records of the measured phase and of the warm-up).
    """
    programs = client()
    env = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), "HF_HOME": str(folder / "hf"), "AIPERF_DATASET_WEKA_LIVE_ASSISTANT_RESPONSES": "0"}
    argv = [programs / "agentx", "profile", "--url", router, "--model", model, "--tokenizer", tokenizer_folder, "--input-file", trace_folder,
            "--custom-dataset-type", "weka_trace", "--concurrency", str(lanes), "--benchmark-duration", str(seconds), "--random-seed", "42",
            "--warmup-requests-per-lane", "2", "--unsafe-override", "--no-gpu-telemetry", "--use-server-token-count", "--server-metrics",
            f"{router}/metrics", "--output-artifact-dir", folder / "out", "--ui", "simple"]
    done = subprocess.run([str(a) for a in argv], env=env, cwd=folder, capture_output=True, text=True, timeout=seconds + 480)
    exported = folder / "out" / "profile_export.jsonl"
    records = [json.loads(line) for line in exported.read_text().splitlines()] if exported.exists() else []
    return done.returncode, done.stdout + done.stderr, records
