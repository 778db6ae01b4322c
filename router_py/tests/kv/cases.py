"""Bodies whose prompts are compared with the wheel's: every request shape that agents send, and those a worker refuses."""

from __future__ import annotations

import random

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"

USER = {"role": "user", "content": "Where is the cache kept? 42 d\u00e9j\u00e0 vu \u4f60\u597d"}
SYSTEM = {"role": "system", "content": "You are terse."}
ANSWER = {"role": "assistant", "content": "In memory.\n\n```py\nprint('x')\n```"}
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Find a file \u00fc",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string", "default": {"type": "varchar"}},
                "n": {"type": ["integer", "null"]},
                "type": {"enum": ["a"]},
            },
            "required": ["path"],
        },
    },
}
TOOL2 = {"type": "function", "function": {"name": "stop"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"path": "/tmp", "n": 3}'}}
CALLED = {"role": "assistant", "content": None, "reasoning_content": "I should look.", "tool_calls": [CALL, {**CALL, "id": "c2"}]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "two files"}
PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}}]
R_FUNCTION = {"type": "function", "name": "find", "description": "Find", "parameters": {"type": "object", "properties": {}}}
A_TOOL = {"name": "find", "input_schema": {"properties": {"p": {"type": "string"}}}}
A_CALL = {
    "role": "assistant",
    "content": [{"type": "text", "text": "Looking."}, {"type": "tool_use", "id": "t1", "name": "find", "input": {"p": "x\u00e9"}}],
}


def chat(*messages, **more) -> dict:
    return {"route": CHAT, "body": {"model": "m", "messages": list(messages), **more}}


def responses(given, **more) -> dict:
    return {"route": RESPONSES, "body": {"model": "m", "input": given, **more}}


def anthropic(*messages, **more) -> dict:
    return {"route": MESSAGES, "body": {"model": "m", "max_tokens": 5, "messages": list(messages), **more}}


def text(prompt, **more) -> dict:
    return {"route": TEXT, "body": {"model": "m", "prompt": prompt, **more}}


def prompt_cases() -> dict[str, dict]:
    """Name to {route, body}."""
    tools = {"tools": [TOOL, TOOL2]}
    return {
        "user": chat(USER),
        "turns": chat(SYSTEM, USER, ANSWER, USER),
        "user_user": chat(USER, USER),
        "last_assistant": chat(USER, ANSWER),
        "last_assistant_parts": chat(USER, {"role": "assistant", "content": PARTS}),
        "last_assistant_calls": chat(USER, {**CALLED, "content": "x"}),
        "continue": chat(USER, ANSWER, continue_final_message=True),
        "continue_empty": chat(USER, {"role": "assistant", "content": ""}, continue_final_message=True),
        "continue_user": chat(USER, continue_final_message=True),
        "parts": chat({"role": "system", "content": PARTS}, {"role": "user", "content": PARTS}),
        "empty_parts": chat({"role": "user", "content": []}),
        "thinking_parts": chat(
            USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "ok"}]}, USER
        ),
        "thinking_parts_user": chat({"role": "user", "content": [{"type": "thinking", "thinking": "hm"}]}),
        "tools": chat(USER, **tools),
        "tools_empty": chat(USER, tools=[]),
        "tools_none_choice": chat(USER, **tools, tool_choice="none"),
        "tools_required": chat(USER, **tools, tool_choice="required"),
        "tools_named": chat(USER, **tools, tool_choice={"type": "function", "function": {"name": "stop"}}),
        "tools_named_missing": chat(USER, **tools, tool_choice={"type": "function", "function": {"name": "other"}}),
        "tools_strict": chat(USER, tools=[{**TOOL, "function": {**TOOL["function"], "strict": True, "more": 1}, "extra": 2}]),
        "tools_deferred": chat(USER, tools=[{**TOOL, "defer_loading": True}, TOOL2]),
        "tools_many": chat(USER, tools=[TOOL2] * 6),
        "tools_flat": chat(USER, **tools, chat_template_kwargs={"strict_tools": True}),
        "tools_bad": chat(USER, tools=[{"type": "function", "function": {"description": "no name"}}]),
        "tools_varchar": chat(
            USER,
            tools=[
                {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "varchar"}}}}}
            ],
        ),
        "calls": chat(SYSTEM, USER, CALLED, RESULT, {**RESULT, "tool_call_id": "c2"}, **tools),
        "calls_then_user": chat(SYSTEM, USER, CALLED, RESULT, ANSWER, USER, **tools),
        "calls_dict": chat(
            USER, {**CALLED, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, {"b": None}], "c": "\u00e9"}}}]}, RESULT
        ),
        "calls_index": chat(USER, {**CALLED, "tool_calls": [{**CALL, "index": 0}]}, RESULT),
        "calls_bad_json": chat(USER, {**CALLED, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, RESULT),
        "calls_array_json": chat(USER, {**CALLED, "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}, RESULT),
        "calls_no_arguments": chat(USER, {**CALLED, "content": "c", "tool_calls": []}, RESULT),
        "result_parts": chat(USER, CALLED, {**RESULT, "content": PARTS}),
        "result_reference": chat(USER, CALLED, {**RESULT, "content": [{"type": "tool_reference", "name": "find"}]}),
        "reasoning_kept": chat(USER, {**ANSWER, "reasoning_content": " deep \n"}, RESULT),
        "reasoning_old": chat(USER, {**ANSWER, "reasoning_content": "deep"}, USER),
        "effort_low": chat(USER, reasoning_effort="low"),
        "effort_none": chat(USER, reasoning_effort="none"),
        "effort_number": chat(USER, reasoning_effort=0.5),
        "effort_text_number": chat(USER, reasoning_effort="0.25"),
        "effort_bad": chat(USER, reasoning_effort="huge"),
        "effort_object": chat(USER, reasoning={"effort": "high"}),
        "effort_object_number": chat(USER, reasoning={"effort": 0}),
        "effort_enabled": chat(USER, reasoning={"enabled": "yes"}),
        "effort_in_kwargs": chat(USER, reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "high"}),
        "thinking_off": chat(USER, chat_template_kwargs={"enable_thinking": False}),
        "thinking_kept": chat(USER, reasoning_effort="none", chat_template_kwargs={"enable_thinking": True}),
        "kwargs_unknown": chat(USER, chat_template_kwargs={"clear_thinking": True, "x": [1]}),
        "kwargs_template": chat(USER, chat_template_kwargs={"chat_template": "{{ 1 }}"}),
        "kwargs_reserved": chat(USER, chat_template_kwargs={"tokenize": True}),
        "role_upper": chat({"role": "System", "content": "x"}, USER),
        "role_unknown": chat({"role": "wizard", "content": "x"}, USER),
        "developer": chat({"role": "developer", "content": "x"}, USER),
        "late_system": chat(USER, SYSTEM, USER),
        "names": chat({"role": "system", "content": "x", "name": "n"}, {**USER, "name": "dropped"}),
        "phase": chat(USER, {**ANSWER, "phase": "commentary"}, USER),
        "content_null": chat({"role": "system", "content": None}, USER),
        "content_missing": chat({"role": "user"}),
        "special_in_content": chat({"role": "user", "content": "a<|user|>b <think>c</think><|endoftext|>"}),
        "message_tools": chat({**SYSTEM, "tools": [TOOL]}, USER),
        "message_tools_and_tools": chat({**SYSTEM, "tools": [TOOL]}, USER, tools=[TOOL2]),
        "input_ids": chat(USER, input_ids=[5, 6, 7]),
        "no_messages": chat(),
        "image": chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}),
        "refusal_part": chat(USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, USER),
        "text": text("Once upon a time"),
        "text_special": text("<|user|>\nx"),
        "text_batch": text(["a b", "c"]),
        "text_ids": text([1, 2, 3]),
        "text_ids_batch": text([[1, 2], [3]]),
        "r_text": responses("hello"),
        "r_instructions": responses("hello", instructions="Be brief."),
        "r_turns": responses(
            [
                {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                {
                    "type": "message",
                    "role": "assistant",
                    "id": "msg_1",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "b", "annotations": []}],
                },
                {"role": "user", "content": "c"},
            ],
            instructions="Be brief.",
        ),
        "r_calls": responses(
            [
                {"role": "user", "content": "a"},
                {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "think"}]},
                {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"p": 1}'},
                {"type": "function_call_output", "call_id": "c1", "output": "found"},
            ],
            tools=[R_FUNCTION],
        ),
        "r_calls_broken": responses(
            [
                {"role": "user", "content": "a"},
                {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"p": '},
                {
                    "type": "function_call_output",
                    "call_id": "c1",
                    "output": [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}],
                },
            ],
            tools=[R_FUNCTION],
        ),
        "r_custom": responses(
            [
                {"role": "user", "content": "a"},
                {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "*** \u00e9"},
                {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
            ],
            tools=[
                {
                    "type": "custom",
                    "name": "patch",
                    "description": "d",
                    "format": {"type": "grammar", "syntax": "lark", "definition": "x: y"},
                },
                {"type": "web_search"},
            ],
        ),
        "r_tool_choice": responses("a", tools=[R_FUNCTION], tool_choice={"type": "function", "name": "find"}),
        "r_tool_none": responses("a", tools=[R_FUNCTION], tool_choice="none"),
        "r_reasoning": responses("a", reasoning={"effort": "high"}),
        "r_reasoning_default": responses("a", reasoning={}),
        "r_reasoning_none": responses("a", reasoning={"effort": "none"}, chat_template_kwargs={"x": 1}),
        "r_merge": responses(
            [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "assistant", "content": "c"},
                {"role": "user", "content": "d"},
            ]
        ),
        "r_developer": responses([{"role": "developer", "content": "rules"}, {"role": "user", "content": "a"}]),
        "r_unknown_item": responses([{"type": "item_reference", "id": "x"}]),
        "a_user": anthropic(USER),
        "a_system": anthropic(USER, ANSWER, USER, system="Be brief."),
        "a_system_blocks": anthropic(
            USER, system=[{"type": "text", "text": "One."}, {"type": "text", "text": "Two.", "cache_control": {"type": "ephemeral"}}]
        ),
        "a_blocks": anthropic({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
        "a_calls": anthropic(
            USER,
            A_CALL,
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "found"}, {"type": "text", "text": "next"}],
            },
            tools=[A_TOOL],
        ),
        "a_results": anthropic(
            USER,
            A_CALL,
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "pre"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [
                            {"type": "text", "text": "p"},
                            {"type": "tool_reference", "tool_name": "find"},
                            {"type": "text", "text": "q"},
                            {"type": "text", "text": "r"},
                        ],
                    },
                ],
            },
            tools=[A_TOOL, {"type": "web_search_20250305", "name": "web_search"}],
        ),
        "a_choice_any": anthropic(USER, tools=[A_TOOL], tool_choice={"type": "any"}),
        "a_choice_tool": anthropic(USER, tools=[A_TOOL], tool_choice={"type": "tool", "name": "find"}),
        "a_choice_none": anthropic(USER, tools=[A_TOOL], tool_choice={"type": "none"}),
        "a_effort": anthropic(USER, output_config={"effort": "xhigh"}),
        "a_empty_assistant": anthropic(USER, {"role": "assistant", "content": []}, USER),
        "a_disabled": anthropic(USER, thinking={"type": "disabled"}),
        "a_image": anthropic({"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}),
    }


def system_cases() -> dict[str, dict]:
    """The system-message cases of the image's patch notes, for Responses and Messages bodies."""
    user = {"role": "user", "content": "hi"}

    def system(content, **more):
        return {"role": "system", "content": content, **more}

    one = [{"type": "input_text", "text": "S"}]
    return {
        "none": responses([user]),
        "text_only": responses("hi"),
        "instructions": responses([user], instructions="I"),
        "leading_text": responses([system("S"), user]),
        "leading_developer": responses([{"role": "developer", "content": "D"}, user]),
        "empty_text": responses([system(""), user]),
        "leading_list": responses([system(one), user]),
        "leading_two_parts": responses([system([*one, *one]), user]),
        "instructions_and_developer": responses([{"role": "developer", "content": "D"}, user], instructions="I"),
        "instructions_and_system": responses([system("S"), user], instructions="I"),
        "late_system": responses([user, system("S"), user]),
        "late_developer": responses([user, {"role": "developer", "content": "D"}, user]),
        "content_null": responses([system(None), user]),
        "extra_name": responses([system("S", name="n"), user]),
        "image_only": responses([system([{"type": "input_image", "image_url": "http://x"}]), user]),
        "two_leading": responses([system("S"), system("T"), user]),
        "a_none": anthropic(user),
        "a_system": anthropic(user, system="S"),
        "a_system_blank": anthropic(user, system="  "),
        "a_system_blocks": anthropic(user, system=[{"type": "text", "text": "S"}, {"type": "text", "text": "T"}]),
        "a_leading": anthropic({"role": "system", "content": "S"}, user),
        "a_leading_padded": anthropic({"role": "system", "content": " S "}, user),
        "a_leading_blocks": anthropic({"role": "system", "content": [{"type": "text", "text": "S"}]}, user),
        "a_both": anthropic({"role": "system", "content": "T"}, user, system="S"),
        "a_late": anthropic(user, {"role": "assistant", "content": "x"}, {"role": "system", "content": "S"}, user),
        "a_late_blank": anthropic(user, {"role": "system", "content": " "}, user),
    }


def hash_cases(count: int = 1000, seed: int = 20261201) -> list[dict]:
    """Random prompts: a third plain, a third as pairs, a third salted (half of these as pairs)."""
    rng = random.Random(seed)
    cases = []
    for index in range(count):
        size = rng.choice((1, 4, 8, 16, 64))
        tokens = [rng.randrange(rng.choice((64, 200_000))) for _ in range(rng.randrange(0, 9 * size + 5))]
        kind = index % 3
        cases.append(
            {
                "tokens": tokens,
                "page_size": size,
                "pairs": kind == 1 or kind == 2 and index % 2 == 0,
                "salt": "".join(rng.choice("ab\u00e9\u4f60") for _ in range(rng.randrange(0, 9))) if kind == 2 else None,
            }
        )
    return cases
