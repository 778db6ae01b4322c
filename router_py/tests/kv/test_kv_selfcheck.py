"""The comparison of our prompt sizes with the engine's own counts."""

from __future__ import annotations

import pytest
from infera_router.kv.selfcheck import FORGIVEN_BY, STRIKES, SelfCheck
from infera_router.kv.usage import prompt_tokens

# Ends of answers as SGLang 0.5.22 gives them.
PLAIN = (
    b'"finish_reason":"length","matched_stop":null}],"usage":{"prompt_tokens":27,"total_tokens":43,"completion_tokens":16,'
    b'"prompt_tokens_details":{"cached_tokens":16},"reasoning_tokens":0},"metadata":{"weight_version":"default"}}'
)
STREAMED = (
    b'"content":"x"},"finish_reason":"length"}],"usage":null}\n\ndata: {"id":"1","choices":[],"usage":{"prompt_tokens":27,"total_tokens":31,'
    b'"completion_tokens":4,"prompt_tokens_details":null,"reasoning_tokens":0}}\n\ndata: [DONE]\n\n\r\n0\r\n\r\n'
)
WITHOUT = b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}\n\ndata: [DONE]\n\n'
RESPONSES = (
    b'"status":"completed","usage":{"input_tokens":27,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"output_tokens":4,'
    b'"output_tokens_details":{"reasoning_tokens":0},"total_tokens":31},"parallel_tool_calls":true}}\n\n'
)
MESSAGES = b'"stop_reason":"max_tokens","usage":{"input_tokens":11,"cache_read_input_tokens":16,"output_tokens":4}}'
GENERATE = b'{"text":" x","output_ids":[3],"meta_info":{"id":"a","finish_reason":null,"prompt_tokens":27,"cached_tokens":0}}'
QUOTED = b'"content":"say \\"usage\\":{\\"prompt_tokens\\":99}"},"finish_reason":"stop"}],"usage":{"prompt_tokens":27,"total_tokens":31}}'


@pytest.mark.parametrize("tail", [PLAIN, STREAMED, RESPONSES, MESSAGES, GENERATE, QUOTED, b'"usage": {"prompt_tokens": 27}}'])
def test_the_count_is_read_off_the_end(tail):
    assert prompt_tokens(tail) == 27


@pytest.mark.parametrize("tail", [b"", WITHOUT, b'"prompt_tokens":27', PLAIN[:60], b'"usage":{"completion_tokens":3}}'])
def test_where_nothing_is_said_nothing_is_read(tail):
    assert prompt_tokens(tail) is None


def test_both_legs_are_judged_by_a_reply():
    check = SelfCheck()
    check.reply(["d:1", "p:1"], 27, PLAIN)
    check.reply(["d:1"], 28, PLAIN)
    check.reply(["d:1"], None, PLAIN)
    check.reply(["d:1"], 27, WITHOUT)
    assert check.compared == {"d:1": 2, "p:1": 1} and check.mismatches == {"d:1": 1}


def test_a_run_of_mismatches_ends_trust_and_a_longer_run_of_matches_restores_it():
    check = SelfCheck()
    for _ in range(STRIKES - 1):
        check.observe("w", 10, 11)
    assert check.trusted("w")
    check.observe("w", 10, 11)
    assert not check.trusted("w") and check.trusted("other")
    for _ in range(FORGIVEN_BY - 1):
        check.observe("w", 10, 10)
    check.observe("w", 10, 12)
    assert not check.trusted("w"), "one more mismatch starts the count anew"
    for _ in range(FORGIVEN_BY):
        check.observe("w", 10, 10)
    assert check.trusted("w") and check.mismatches["w"] == STRIKES + 1


def test_odd_bodies_now_and_then_do_not_end_trust():
    check = SelfCheck()
    for _ in range(50):
        check.observe("w", 10, 11)
        for _ in range(FORGIVEN_BY):
            check.observe("w", 10, 10)
    assert check.trusted("w") and check.mismatches["w"] == 50


def test_another_worker_under_the_same_id_begins_anew():
    check = SelfCheck()
    for _ in range(STRIKES):
        check.observe("w", 1, 2)
    check.forget("w")
    assert check.trusted("w") and check.mismatches["w"] == STRIKES
