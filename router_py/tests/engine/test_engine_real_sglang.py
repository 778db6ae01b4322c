"""The supervisor's questions answered by the real SGLang 0.5.22: its parser and its resolver, imported once. No server is started."""

import json
import os
import pathlib
import subprocess

import pytest
from engine.engine_rig import DECODE, SOURCE

pytestmark = pytest.mark.slow

RADIX = "--disaggregation-decode-enable-radix-cache"
NONE = ("--disaggregation-decode-retraction-backup", "none", "--attention-backend", "torch_native")
QUESTIONS = {
    "old": ("auto", *DECODE, "--cuda-graph-max-bs", "8", "--cuda-graph-bs", "1", "2", "--nsa-prefill-backend=tilelang", "--nsa-decode-backend",
            "tilelang", "--tp-size", "2", "--dp-size", "2", "--enable-dp-attention"),
    "unknown": ("auto", "--no-such-flag"),
    "allowed": ("on", *DECODE, *NONE),
    "no events": ("auto", *DECODE, *NONE),
    "speculation": ("on", *DECODE, *NONE, "--speculative-algorithm", "EAGLE"),
    "refused": ("on", *DECODE, *NONE, "--disaggregation-transfer-backend", "fake"),
}
ASK = """
import contextlib, json, sys
from infera_engine import probe
from infera_engine.kvplane import KvPlaneError
from infera_engine.translate import TranslationError
answers = {}
with contextlib.redirect_stdout(sys.stderr):
    for name, (events, argv) in json.load(sys.stdin).items():
        own = {"kv_events": events, "kv_events_port": None, "kv_replay_port": None, "kv_topic": "kv-events"}
        try:
            answers[name] = probe.answer(argv, own)
        except (probe._Refused, KvPlaneError, TranslationError) as error:
            answers[name] = {"error": str(error)}
print(json.dumps(answers, default=str))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """By INFERA_SGLANG_PYTHON, or the environment that tests/patches keeps in the test cache."""
    given = os.environ.get("INFERA_SGLANG_PYTHON")
    kept = sorted(pathlib.Path(os.environ.get("INFERA_TEST_CACHE", ".cache")).glob("sglang-cpu-*/.ready"))
    if not given and not kept:
        pytest.skip("no SGLang: INFERA_SGLANG_PYTHON is not set and the test cache has none (make test makes one in its stage patches)")
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": 2, "head_dim": 16, "vocab_size": 256, "max_position_embeddings": 512,
        "torch_dtype": "bfloat16", "rms_norm_eps": 1e-6}))
    base = ["--model-path", str(folder), "--device", "cpu", "--host", "127.0.0.1", "--port", "31000"]
    done = subprocess.run([given or str(kept[-1].parent / "bin" / "python"), "-c", ASK], capture_output=True, text=True, timeout=280,
                          input=json.dumps({name: (events, [*base, *argv]) for name, (events, *argv) in QUESTIONS.items()}),
                          env={**os.environ, "PYTHONPATH": str(SOURCE), "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_four_old_spellings_and_dp_attention_are_what_the_parser_knows(answers):
    text = " ".join(answers["old"]["argv"])
    for piece in ("--cuda-graph-max-bs-decode 8", "--cuda-graph-bs-decode 1 2", "--dsa-prefill-backend=tilelang", "--dsa-decode-backend tilelang",
                  "--attn-dp-size 2", "--enable-metrics"):
        assert f" {piece}" in text
    assert "--enable-dp-attention" not in text and "--dp-size" not in text and "--kv-events-config" not in text
    assert sum(note.endswith("in this SGLang") for note in answers["old"]["notes"]) == 5
    assert answers["old"]["values"]["attn_dp_size"] == 2 and answers["old"]["version"] == "0.5.22"


def test_a_flag_that_sglang_does_not_know_is_one_line(answers):
    assert "--no-such-flag" in answers["unknown"]["error"] and "\n" not in answers["unknown"]["error"]


@pytest.mark.parametrize("name, word", [
    ("no events", "KV events are off"), ("speculation", "speculation (EAGLE) is on"), ("refused", "SGLang refuses it"),
    ("allowed", "decode radix cache on: SGLang accepts it")])
def test_the_decode_radix_cache_is_sglangs_decision(answers, name, word):
    assert any(word in note for note in answers[name]["notes"]), answers[name]["notes"]
    assert (RADIX in answers[name]["argv"]) == (name == "allowed")
