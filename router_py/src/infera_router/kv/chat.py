"""What SGLang 0.5.22 hands its chat template for a /v1/chat/completions body.

The worker validates the body (unknown fields dropped, defaults filled in), merges reasoning switches into the template's variables
and rewrites messages before it renders. Every rule here was checked against the wheel's own functions (tests/kv/wheel).
A body that the worker would refuse, or whose prompt depends on what only the worker knows, raises Unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from .errors import Unknown

_GENERIC_ROLES = frozenset({"system", "assistant", "tool", "function", "developer", "latest_reminder"})
_MEDIA_PARTS = frozenset({"image_url", "input_image", "video_url", "audio_url", "input_audio"})
_EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
# Set by the other routes beside a chat's members; no body can have a key like these.
LATE_EFFORT, VARIANTS = object(), object()
_TRUE_WORDS = frozenset({"1", "true", "yes", "y", "on"})


@dataclass(slots=True)
class Chat:
    """A chat as the template gets it: `messages` in template form, `prefix` the assistant text to be continued or None.

    `variants`: further template variables of which the worker sets one group, the router not knowing which.
    """

    messages: list[dict]
    tools: list[dict] | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    prefix: str | None = None
    variants: list[dict] = field(default_factory=list)


def _invalid(what: str) -> Unknown:
    return Unknown("invalid", what)


def optional(value: Any, kind: type | tuple, what: str) -> Any:
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool) and kind is not bool):
        raise _invalid(what)
    return value


def dump_tool(tool: Any) -> dict:
    """A tool with the fields, the order and the defaults that the worker's template sees."""
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
        raise _invalid("tool")
    function = tool["function"]
    strict = function.get("strict", False)
    if not isinstance(function.get("name"), str) or not isinstance(strict, bool):
        raise _invalid("tool")
    deferred = optional(tool.get("defer_loading"), bool, "tool")
    inner = optional(function.get("defer_loading"), bool, "tool")
    dumped = {
        "description": optional(function.get("description"), str, "tool"), "name": function["name"],
        "parameters": function.get("parameters"), "strict": strict}
    inner = deferred if inner is None else inner
    if inner is not None:
        dumped["defer_loading"] = inner
    kind = tool.get("type", "function")
    if not isinstance(kind, str):
        raise _invalid("tool")
    return {"type": kind, "function": dumped, "defer_loading": deferred}


def _tool_call(call: Any, parse: bool) -> dict:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict) or call.get("type", "function") != "function":
        raise _invalid("tool_calls")
    function = call["function"]
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        if parse:
            try:
                arguments = orjson.loads(arguments)
            except orjson.JSONDecodeError:
                raise _invalid("tool_calls arguments") from None
            if not isinstance(arguments, dict):
                raise _invalid("tool_calls arguments")
    elif arguments is not None and not isinstance(arguments, dict):
        raise _invalid("tool_calls arguments")
    return {
        "id": optional(call.get("id"), str, "tool_calls"), "index": optional(call.get("index"), int, "tool_calls"), "type": "function",
        "function": {"name": optional(function.get("name"), str, "tool_calls"), "arguments": arguments}}


def _parts(content: list, role: str, as_list: bool) -> list[dict] | str:
    kept = []
    for part in content:
        if not isinstance(part, dict):
            raise _invalid("content part")
        kind = part.get("type")
        if kind == "text":
            if not isinstance(part.get("text"), str):
                raise _invalid("content part")
            kept.append({"type": "text", "text": part["text"]})
        elif kind in _MEDIA_PARTS:
            raise Unknown("multimodal")
        elif kind in ("thinking", "reasoning"):
            # Accepted in assistant messages only, and never rendered.
            given = [optional(part.get(key), str, "content part") for key in ("thinking", "text")]
            if role != "assistant" or (given[0] is None) == (given[1] is None):
                raise _invalid("content part")
        elif kind == "tool_reference":
            if not isinstance(part.get("name"), str):
                raise _invalid("content part")
            kept.append({"type": "tool_reference", "name": part["name"]})
        else:
            raise _invalid("content part")
    if as_list:
        return kept
    return " ".join(part["text"] for part in kept if part["type"] == "text")


def template_message(message: Any, as_list: bool) -> dict:
    """One message in template form. `as_list`: the template loops over parts ("openai" format), else text is joined by spaces."""
    if not isinstance(message, dict):
        raise _invalid("message")
    role = message.get("role")
    content = message.get("content")
    if content is not None and not isinstance(content, (str, list)):
        raise _invalid("content")
    if role == "user":
        if content is None:
            raise _invalid("content")
        if not isinstance(content, str):
            content = _parts(content, "user", as_list)
        return {"role": "user", "content": content}
    role = role.lower() if isinstance(role, str) else None
    if role not in _GENERIC_ROLES:
        raise _invalid("role")
    if content is None:
        content = ""
    elif not isinstance(content, str):
        content = _parts(content, role, as_list)
        if role == "tool" and isinstance(content, list) and all(part["type"] == "text" for part in content):
            content = " ".join(part["text"] for part in content)
    out: dict[str, Any] = {"role": role, "content": content}
    for key in ("tool_call_id", "name", "phase", "reasoning_content"):
        value = message.get(key)
        if value is not None:
            if not isinstance(value, str) or key == "phase" and value not in ("commentary", "final_answer"):
                raise _invalid(key)
            out[key] = value
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise _invalid("tool_calls")
        out["tool_calls"] = [_tool_call(call, role == "assistant") for call in calls]
    tools = message.get("tools")
    if tools is not None:
        if not isinstance(tools, list):
            raise _invalid("tools")
        out["tools"] = [dump_tool(tool) for tool in tools]
    if isinstance(message.get("content"), list):
        # The worker rebuilds a message with a list so that content comes last ("openai") or stays in place ("string").
        if as_list:
            out["content"] = out.pop("content")
    return out


def _effort(value: Any) -> Any:
    """A reasoning effort as the worker's schema accepts it: a word, or a number in [0, 0.99]."""
    if value is None or isinstance(value, str) and value in _EFFORTS:
        return value
    if isinstance(value, bool):
        raise _invalid("reasoning_effort")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise _invalid("reasoning_effort") from None
    if not 0.0 <= number <= 0.99:
        raise _invalid("reasoning_effort")
    return number


def reasoning(fields: dict) -> tuple[Any, dict | None]:
    """(reasoning_effort, chat_template_kwargs) after the worker's merging of `reasoning`, `reasoning_effort` and the switches."""
    effort = fields.get("reasoning_effort")
    if isinstance(effort, bool):
        raise _invalid("reasoning_effort")
    thinking = None
    given = fields.get("reasoning")
    if isinstance(given, dict):
        wanted = given.get("effort")
        wanted = given.get("reasoning_effort") if wanted is None else wanted
        if wanted is not None:
            effort = wanted if isinstance(wanted, str) and wanted in _EFFORTS else _effort(wanted)
        enabled = given.get("enabled")
        enabled = given.get("enable", False) if enabled is None else enabled
        if isinstance(enabled, str):
            enabled = enabled.strip().lower() in _TRUE_WORDS
        if enabled:
            thinking = True
    if effort is not None:
        thinking = effort != "none"
    variables = optional(fields.get("chat_template_kwargs"), dict, "chat_template_kwargs")
    if thinking is not None:
        variables = {**(variables or {})}
        variables.setdefault("thinking", thinking)
        variables.setdefault("enable_thinking", thinking)
    return _effort(effort), variables


def template_variables(effort: Any, variables: dict | None, low_effort: str | None) -> dict[str, Any]:
    variables = dict(variables or {})
    # chat_template_kwargs.reasoning_effort replaces the request's own.
    inner = variables.pop("reasoning_effort", None)
    effort = inner if inner is not None else effort
    out = {} if effort is None else {"reasoning_effort": effort}
    out.update(variables)
    if low_effort and effort == "low":
        out.setdefault(low_effort, True)
    return out


def template_tools(fields: dict, messages: list) -> list[dict] | None:
    tools = fields.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise _invalid("tools")
    choice = fields.get("tool_choice")
    in_messages = any(
        isinstance(m, dict) and m.get("tools") and isinstance(m.get("role"), str) and m["role"].lower() in ("system", "developer")
        for m in messages)
    if choice is None:
        choice = "none" if tools is None and not in_messages else "auto"
    dumped = [dump_tool(tool) for tool in tools or ()]
    if isinstance(choice, dict):
        named = choice.get("function")
        if not isinstance(named, dict) or choice.get("type", "function") != "function":
            raise _invalid("tool_choice")
        name = optional(named.get("name"), str, "tool_choice")
        chosen = [tool for tool in dumped if tool["function"]["name"] == name]
        if not chosen and not in_messages:
            raise _invalid("tool_choice")
        return chosen or None
    if choice not in ("auto", "required", "none"):
        raise _invalid("tool_choice")
    return None if choice == "none" else dumped or None


def finish(
        fields: dict, messages: list[dict], tools: list[dict] | None, effort: Any, variables: dict | None, low_effort: str | None) -> Chat:
    """Apply the rules that look at the whole chat. `messages` are in template form; the list is not changed."""
    prefix = None
    last = messages[-1] if messages else None
    if last is not None and last["role"] == "assistant" and isinstance(last["content"], str):
        resume = fields.get("continue_final_message", False)
        if not isinstance(resume, bool):
            raise _invalid("continue_final_message")
        # Without continue_final_message a last assistant text is asked again as the user's.
        messages = messages[:-1] if resume else [*messages[:-1], {"role": "user", "content": last["content"]}]
        prefix = last["content"] if resume else None
    return Chat(messages, tools, template_variables(effort, variables, low_effort), prefix)
