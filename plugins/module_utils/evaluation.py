# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judging an accuracy run: GSM8K from lm-eval's files, needles in long prompts, and the acceptance seen meanwhile.

The custom all-reduce failure that this guards against answers HTTP 200 with garbled text, so the texts themselves are looked at.
"""
from __future__ import annotations

import dataclasses
import glob
import json
import os
import random
import re
from typing import Any

QUESTIONS = 1319  # GSM8K's test split
FLOOR = 0.90  # InferenceX's default floor, both filters
MAX_GARBLED_SHARE = 0.01
NEEDLES = 64
PUBLISHED_ACCEPTANCE = 4.62  # median of the real acceptance length over the published GSM8K run, EAGLE 5/1/6


class EvaluationError(ValueError):
    """An output of the client is missing or cannot be read; the text names it."""


def garbled(text: str) -> bool:
    """True for text that no working model writes: broken characters, symbols without words, or one word over and over."""
    stripped = text.strip()
    if not stripped:
        return False
    if "\ufffd" in stripped or any(ord(c) < 32 and c not in "\n\r\t" for c in stripped):
        return True
    foreign = sum(not (c.isascii() or c in "–—’‘“”…×÷≈≤≥°€£²³½¼¾→−•√π") for c in stripped)
    if foreign > 0.15 * len(stripped):
        return True
    words = re.findall(r"\S+", stripped)
    if len(words) >= 20:
        top = max(words.count(w) for w in set(words))
        if top > 0.5 * len(words):
            return True
    letters = sum(c.isalnum() or c.isspace() for c in stripped)
    return len(stripped) >= 40 and letters < 0.5 * len(stripped)


@dataclasses.dataclass
class Accuracy:
    """Scores in 0..1; effective: questions that were answered and scored; empty, garbled: counts of answers."""

    task: str
    strict: float | None
    flexible: float | None
    stderr: float | None
    effective: int
    empty: int
    garbled: int
    answers: int


def read_lm_eval(folder: str, task: str = "gsm8k") -> Accuracy:
    """Read results*.json and samples*.jsonl below folder, as lm-eval --log_samples wrote them (the newest of each)."""
    results = sorted(glob.glob(os.path.join(folder, "**", "results*.json"), recursive=True), key=os.path.getmtime)
    samples = sorted(glob.glob(os.path.join(folder, "**", "samples_*.jsonl"), recursive=True), key=os.path.getmtime)
    if not results:
        raise EvaluationError(f"no results*.json below {folder}: lm-eval did not finish; see its log")
    if not samples:
        raise EvaluationError(f"no samples_*.jsonl below {folder}: run lm-eval with --log_samples")
    with open(results[-1], encoding="utf-8") as lines:
        report = json.load(lines)
    scores = next((v for k, v in report["results"].items() if k.startswith(task)), None)
    if scores is None:
        raise EvaluationError(f"{results[-1]} has no task {task!r}: {', '.join(report['results'])}")
    counts = next((v for k, v in report.get("n-samples", {}).items() if k.startswith(task)), {})
    texts: dict[Any, str] = {}
    with open(samples[-1], encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                sample = json.loads(line)
                answer = sample["resps"][0]
                texts[sample["doc_id"]] = answer[0] if isinstance(answer, list) else answer
    return Accuracy(task, scores.get("exact_match,strict-match"), scores.get("exact_match,flexible-extract"),
                    scores.get("exact_match_stderr,strict-match"), int(counts.get("effective", 0)),
                    sum(not t.strip() for t in texts.values()), sum(garbled(t) for t in texts.values()), len(texts))


def simulated(containers: list[dict[str, Any]]) -> list[str]:
    """One reason for each engine that forces its acceptance; such an engine must not be evaluated."""
    out = []
    for container in containers:
        forced = sorted(k for k in container.get("env", {}) if k.startswith("SGLANG_SIMULATE_"))
        if forced:
            out.append(f"{container['name']} forces its acceptance ({', '.join(forced)}): deploy without decode_simulate_acc_len, then evaluate")
    return out


def judge_accuracy(seen: Accuracy, questions: int = QUESTIONS, floor: float = FLOOR, max_garbled_share: float = MAX_GARBLED_SHARE) -> list[str]:
    """Reasons why the run fails; none when it passes."""
    out = []
    if seen.effective != questions or seen.answers != questions:
        out.append(f"{min(seen.effective, seen.answers)} of {questions} questions were effective")
    if seen.empty:
        out.append(f"{seen.empty} empty answers")
    if seen.answers and seen.garbled > max_garbled_share * seen.answers:
        out.append(f"{seen.garbled} of {seen.answers} answers are garbled (HTTP 200): check --disable-custom-all-reduce on every engine")
    for name, score in (("strict", seen.strict), ("flexible", seen.flexible)):
        if score is None or score < floor:
            out.append(f"{name} score is {score}, the floor is {floor}")
    return out


@dataclasses.dataclass(frozen=True)
class Needle:
    """One long prompt with one fact; depth is where it stands, 0 (start) to 1 (end)."""

    number: int
    depth: float
    fact: str
    question: str
    prompt: str


_NOUNS = "river engine window garden letter station market teacher mountain signal kitchen bridge forest captain paper harbour".split()
_VERBS = "watches follows carries paints forgets measures repairs describes crosses visits".split()
_PLACES = "before dawn|near the old mill|without a word|in the third week|under a grey sky|beside the canal|after the concert".split("|")


def needles(words: int, count: int = NEEDLES, seed: int = 42) -> list[Needle]:
    """count prompts of about `words` words, each hiding another five-digit code at an evenly spread depth. Deterministic."""
    if words < 50:
        raise EvaluationError(f"needle words {words}: at least 50 are needed to hide a fact")
    out = []
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        sentences = []
        while sum(len(s.split()) for s in sentences) < words:
            sentences.append(f"The {rng.choice(_NOUNS)} {rng.choice(_VERBS)} the {rng.choice(_NOUNS)} {rng.choice(_PLACES)}.")
        depth = number / (count - 1) if count > 1 else 0.5
        code = str(rng.randint(10_000, 99_999))
        key = f"{rng.choice(_NOUNS)}-{number:03d}"
        sentences.insert(round(depth * len(sentences)), f"The code of locker {key} is {code}.")
        question = f"What is the code of locker {key}? Answer with the five digits only."
        out.append(Needle(number, depth, code, question, " ".join(sentences) + "\n\n" + question))
    return out


def found(needle: Needle, answer: str) -> bool:
    """A needle counts as found when its digits stand alone in the answer."""
    return re.search(rf"(?<!\d){needle.fact}(?!\d)", answer) is not None


def judge_needles(answers: dict[int, str], asked: list[Needle]) -> list[str]:
    """Reasons, given the answers by needle number."""
    missing = [n for n in asked if not found(n, answers.get(n.number, ""))]
    if not missing:
        return []
    depths = ", ".join(f"{n.depth:.2f}" for n in missing[:8])
    return [f"{len(asked) - len(missing)} of {len(asked)} needles found; missed at depth {depths}"]
