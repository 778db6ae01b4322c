"""What the real functions do: each fault shows on the stock sources and is gone on the patched ones. Expected values typed by hand."""
import json
import pathlib

import pytest

from patches import engine_python, sources
from patches.conftest import apply

ROWS = "AssertionError: rows of the page table and of top-k differ"


def test_page_table_rows(observed):
    stock, patched = (observed[name]["dsa-page-table-rows"] for name in ("stock", "patched"))
    assert stock["equal"] == patched["equal"] == {"rows": [0, 1, 2, 3], "same": True}
    assert {name for name, seen in stock.items() if seen == ROWS} == set(stock) - {"equal"}
    assert {name: seen["rows"] for name, seen in patched.items()} == {
        "equal": [0, 1, 2, 3],
        "tokens-per-request": [0, 0, 0, 0, 1, 1, 1, 1],
        "padded": [0, 1, 2, 2, 2, 2, 2, 2],
        "trimmed": [0, 1],
        # a rule by shape alone would give 0,0,0,0,1,1,1,1: the second request's token read through the first one's table
        "two-requests-padded-to-eight": [0, 1, 1, 1, 1, 1, 1, 1],
        "idle": [0, 0, 0, 0],
    }


def test_host_syncs(observed):
    stock, patched = (observed[name]["dsa-host-syncs"] for name in ("stock", "patched"))
    assert stock["without-mirror"] == {"copies": ["item", "cpu", "cpu"], "width": 11}
    assert patched["without-mirror"] == {"copies": [], "width": 64}
    assert patched["with-mirror"] == {"copies": [], "width": 11}


def test_indexer_rows(observed):
    stock, patched = (observed[name]["dsa-indexer-rows"] for name in ("stock", "patched"))
    same = {"q": 4, "weights": 4, "lengths": 4, "rows": 4, "empty": 0}
    padded = {"q": 5, "weights": 5, "lengths": 5, "rows": 8, "empty": 3}
    assert stock["equal"] == patched["equal"] == same
    assert stock["another-platform"] == patched["another-platform"] == padded
    for name in ("padded", "idle", "clipped"):
        assert stock[name] == "AssertionError: lengths.size(0) == B"
    assert patched["padded"] == padded
    assert patched["idle"] == {"q": 0, "weights": 0, "lengths": 0, "rows": 8, "empty": 8}
    assert patched["clipped"] == patched["clipped-with-init-tokens"] == {"q": 1, "weights": 1, "lengths": 1, "rows": 1, "empty": 0}
    assert patched["wrong-result"] == "AssertionError: top-k has 6 rows for 5 real queries"


def test_prefill_wait_event(observed):
    stock, patched = (observed[name]["prefill-wait-event"] for name in ("stock", "patched"))
    for site in ("pipeline", "overlap"):
        assert stock[site] == {"sends": [{"event": False, "forward-stream": False, "last": False}], "order": ["send"]}
        assert patched[site] == {"sends": [{"event": True, "forward-stream": True, "last": False}], "order": ["record", "send"]}
    assert stock["transport"] == patched["transport"] == ["event", None], "the transport waits for the event once"


def test_kv_metrics(observed):
    stock, patched = (observed[name]["kv-metrics-noblock"] for name in ("stock", "patched"))
    assert stock["no-reader"] == {"failure": "Again: Resource temporarily unavailable", "waited": True}
    assert patched["no-reader"] == {"failure": None, "waited": False}
    assert stock["reader"] == patched["reader"] == 64
    assert stock["full-queue"] == {"failures": 3, "dropped": None}
    assert patched["full-queue"] == {"failures": 0, "dropped": 3}
    assert patched["other-error"] == "ZMQError", "any error but a full queue surfaces"


def test_mla_absorb(observed):
    stock, patched = (observed[name]["mla-absorb-config"] for name in ("stock", "patched"))
    for rows in ("1", "16", "64", "256", "257"):
        assert stock[rows]["configs"] == ([None, None] if rows == "257" else ["given", "given"])
        assert patched[rows]["configs"] == [None, None]
        assert patched[rows]["others"] == stock[rows]["others"] == [[128, False, True, None], [128, True, True, [int(rows), 64, 128]]]


def test_pipeline_parallel_loading(observed):
    stock, patched = (observed[name]["pp-embed-dim"] for name in ("stock", "patched"))
    no_dim = "AttributeError: 'Identity' object has no attribute 'embedding_dim'"
    assert stock["middle-256-6144"] == stock["middle-256-7168"] == no_dim
    assert stock["first-256-7168"] == "AttributeError: 'Identity' object has no attribute 'mlp'"
    whole = 4 * 256 * (2 * 2048 + 256)
    assert stock["alone-256-7168"] == patched["alone-256-7168"] == whole
    assert patched["first-256-7168"] == patched["middle-256-7168"] == whole // 2, "each stage counts its own two layers of four"
    for name in ("alone-256-6144", "first-256-6144", "middle-256-6144", "alone-160-7168", "first-160-7168", "middle-160-7168"):
        assert patched[name] == 0


def test_write_back_is_routed_per_pool(observed):
    """The gates disagree on HIP, and do no harm: each pool's indices go where its own kernel takes them."""
    for name in ("stock", "patched"):
        seen = observed[name]["hicache-write-back"]
        assert seen["gates"] == {"hip": {"mla": True, "indexer": False}, "cuda": {"mla": True, "indexer": True}}
        assert seen["routing"] == {"placed": {"mla": "host", "indexer": "device"}, "per-pool": True}


def test_write_back_without_routing(python, tmp_path):
    """On sources that route all pools alike the patch makes both gates say no on HIP, and leaves CUDA alone."""
    from patches.test_contract import tree
    site = tree("hicache-write-back", "0.5.22", tmp_path)
    script = pathlib.Path(__file__).parent / "behaviours" / "observe.py"
    before = json.loads(engine_python.run(python, script, site / "sglang", "hicache-write-back").stdout)["hicache-write-back"]["gates"]
    assert apply(site, "--only", "hicache-write-back").returncode == 0
    after = json.loads(engine_python.run(python, script, site / "sglang", "hicache-write-back").stdout)["hicache-write-back"]["gates"]
    assert before["hip"] == {"mla": True, "indexer": False}
    assert after == {"hip": {"mla": False, "indexer": False}, "cuda": {"mla": True, "indexer": True}}


def check_radix(stock, patched):
    refused = "ValueError: --disaggregation-decode-enable-radix-cache is incompatible with"
    if stock is not None:
        assert stock["eagle"].startswith(f"{refused} speculative decoding") and not stock["warned"]
    assert patched["none"] is patched["eagle"] is patched["dspark"] is None
    assert patched["hisparse"].startswith(f"{refused} --enable-hisparse") and patched["fake"].startswith(f"{refused} --disaggregation-transfer-backend fake")


def test_decode_radix_with_speculation(version, observed):
    stock, patched = (observed[name]["decode-radix-spec"] for name in ("stock", "patched"))
    check_radix(stock if version == "0.5.22" else None, patched)
    assert patched["warned"] is (version == "0.5.22"), "newer sources have no gate and need no warning"


def test_decode_radix_gate_of_the_old_wheel(python, tmp_path):
    site = sources.copied("0.5.18", tmp_path, ["srt/arg_groups/pd_disaggregation_hook.py"])
    script = pathlib.Path(__file__).parent / "behaviours" / "observe.py"
    stock = json.loads(engine_python.run(python, script, site / "sglang", "decode-radix-spec").stdout)["decode-radix-spec"]
    assert apply(site, "--only", "decode-radix-spec").returncode == 0
    check_radix(stock, json.loads(engine_python.run(python, script, site / "sglang", "decode-radix-spec").stdout)["decode-radix-spec"])


def test_fixes_that_are_upstream(observed):
    for name in ("stock", "patched"):
        assert observed[name]["upstream"] == {"votes": [True, True, True, True, False], "no-operator": "ImportError", "operator": [4711]}


@pytest.fixture(scope="module")
def responses(python, version, stock, patched):
    """tests/patches/responses_stream.py on stock and patched sources: {"stock": (exit status, report), ...}"""
    script = pathlib.Path(__file__).parent / "responses_stream.py"
    more = [sources.unpacked("openai", "2.8.0")] if version == "0.5.23" else []
    runs = {name: engine_python.run(python, script, sites=[site, *more], check=False) for name, site in (("stock", stock), ("patched", patched[0]))}
    for name, done in runs.items():
        assert done.stdout, f"{name}: {done.stderr[-3000:]}"
    return {name: (done.returncode, json.loads(done.stdout)) for name, done in runs.items()}


def check_responses(responses):
    """{'stock': (exit status, report), 'patched': ...}: stock loses what patched delivers."""
    code, stock = responses["stock"]
    assert code == 1 and not stock["patched"]
    lost = {name: [call["done"] for call in one["calls"]] for name, one in stock["scenarios"].items() if not one["complete"] and name != "qwen25-cut"}
    assert lost == {"with-the-last-chunk": [""], "in-pieces": ['{"city": '], "two-calls": ['{"city": "Pa', '{"cit'], "text-of-the-parser": ['{"ci'],
                    "custom-tool": ["l"], "aborted": ['{"city": ']}
    code, patched = responses["patched"]
    assert code == 0 and patched["patched"]
    for name, one in patched["scenarios"].items():
        assert one["consistent"], name
        assert one["complete"] or name == "qwen25-cut", name
        assert one["sequence"] == list(range(len(one["sequence"]))), name
        for call in one["calls"]:
            if name not in ("custom-tool", "does-not-extend", "no-array", "beyond-the-array"):
                json.loads(call["done"])


def test_responses_stream_delivers_what_the_parser_knows(responses):
    check_responses(responses)


def test_responses_stream_adds_one_delta_and_changes_nothing_else(responses):
    stock, patched = (responses[name][1]["scenarios"] for name in ("stock", "patched"))
    for name, one in patched.items():
        before = [event for event in stock[name]["events"] if not event.endswith(".delta")]
        assert [event for event in one["events"] if not event.endswith(".delta")] == before, name
        for call, old in zip(one["calls"], stock[name]["calls"], strict=True):
            assert call["deltas"][:len(old["deltas"])] == old["deltas"], "what was streamed is never taken back"
            assert len(call["deltas"]) - len(old["deltas"]) == (call["done"] != old["done"]), name
    for name in ("no-call", "complete", "does-not-extend", "no-array", "beyond-the-array"):
        assert patched[name] == stock[name], name


def test_responses_stream_through_a_real_detector(responses):
    """A call that was cut inside its arguments: the qwen25 detector parses a number that it never hands out."""
    stock, patched = (responses[name][1]["scenarios"]["qwen25-cut"]["calls"] for name in ("stock", "patched"))
    assert [call["done"] for call in stock] == ['{"city": "Paris"']
    assert [call["done"] for call in patched] == ['{"city": "Paris", "days": 3}']
