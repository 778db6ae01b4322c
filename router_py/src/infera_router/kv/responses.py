"""A /v1/responses body as the chat that SGLang 0.5.22 makes of it.

Whether the worker leaves late system messages where they are, or merges all into one leading message, depends on its template and
flags. So the messages are built both ways; only where both are equal is the prompt known (spec rule: equal, use; else route on load).
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import orjson

from .chat import optional
from .errors import Unknown

_DEVELOPER = "Developer instructions:"
_STATE = "sglang-reasoning-v1."
# Members of chat messages that the Responses schema does not have.
_CHAT_ONLY = frozenset({"name", "tool_calls", "tool_call_id", "reasoning_content", "tools"})
_TOOL_TYPES = frozenset({
    "function", "web_search", "web_search_preview", "code_interpreter", "file_search", "image_generation", "computer_use_preview",
    "local_shell", "mcp", "custom", "namespace", "tool_search"})
_FREEFORM = {
    "type": "object", "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": ["input"], "additionalProperties": False}


def chat_fields(body: dict) -> dict:
    """The /v1/chat/completions members that stand for `body`. Raises Unknown where the worker's prompt cannot be known."""
    if body.get("previous_response_id") is not None:
        raise Unknown("stored_state")
    merged, inline = (construct_messages(body, supports_inline_system=flag) for flag in (False, True))
    if merged != inline:
        raise Unknown("system_order")
    tools = _tools(body.get("tools"))
    fields: dict[str, Any] = {"messages": inline, "tools": tools or None, "tool_choice": _tool_choice(body) if tools else "none"}
    reasoning = optional(body.get("reasoning"), dict, "reasoning")
    if reasoning is not None:
        fields["reasoning_effort"] = reasoning.get("effort", "medium")
    variables = optional(body.get("chat_template_kwargs"), dict, "chat_template_kwargs")
    if reasoning is not None and (reasoning.get("effort") or reasoning.get("reasoning_effort")) == "none":
        variables = {"thinking": False, "enable_thinking": False, **(variables or {})}
    fields["chat_template_kwargs"] = variables
    return fields


def construct_messages(body: dict, supports_inline_system: bool) -> list[dict]:
    """The chat messages of a Responses body, as the worker's `_construct_input_messages` builds them."""
    messages: list[dict] = []
    instructions = optional(body.get("instructions"), str, "instructions")
    if instructions:
        messages.append({"role": "system", "content": instructions})
    given = body.get("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise Unknown("invalid", "input")
    typed = all(map(_plainly_typed, given))
    for item in given:
        message = _message(item, typed)
        if message is not None:
            messages.append(message)
    messages = _merge_assistants(messages)
    if supports_inline_system:
        return messages
    system, others = [], []
    for message in messages:
        if message.get("role") != "system":
            others.append(message)
            continue
        content = message.get("content")
        if isinstance(content, str):
            system.append(content)
        elif isinstance(content, list):
            system.extend(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return [{"role": "system", "content": "\n\n".join(system)}, *others] if system else others


def _label(content: Any) -> Any:
    if isinstance(content, str):
        return f"{_DEVELOPER}\n{content}"
    if isinstance(content, list):
        for index, part in enumerate(content):
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                return [*content[:index], {**part, "text": f"{_DEVELOPER}\n{part['text']}"}, *content[index + 1:]]
        return [{"type": "input_text", "text": _DEVELOPER}, *content]
    return content


def _call(item: dict, arguments: str) -> dict:
    function = {"name": item.get("name"), "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": item.get("call_id") or item.get("id"), "type": "function", "function": function}]}


def _object_text(arguments: Any) -> str:
    if isinstance(arguments, dict):
        return orjson.dumps(arguments).decode()
    if isinstance(arguments, str) and arguments:
        try:
            if isinstance(orjson.loads(arguments), dict):
                return arguments
        except orjson.JSONDecodeError:
            pass
    return "{}"


def _reasoning(item: dict) -> dict | None:
    def texts(parts: Any) -> list[str]:
        return [part["text"] for part in parts or [] if isinstance(part, dict) and part.get("text")]

    found = texts(item.get("summary")) or texts(item.get("content"))
    if not found:
        blob = item.get("encrypted_content")
        if isinstance(blob, str) and blob.startswith(_STATE):
            try:
                restored = zlib.decompress(base64.urlsafe_b64decode(blob[len(_STATE):])).decode("utf-8")
            except (ValueError, zlib.error):
                restored = ""
            found = [restored] if restored else []
    return {"role": "assistant", "reasoning_content": "\n".join(found)} if found else None


def _part(part: Any) -> Any:
    if isinstance(part, dict):
        kind = part.get("type")
        if kind in ("input_text", "output_text"):
            return {"type": "text", "text": part.get("text", "")}
        if kind in ("input_image", "image_url", "input_file", "input_audio"):
            raise Unknown("multimodal")
    return part


def _plainly_typed(item: Any) -> bool:
    """Whether the item surely fits the API's own schema. If all do, the worker drops members that the schema does not have."""
    if not isinstance(item, dict):
        return False
    kind = item.get("type")
    if kind in (None, "message"):
        content = item.get("content")
        return item.get("role") in ("user", "assistant", "system", "developer") and (
            isinstance(content, str) or isinstance(content, list) and all(
                isinstance(part, dict) and part.get("type") == "input_text" and isinstance(part.get("text"), str) for part in content))
    if kind == "function_call":
        return all(isinstance(item.get(key), str) for key in ("call_id", "name", "arguments"))
    return kind == "function_call_output" and all(isinstance(item.get(key), str) for key in ("call_id", "output"))


def _message(item: Any, typed: bool) -> dict | None:
    """One input item as a chat message; None where the worker drops it."""
    if not isinstance(item, dict):
        raise Unknown("invalid", "input item")
    if item.get("type") in (None, "message") and _CHAT_ONLY.intersection(item):
        if not typed:
            raise Unknown("invalid", "chat members in an input item")
        item = {key: value for key, value in item.items() if key not in _CHAT_ONLY}
    if item.get("role") == "developer":
        item = {**item, "role": "system", "content": _label(item.get("content"))}
    kind = item.get("type")
    if kind == "function_call":
        return _call(item, _object_text(item.get("arguments")))
    if kind == "custom_tool_call":
        return _call(item, json.dumps({"input": item.get("input") or ""}, ensure_ascii=False))
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = item.get("output", "")
        if isinstance(output, list):
            output = "".join(part.get("text", "") for part in output if isinstance(part, dict))
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
    if kind == "reasoning":
        return _reasoning(item)
    if kind not in (None, "message"):
        raise Unknown("invalid", "input item type")
    message = {key: value for key, value in item.items() if value is not None and key not in ("id", "status", "type")}
    if isinstance(message.get("content"), list):
        message["content"] = [_part(part) for part in message["content"]]
    return message


def _merge_assistants(messages: list[dict]) -> list[dict]:
    """Neighbouring assistant messages of one phase become one: the worker renders a turn as a single block."""
    merged: list[dict] = []
    for message in messages:
        last = merged[-1] if merged else None
        if not (last and last.get("role") == message.get("role") == "assistant" and last.get("phase") == message.get("phase")):
            merged.append(message)
            continue
        last = merged[-1] = dict(last)
        content = message.get("content")
        if content not in (None, ""):
            before = last.get("content")
            if before in (None, ""):
                last["content"] = content
            elif isinstance(before, str) and isinstance(content, str):
                last["content"] = f"{before}\n\n{content}"
            else:
                last["content"] = _as_parts(before) + _as_parts(content)
        if message.get("tool_calls"):
            last["tool_calls"] = (last.get("tool_calls") or []) + list(message["tool_calls"])
        thought = message.get("reasoning_content")
        if thought:
            before = last.get("reasoning_content")
            last["reasoning_content"] = f"{before}\n{thought}" if before else thought
    return merged


def _as_parts(content: Any) -> list:
    if isinstance(content, list):
        return list(content)
    return [{"type": "text", "text": content}] if isinstance(content, str) and content else []


def _tools(given: Any) -> list[dict]:
    tools = []
    for tool in optional(given, list, "tools") or ():
        if not isinstance(tool, dict) or tool.get("type") not in _TOOL_TYPES:
            raise Unknown("invalid", "tools")
        kind, description = tool["type"], optional(tool.get("description"), str, "tools")
        if kind == "function":
            parameters = optional(tool.get("parameters"), dict, "tools")
        elif kind == "custom" and tool.get("name"):
            description, parameters = _custom_description(description, tool.get("format")), _FREEFORM
        else:
            continue
        function = {"name": tool.get("name"), "description": description, "parameters": parameters, "strict": tool.get("strict", False)}
        tools.append({"type": "function", "function": function})
    return tools


def _custom_description(description: str | None, form: Any) -> str | None:
    parts = [description] if description else []
    if isinstance(form, dict) and form.get("type") == "grammar":
        parts.append(f"The payload must conform to this {form.get('syntax') or 'lark'} grammar:\n{form.get('definition') or ''}")
    return "\n\n".join(parts) or None


def _tool_choice(body: dict) -> Any:
    choice = body.get("tool_choice", "auto")
    if not isinstance(choice, dict):
        return choice
    inner = choice.get("function")
    name = choice.get("name") or (inner.get("name") if isinstance(inner, dict) else None)
    if choice.get("type") in ("function", "custom") and name:
        return {"type": "function", "function": {"name": name}}
    return "auto"
