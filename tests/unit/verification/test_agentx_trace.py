"""The trace generator: seeded, inside the model's context, and near the published sizes."""
import statistics

import pytest
from ansible_collections.infera.serving.plugins.module_utils import agentx_trace as t

SMALL = t.TraceScale(tokens=0.05, outputs=0.1, time=0.05, max_requests=40, context_limit=60_000)


def test_the_same_seed_gives_the_same_trace():
    assert t.trace(3, 42, "m", scale=SMALL) == t.trace(3, 42, "m", scale=SMALL)
    assert t.trace(3, 42, "m", scale=SMALL) != t.trace(3, 43, "m", scale=SMALL)


def test_every_prompt_fits_the_context(tmp_path):
    written = t.write(str(tmp_path), 30, 42, "m", scale=SMALL)
    assert written["longest"] < 60_000 and len(list(tmp_path.iterdir())) == 30


def test_a_context_without_room_is_refused(tmp_path):
    with pytest.raises(t.TraceError, match="lower tokens="):
        t.write(str(tmp_path), 1, 42, "m", scale=t.TraceScale(tokens=1.0, context_limit=8192))


def test_a_turn_repeats_what_the_one_before_sent():
    turns = [r for r in t.trace(0, 42, "m", scale=SMALL)["requests"] if r["type"] == "s"]
    grown = sum(b["hash_ids"][: len(a["hash_ids"])] == a["hash_ids"] for a, b in zip(turns, turns[1:]))
    assert grown >= 0.8 * (len(turns) - 1)


def test_full_size_laws_are_near_the_published_corpus():
    requests = [r for i in range(120) for r in t.flat(t.trace(i, 42, "m"))]
    assert 60_000 < statistics.median(r["in"] for r in requests) < 130_000
    assert 250 < statistics.median(r["out"] for r in requests) < 420
    assert max(r["in"] + r["out"] for r in requests) < 1_048_576
