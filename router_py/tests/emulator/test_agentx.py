"""The published AgentX client through the real router onto emulated engines: two prefills and eight decode ranks."""
import json
import urllib.request
from collections import Counter, defaultdict

import pytest
from agentx_client import replay, tokenizer, traces
from emulator_stack import stack, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FLAGS = ["--router-policy", "kv-aware", "--kv-prefill-overlap-weight", "20", "--kv-decode-overlap-weight", "2", "--session-affinity", "prefill",
         "--decode-input-demand", "on", "--decode-request-weight", "1000000"]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def test_a_replay_has_no_error_usage_everywhere_and_one_prefill_per_conversation(tmp_path):
    model = tokenizer(tmp_path / "model")
    traces(tmp_path / "traces", 8, "emulated", tokens=0.05, outputs=0.1, time=0.05, max_requests=40, context_limit=60_000)
    with stack(tmp_path, "2p1d-c176", 2, 10.0, 1.0, model, True, FLAGS, interval=8) as (router, decode):
        code, output, records = replay(tmp_path, router, "emulated", model, tmp_path / "traces", lanes=6, seconds=20)
        wait_for(lambda: not json.loads(get(f"{router}/v1/admin/demand"))["leases"], 5.0, "all leases are released")
        page = get(f"{router}/metrics")
        demand = json.loads(get(f"{router}/v1/admin/demand"))
        served = {line[0]: line[1:] for line in json.loads(get(f"{decode}/emulator/requests"))["requests"]}
    assert code == 0, output[-3000:]
    measured = [r for r in records if r["metadata"]["benchmark_phase"] == "profiling"]
    assert len(measured) > 15 and len(records) > len(measured), "warm-up and measured requests"
    assert [r["error"] for r in records if r.get("error")] == []
    by_conversation, prompt, cached = defaultdict(set), 0, 0
    for record in records:
        prefill, rank, prompt_tokens, cached_tokens, output_tokens = served[record["metadata"]["x_request_id"]]
        usage = {name: record["metrics"][f"usage_{name}_tokens"]["value"] for name in ("prompt", "completion", "prompt_cache_read")}
        assert usage == {"prompt": prompt_tokens, "completion": output_tokens, "prompt_cache_read": cached_tokens}
        by_conversation[record["metadata"]["x_correlation_id"]].add(prefill)
        prompt, cached = prompt + prompt_tokens, cached + cached_tokens
    turns = Counter(r["metadata"]["x_correlation_id"] for r in records)
    print(f"{len(records)} requests of {len(turns)} conversations, {cached / prompt:.0%} of prompt tokens cached; {demand['decisions']}")
    assert max(turns.values()) > 2 and all(len(prefills) == 1 for prefills in by_conversation.values())
    assert set.union(*by_conversation.values()) == {0, 1}, "both prefills are in use"
    assert cached / prompt > 0.8
    assert demand["decisions"]["fallback"] == 0 and all(t["requests"] == t["tokens"] == 0 for t in demand["targets"])
    assert len({rank for _prefill, rank, *_rest in served.values()}) == 8
    errors = [line for line in page.splitlines() if line.startswith("infera_request_errors_total{")]
    assert errors == []
