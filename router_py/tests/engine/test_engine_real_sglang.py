"""`infera-engine --check` with the real SGLang 0.5.22: its parser and its resolver say what comes out. No server is started."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from engine.engine_rig import DECODE, SOURCE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sglang():
    """INFERA_SGLANG_PYTHON, or the environment that tests/patches keeps in the test cache."""
    given = os.environ.get("INFERA_SGLANG_PYTHON")
    kept = sorted(pathlib.Path(os.environ.get("INFERA_TEST_CACHE", ".cache")).glob("sglang-cpu-*/.ready"))
    if not given and not kept:
        pytest.skip("no SGLang: INFERA_SGLANG_PYTHON is not set and the test cache has none (make test makes one in its stage patches)")
    return given or str(kept[-1].parent / "bin" / "python")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The configuration of a tiny model; a check loads no weights."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": 2, "head_dim": 16, "vocab_size": 256, "max_position_embeddings": 512,
        "torch_dtype": "bfloat16", "rms_norm_eps": 1e-6}))
    return folder


@pytest.fixture
def check(sglang, model, tmp_path):
    def run(*args, own=(), code=0):
        env = {**os.environ, "PYTHONPATH": str(SOURCE), "XDG_CACHE_HOME": str(tmp_path), "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run([sys.executable, "-m", "infera_engine.cli", "--python", sglang, "--allow-loopback", "--check", *own, "--",
                               "--model-path", str(model), "--device", "cpu", "--host", "127.0.0.1", "--port", "31000", *args],
                              env=env, capture_output=True, text=True, timeout=100)
        assert done.returncode == code, done.stderr[-3000:]
        return done.stdout.splitlines(), done.stderr

    return run


def test_the_four_old_spellings_and_dp_attention_are_what_the_parser_knows(check):
    argv, told = check(*DECODE, "--cuda-graph-max-bs", "8", "--cuda-graph-bs", "1", "2", "--nsa-prefill-backend=tilelang", "--nsa-decode-backend",
                       "tilelang", "--tp-size", "2", "--dp-size", "2", "--enable-dp-attention")
    text = " ".join(argv)
    for piece in ("--cuda-graph-max-bs-decode 8", "--cuda-graph-bs-decode 1 2", "--dsa-prefill-backend=tilelang", "--dsa-decode-backend tilelang",
                  "--attn-dp-size 2", "--enable-metrics"):
        assert f" {piece}" in text
    assert "--enable-dp-attention" not in text and "--dp-size" not in text and "--kv-events-config" not in text
    assert told.count(" in this SGLang") == 5


def test_a_flag_that_sglang_does_not_know_is_one_line(check):
    _, told = check("--no-such-flag", code=2)
    assert "--no-such-flag" in told.strip().splitlines()[-1]


@pytest.mark.parametrize("args, own, added, word", [
    ((), (), False, "KV events are off"),
    (("--speculative-algorithm", "EAGLE"), ("--kv-events", "on"), False, "speculation (EAGLE) is on"),
    (("--attention-backend", "torch_native"), ("--kv-events", "on"), True, "SGLang accepts it"),
    (("--attention-backend", "torch_native", "--disable-radix-cache"), ("--kv-events", "on"), False, "--disable-radix-cache"),
])
def test_the_decode_radix_cache_is_sglangs_decision(check, args, own, added, word):
    argv, told = check(*DECODE, "--disaggregation-decode-retraction-backup", "none", *args, own=own)
    assert word in told
    assert ("--disaggregation-decode-enable-radix-cache" in argv) == added
