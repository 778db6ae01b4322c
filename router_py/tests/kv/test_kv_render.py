"""Prompts, system rules and hashes against the answers of the real SGLang 0.5.22 wheel."""

from __future__ import annotations

import json
import os
from array import array

import pytest
from infera_router.kv import anthropic, responses
from infera_router.kv.errors import Unknown
from infera_router.kv.pages import PageForm, Pages, salt_seed
from infera_router.kv.prepare import Builder
from infera_router.kv.renderer import Renderer
from infera_router.kv.tokens import TemplateCounter
from infera_router.kv.view import View

from . import cases
from .wheel.regenerate import by_python
from .wheel.regenerate import golden as ask_wheel

# The worker's prompt depends on what only it knows, so these are routed on load although it answers.
ROUTED_ON_LOAD = {"tools_varchar": "schema_types", "a_disabled": "reasoning_switch"}
PROMPTS = cases.prompt_cases()


@pytest.mark.parametrize("model", ["glm", "plain"])
@pytest.mark.parametrize("name", PROMPTS)
def test_prompt_equals_the_wheels(name, model, tokenizers, golden):
    case, wheel = PROMPTS[name], golden["prompts"][model][name]
    body = json.loads(json.dumps(case["body"]))
    renderer = Renderer(tokenizers[model])
    if name in ROUTED_ON_LOAD:
        with pytest.raises(Unknown) as raised:
            renderer.prompts(body, case["route"])
        assert raised.value.reason == ROUTED_ON_LOAD[name] and "ids" in wheel
    elif "error" in wheel:
        with pytest.raises(Unknown):
            renderer.prompts(body, case["route"])
    else:
        assert [list(ids) for ids in renderer.prompts(body, case["route"])] == wheel["ids"]


@pytest.mark.parametrize("model", ["glm", "plain"])
def test_the_cached_way_equals_the_wheels(model, tokenizers, golden):
    """The request path (incremental JSON, text and pages) on all bodies in turn, each twice, through one cache."""
    view = View()
    view.open("w", PageForm(4))
    builder = Builder(tokenizers[model], view)
    for _ in range(2):
        for name, case in PROMPTS.items():
            wheel = golden["prompts"][model][name]
            if "error" in wheel or name in ROUTED_ON_LOAD:
                continue
            body = json.dumps(case["body"]).encode()
            base = builder.known(case["route"], body)
            prepared = builder.build(case["route"], body, base)
            assert list(prepared.pages.ids) == wheel["ids"][0], name
            assert prepared.prompt_tokens == sum(map(len, wheel["ids"])), name
            assert prepared.tokens == prepared.prompt_tokens * case["body"].get("n", 1)


def test_templates_differ_enough_to_catch_a_wrong_render(golden):
    """The comparison cannot pass by rendering nothing: the wheel's prompts of the cases differ from each other."""
    for model in ("glm", "plain"):
        prompts = [json.dumps(answer["ids"]) for answer in golden["prompts"][model].values() if "ids" in answer]
        assert len(set(prompts)) > 0.6 * len(prompts) and len(prompts) > 60


@pytest.mark.parametrize("name", cases.system_cases())
def test_system_rule_hashes_exactly_when_the_wheels_renders_are_equal(name, golden):
    case, wheel = cases.system_cases()[name], golden["system"][name]
    module = responses if case["route"] == cases.RESPONSES else anthropic
    try:
        module.chat_fields(json.loads(json.dumps(case["body"])))
        known = True
    except Unknown as exc:
        assert exc.reason in ("system_order", "multimodal")
        known = False
    assert known == (wheel.get("equal") is True)


def test_system_cases_have_both_kinds(golden):
    answers = [answer.get("equal") for answer in golden["system"].values()]
    assert answers.count(True) >= 8 and answers.count(False) >= 8


def test_inline_messages_are_the_wheels(golden):
    for name, case in cases.system_cases().items():
        if case["route"] == cases.RESPONSES and name != "image_only":
            assert responses.construct_messages(case["body"], True) == golden["system"][name]["inline"], name


def test_hashes_of_random_prompts_equal_the_wheels(golden):
    kinds = {"plain": 0, "pairs": 0, "salted": 0}
    for case, wheel in zip(cases.hash_cases(), golden["hashes"]):
        pages = Pages(array("I", case["tokens"]), salt_seed(case["salt"]))
        assert list(pages.hashes(PageForm(case["page_size"], case["pairs"]))) == wheel
        if wheel:
            kinds["salted" if case["salt"] is not None else "pairs" if case["pairs"] else "plain"] += 1
    assert sum(map(len, golden["hashes"])) > 3000 and min(kinds.values()) > 250


def test_previous_response_is_unknown():
    with pytest.raises(Unknown, match="stored_state"):
        responses.chat_fields({"input": "x", "previous_response_id": "resp_1"})


def test_thinking_history_is_unknown():
    with pytest.raises(Unknown, match="thinking_history"):
        anthropic.chat_fields(
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}]}]}
        )


def test_counter(tokenizers, golden):
    counter = TemplateCounter(Renderer(tokenizers["glm"]))
    want = len(golden["prompts"]["glm"]["turns"]["ids"][0])
    assert counter.count(PROMPTS["turns"]["body"]) == want
    assert counter.count({**PROMPTS["turns"]["body"], "n": 3}) == 3 * want
    assert counter.count({"prompt": [[1, 2], [3]], "n": 2}) == 6
    for bad in (
        {},
        {"messages": []},
        {"prompt": ""},
        {"prompt": [1, "a"]},
        {"prompt": [-1]},
        {**PROMPTS["turns"]["body"], "n": 0},
        {**PROMPTS["turns"]["body"], "n": True},
        PROMPTS["image"]["body"],
    ):
        assert counter.count(bad) is None, bad


@pytest.mark.engine
def test_golden_values_are_the_wheels(golden):
    """By hand, where the wheel is installed; `make test` asks the engine image's wheel instead (tests/e2e/test_28_kv.py)."""
    python = os.environ.get("INFERA_SGLANG_PYTHON")
    if not python:
        pytest.skip("INFERA_SGLANG_PYTHON is not set: golden.json is not compared with a wheel")
    assert ask_wheel(by_python(python)) == golden
