"""Every published shape's flags, as its golden plan holds them, go through the parser of the SGLang in the engine's image."""
import json
import subprocess

from e2e import support


def test_the_real_parser_accepts_every_shape(deployment):
    engines = {}
    for path in sorted((support.ROOT / "tests" / "unit" / "plan" / "golden").glob("*.json")):
        for container in json.loads(path.read_text())["containers"]:
            if "--" in container["command"]:
                engines[container["name"]] = container["command"][container["command"].index("--") + 1:]
    assert {"mix-mixed-0", "2p1d-prefill-1", "1p-decode4-decode-0", "1p1d-decode-0"} <= set(engines)
    script = (support.ROOT / "tests" / "patches" / "parse_flags.py").read_text()
    done = subprocess.run(["docker", "exec", "-i", deployment.names("decode")[0], "python3", "-c", script], input=json.dumps(list(engines.values())),
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    results = dict(zip(engines, json.loads(done.stdout.splitlines()[-1])))
    wrong = {name: result for name, result in results.items() if not result["ok"] or result["abbreviated"]}
    assert not wrong, wrong
    parsed = results["2p1d-prefill-0"]["values"]
    assert (parsed["tp_size"], parsed["pp_size"], parsed["disaggregation_mode"], parsed["chunked_prefill_size"]) == (1, 4, "prefill", 8192)
    parsed = results["1p1d-decode-0"]["values"]
    assert (parsed["tp_size"], parsed["attn_dp_size"], parsed["speculative_algorithm"], parsed["speculative_num_draft_tokens"]) == (8, 8, "EAGLE", 6)
