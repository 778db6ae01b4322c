"""Accuracy runs: each way to fail has its own reason, a clean run has none."""
import json

import pytest
from ansible_collections.infera.serving.plugins.module_utils import evaluation as e

GOOD = "Each rail carries 400 Gb/s, so eight rails carry 8 * 400 = 3200 Gb/s.\n#### 3200"
BAD = ["\ufffd\ufffd 12 的的 的", "the " * 60, "}{)(*&^%$#@!}{)(*&^%$#@!}{)(*&^%$#@!}{)(*&^%$#@!", "数据数据数据数据数据 mixed with 数据数据"]


def write(folder, texts, strict=0.966, flexible=0.967, effective=None):
    out = folder / "model"
    out.mkdir(parents=True)
    (out / "results_2026.json").write_text(json.dumps({
        "results": {"gsm8k": {"exact_match,strict-match": strict, "exact_match_stderr,strict-match": 0.005, "exact_match,flexible-extract": flexible}},
        "n-samples": {"gsm8k": {"original": 1319, "effective": len(texts) if effective is None else effective}}}))
    lines = [json.dumps({"doc_id": i, "resps": [[t]], "filter": f}) for f in ("strict-match", "flexible-extract") for i, t in enumerate(texts)]
    (out / "samples_gsm8k_2026.jsonl").write_text("\n".join(lines))
    return e.read_lm_eval(str(folder))


def test_a_clean_run_passes(tmp_path):
    seen = write(tmp_path, [GOOD] * 1319)
    assert (seen.strict, seen.flexible, seen.effective, seen.empty, seen.garbled) == (0.966, 0.967, 1319, 0, 0)
    assert e.judge_accuracy(seen) == []


@pytest.mark.parametrize("texts, scores, reason", [
    ([GOOD] * 923 + BAD * 99, {}, "396 of 1319 answers are garbled"),
    ([GOOD] * 1318 + ["  "], {}, "1 empty answers"),
    ([GOOD] * 1318, {}, "1318 of 1319"),
    ([GOOD] * 1319, {"effective": 1318}, "1318 of 1319"),
    ([GOOD] * 1319, {"strict": 0.89}, "strict score is 0.89"),
    ([GOOD] * 1319, {"flexible": None}, "flexible score is None"),
])
def test_each_failure_has_its_reason(tmp_path, texts, scores, reason):
    reasons = e.judge_accuracy(write(tmp_path, texts, **scores))
    assert len(reasons) == 1 and reason in reasons[0], reasons


@pytest.mark.parametrize("text", BAD)
def test_garbled(text):
    assert e.garbled(text)


@pytest.mark.parametrize("text", [GOOD, "", "42", "$18", "√2 ≈ 1.41, so the side is 1.41 m — rounded.\n#### 1", "3 * 4 = 12\n12 + 5 = 17\n#### 17"])
def test_not_garbled(text):
    assert not e.garbled(text)


def test_a_forced_acceptance_is_refused():
    containers = [{"name": "x-decode-0", "env": {"SGLANG_SIMULATE_ACC_LEN": "3.61"}}, {"name": "x-prefill-0", "env": {}}]
    assert e.simulated(containers) == [
        "x-decode-0 forces its acceptance (SGLANG_SIMULATE_ACC_LEN): deploy without decode_simulate_acc_len, then evaluate"]
    assert e.simulated(containers[1:]) == []


def test_needles_are_spread_and_found():
    asked = e.needles(400)
    assert len(asked) == 64 and asked[0].depth == 0 and asked[-1].depth == 1 and len({n.fact for n in asked}) > 60
    assert asked == e.needles(400) and all(n.prompt.count(n.fact) == 1 for n in asked)
    place = asked[32].prompt.index(asked[32].fact) / len(asked[32].prompt)
    assert 0.4 < place < 0.6
    answers = {n.number: f"The code is {n.fact}." for n in asked}
    assert e.judge_needles(answers, asked) == []
    answers[10] = f"1{asked[10].fact}"
    assert e.judge_needles(answers, asked) == [f"63 of 64 needles found; missed at depth {asked[10].depth:.2f}"]


def test_missing_files_are_named(tmp_path):
    with pytest.raises(e.EvaluationError, match=r"no results\*.json"):
        e.read_lm_eval(str(tmp_path))
