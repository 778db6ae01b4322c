"""A /v1/messages body as the chat that SGLang 0.5.22 makes of it.

As with Responses, system messages inside the conversation are built both ways, and the prompt is known only where both are equal.
Earlier thinking blocks and the `thinking` switch depend on the worker's --reasoning-parser: history with thinking text is unknown,
the switch is known where every variable that it may set renders the same text (`variants`).
"""

from __future__ import annotations

from typing import Any

from .chat import LATE_EFFORT, VARIANTS, optional
from .errors import Unknown

_SERVER_TOOLS = ("web_search_", "computer_", "bash_", "text_editor_")
_CHOICES = {"none": "none", "auto": "auto", "any": "required"}


def chat_fields(body: dict) -> dict:
    """The chat members that stand for `body`; VARIANTS lists template variables of which the worker uses one set."""
    merged, inline = (construct_messages(body, supports_inline_system=flag) for flag in (False, True))
    if merged != inline:
        raise Unknown("system_order")
    tools = _tools(body.get("tools"))
    fields: dict[Any, Any] = {"messages": inline, "tools": tools or None, "tool_choice": _tool_choice(body, tools)}
    thinking = optional(body.get("thinking"), dict, "thinking")
    if thinking is not None:
        if thinking.get("type") not in ("enabled", "disabled", "adaptive"):
            raise Unknown("invalid", "thinking")
        enabled = thinking["type"] != "disabled"
        fields[VARIANTS] = [{}, {"thinking": enabled}, {"enable_thinking": enabled}]
    config = optional(body.get("output_config"), dict, "output_config")
    effort = optional((config or {}).get("effort"), str, "output_config")
    if effort is not None:
        # Set after the worker's own merging, so that it moves no thinking switch.
        fields[LATE_EFFORT] = "max" if effort == "xhigh" else effort
    return fields


def construct_messages(body: dict, supports_inline_system: bool) -> list[dict]:
    """The chat messages of a Messages body, as the worker converts them."""
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise Unknown("invalid", "messages")
    system = _system(body.get("system"))
    out: list[dict] = []
    for message in given:
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
            raise Unknown("invalid", "message")
        role, content = message["role"], message.get("content")
        if not isinstance(content, (str, list)):
            raise Unknown("invalid", "content")
        if role == "system" and not supports_inline_system:
            text = _trimmed(content)
            if text:
                system.append(text)
        elif isinstance(content, str):
            out.append({"role": role, "content": content})
        else:
            _convert(role, content, out)
    if system:
        out.insert(0, {"role": "system", "content": "\n".join(system)})
    return out


def _system(system: Any) -> list[str]:
    if not system:
        return []
    if isinstance(system, str):
        return [system] if system.strip() else []
    if not isinstance(system, list):
        raise Unknown("invalid", "system")
    return [_block(block)["text"] for block in system if _block(block)["type"] == "text" and block["text"]]


def _trimmed(content: str | list) -> str | None:
    if isinstance(content, str):
        return content.strip() or None
    texts = [block["text"].strip() for block in content if _block(block)["type"] == "text"]
    return "\n".join(text for text in texts if text) or None


def _block(block: Any) -> dict:
    """A validated content block. Raises Unknown for what the worker refuses and for kinds that are not supported here."""
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text" and isinstance(block.get("text"), str):
        return block
    if kind == "tool_use" and isinstance(block.get("id"), str) and isinstance(block.get("name"), str):
        optional(block.get("input", {}), dict, "tool_use")
        return block
    if kind in ("tool_result", "tool_reference"):
        return block
    if kind == "thinking" and isinstance(block.get("thinking"), str):
        return block
    if kind == "image":
        raise Unknown("multimodal")
    raise Unknown("invalid", "content block")


def _results(content: Any) -> tuple[list, str]:
    """(contents of the tool messages, the plain text) of one tool result; references stand apart from text."""
    if content is None or isinstance(content, str):
        return [content or ""], content or ""
    if not isinstance(content, list):
        raise Unknown("invalid", "tool_result")
    groups: list[list[dict]] = []
    texts = []
    for block in content:
        block = _block(block)
        if block["type"] == "text":
            if not block["text"]:
                continue
            texts.append(block["text"])
            part = {"type": "text", "text": block["text"]}
        elif block["type"] == "tool_reference":
            name = block.get("tool_name") or block.get("name")
            if not name:
                continue
            part = {"type": "tool_reference", "name": name}
        else:
            continue
        if not groups or groups[-1][0]["type"] != part["type"]:
            groups.append([])
        groups[-1].append(part)
    contents = [group[0]["text"] if len(group) == 1 and group[0]["type"] == "text" else group for group in groups]
    return contents or [""], "\n".join(texts)


def _joined(parts: list[dict]) -> str | list[dict]:
    return parts[0]["text"] if len(parts) == 1 else parts


def _convert(role: str, blocks: list, out: list[dict]) -> None:
    """Append what one message with blocks becomes: text stays in order around the tool results that it encloses."""
    message: dict[str, Any] = {"role": role}
    parts: list[dict] = []
    calls = []
    for block in map(_block, blocks):
        kind = block["type"]
        if kind == "thinking":
            if role == "assistant" and block["thinking"]:
                raise Unknown("thinking_history")
        elif kind == "text":
            parts.append({"type": "text", "text": block["text"]})
        elif kind == "tool_use":
            function = {"name": block["name"], "arguments": block.get("input") or {}}
            calls.append({"id": block["id"], "type": "function", "function": function})
        elif kind == "tool_result":
            contents, text = _results(block.get("content"))
            if role == "user":
                if parts:
                    out.append({"role": "user", "content": _joined(parts)})
                    parts = []
                call_id = block.get("tool_use_id") or block.get("id") or ""
                out.extend({"role": "tool", "tool_call_id": call_id, "content": content} for content in contents)
            else:
                parts.append({"type": "text", "text": f"Tool result: {text}"})
    if calls:
        message["tool_calls"] = calls
    if parts:
        message["content"] = _joined(parts)
    elif not calls:
        if role == "user":
            return
        message["content"] = ""
    out.append(message)


def _tools(given: Any) -> list[dict]:
    tools = []
    for tool in optional(given, list, "tools") or ():
        if not isinstance(tool, dict):
            raise Unknown("invalid", "tools")
        kind = tool.get("type")
        if isinstance(kind, str) and kind.startswith(_SERVER_TOOLS):
            continue
        schema = tool.get("input_schema")
        if kind not in (None, "", "custom") or not isinstance(schema, dict) or not isinstance(tool.get("name"), str):
            raise Unknown("invalid", "tools")
        schema = schema if "type" in schema else {**schema, "type": "object"}
        function = {"name": tool["name"], "description": optional(tool.get("description"), str, "tools") or "", "parameters": schema}
        tools.append({"type": "function", "function": function, "defer_loading": tool.get("defer_loading")})
    return tools


def _tool_choice(body: dict, tools: list[dict]) -> Any:
    choice = optional(body.get("tool_choice"), dict, "tool_choice")
    if choice is None:
        return "auto" if tools else "none"
    kind = choice.get("type")
    if kind == "tool" and tools:
        return {"type": "function", "function": {"name": choice.get("name")}}
    if kind not in _CHOICES or kind == "any" and not tools:
        raise Unknown("invalid", "tool_choice")
    return _CHOICES[kind] if tools else "none"
