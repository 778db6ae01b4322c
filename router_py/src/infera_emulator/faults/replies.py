"""Answers in the shapes of SGLang's routes: whole and as a list of server-sent events. Tool calls are filled from the tool's own schema."""

from __future__ import annotations

import json
from typing import Any

WORDS = ("The", " quick", " brown", " fox", " jumps", " over", " the", " lazy", " dog", ".")


def words(count: int) -> list[str]:
    return [WORDS[i % len(WORDS)] for i in range(count)]


def dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def data(value: Any) -> bytes:
    return b"data: " + dump(value) + b"\n\n"


def named(value: dict) -> bytes:
    return b"event: " + value["type"].encode() + b"\n" + data(value)


def tokens_of(body: dict) -> int:
    """A stand-in for the prompt's size, the same whoever asks: a quarter of the text's characters."""
    keep = {k: body[k] for k in ("messages", "prompt", "text", "input", "system", "tools", "input_ids") if k in body}
    return max(1, len(json.dumps(keep)) // 4)


def limit_of(body: dict) -> int:
    sampling = body.get("sampling_params") or {}
    for value in (body.get("max_completion_tokens"), body.get("max_tokens"), body.get("max_output_tokens"), sampling.get("max_new_tokens")):
        if isinstance(value, int):
            return max(0, min(value, 100_000))
    return 8


def value_for(schema: dict, name: str) -> Any:
    """A value that fits a JSON schema, rich enough to show what encoding does to it."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        return {key: value_for(sub, key) for key, sub in schema.get("properties", {}).items()}
    if kind == "array":
        return [value_for(schema.get("items", {}), name), value_for(schema.get("items", {}), name)]
    if kind == "integer":
        return 42
    if kind == "number":
        return 4.5
    if kind == "boolean":
        return True
    if kind == "null":
        return None
    return f'{name}: "Zürich" \\ 東京\n☃'


def calls_of(body: dict) -> list[dict]:
    """One call for each offered tool, unless the last message already brings a result."""
    messages = body.get("messages") or []
    if messages:
        last = messages[-1]
        content = last.get("content")
        if last.get("role") == "tool" or isinstance(content, list) and any(p.get("type") == "tool_result" for p in content if isinstance(p, dict)):
            return []
    out = []
    for number, tool in enumerate(body.get("tools") or []):
        function = tool.get("function") or tool
        schema = function.get("parameters") or function.get("input_schema") or {}
        out.append({"id": f"call_{number}", "name": function.get("name", "tool"), "arguments": value_for({"type": "object", **schema}, "arguments")})
    return out


def result_text(body: dict) -> str | None:
    """The text of the last tool result, which the answer repeats."""
    for message in reversed(body.get("messages") or []):
        if message.get("role") == "tool":
            return str(message.get("content"))
        if isinstance(message.get("content"), list):
            for part in message["content"]:
                if isinstance(part, dict) and part.get("type") == "tool_result":
                    inner = part.get("content")
                    return inner if isinstance(inner, str) else json.dumps(inner)
    return None


def pieces(text: str, size: int = 7) -> list[str]:
    return [text[i:i + size] for i in range(0, len(text), size)]


class Reply:
    """What one request is answered: `whole` for a plain answer, `events` for a stream."""

    def __init__(self, path: str, body: dict, rid: str) -> None:
        self.path, self.body, self.rid = path, body, rid
        self.prompt = tokens_of(body)
        self.calls = calls_of(body)
        result = result_text(body)
        self.text = [f"The result was {result}"] if result is not None else words(limit_of(body))
        self.model = body.get("model") or "default"
        self.usage = {"prompt_tokens": self.prompt, "completion_tokens": len(self.text), "total_tokens": self.prompt + len(self.text)}

    def whole(self) -> bytes:
        if self.path == "/v1/messages":
            return dump(self._message(self._blocks()))
        if self.path == "/v1/responses":
            return dump(self._response("completed"))
        if self.path == "/v1/messages/count_tokens":
            return dump({"input_tokens": self.prompt})
        if self.path == "/generate":
            return dump({"text": "".join(self.text), "meta_info": {"id": self.rid, "finish_reason": {"type": "stop"}, **self.usage}})
        if self.path == "/v1/completions":
            return dump({"id": self.rid, "object": "text_completion", "created": 1, "model": self.model, "usage": self.usage,
                         "choices": [{"index": 0, "text": "".join(self.text), "finish_reason": "stop", "logprobs": None}]})
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.text), "tool_calls": None}
        if self.calls:
            message = {"role": "assistant", "content": None, "tool_calls": [
                {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": json.dumps(c["arguments"], ensure_ascii=False)}}
                for c in self.calls]}
        return dump({"id": self.rid, "object": "chat.completion", "created": 1, "model": self.model, "usage": self.usage,
                     "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if self.calls else "stop", "logprobs": None}]})

    def events(self) -> list[bytes]:
        if self.path == "/v1/messages":
            return self._message_events()
        if self.path == "/v1/responses":
            return self._response_events()
        if self.path == "/generate":
            out, text = [], ""
            for word in self.text:
                text += word
                out.append(data({"text": text, "meta_info": {"id": self.rid, "finish_reason": None}}))
            return out + [b"data: [DONE]\n\n"]
        if self.path == "/v1/completions":
            out = [data({"id": self.rid, "object": "text_completion", "created": 1, "model": self.model,
                         "choices": [{"index": 0, "text": word, "finish_reason": None, "logprobs": None}]}) for word in self.text]
            return out + self._usage_event("text_completion") + [b"data: [DONE]\n\n"]
        return self._chat_events()

    def _usage_event(self, kind: str) -> list[bytes]:
        options = self.body.get("stream_options") or {}
        if not options.get("include_usage"):
            return []
        return [data({"id": self.rid, "object": kind, "created": 1, "model": self.model, "choices": [], "usage": self.usage})]

    def _chat_events(self) -> list[bytes]:
        def event(delta: dict, finish: str | None = None) -> bytes:
            return data({"id": self.rid, "object": "chat.completion.chunk", "created": 1, "model": self.model,
                         "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]})

        out = [event({"role": "assistant", "content": ""})]
        for number, call in enumerate(self.calls):
            out.append(event({"tool_calls": [{"index": number, "id": call["id"], "type": "function",
                                              "function": {"name": call["name"], "arguments": ""}}]}))
            out += [event({"tool_calls": [{"index": number, "function": {"arguments": piece}}]})
                    for piece in pieces(json.dumps(call["arguments"], ensure_ascii=False))]
        if not self.calls:
            out += [event({"content": word}) for word in self.text]
        out.append(event({}, "tool_calls" if self.calls else "stop"))
        return out + self._usage_event("chat.completion.chunk") + [b"data: [DONE]\n\n"]

    def _blocks(self) -> list[dict]:
        if self.calls:
            return [{"type": "tool_use", "id": c["id"], "name": c["name"], "input": c["arguments"]} for c in self.calls]
        return [{"type": "text", "text": "".join(self.text)}]

    def _message(self, content: list[dict], done: bool = True) -> dict:
        stop = ("tool_use" if self.calls else "end_turn") if done else None
        return {"id": self.rid, "type": "message", "role": "assistant", "model": self.model, "content": content, "stop_reason": stop,
                "stop_sequence": None, "usage": {"input_tokens": self.prompt, "output_tokens": len(self.text) if done else 0}}

    def _message_events(self) -> list[bytes]:
        out = [named({"type": "message_start", "message": self._message([], done=False)})]
        for index, block in enumerate(self._blocks()):
            if block["type"] == "tool_use":
                out.append(named({"type": "content_block_start", "index": index, "content_block": {**block, "input": {}}}))
                deltas = [{"type": "input_json_delta", "partial_json": p} for p in pieces(json.dumps(block["input"], ensure_ascii=False))]
            else:
                out.append(named({"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}))
                deltas = [{"type": "text_delta", "text": word} for word in self.text]
            out += [named({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas]
            out.append(named({"type": "content_block_stop", "index": index}))
        out.append(named({"type": "message_delta", "delta": {"stop_reason": "tool_use" if self.calls else "end_turn", "stop_sequence": None},
                          "usage": {"output_tokens": len(self.text)}}))
        return out + [named({"type": "message_stop"})]

    def _response(self, status: str) -> dict:
        text = "".join(self.text)
        output = [{"type": "function_call", "id": f"fc_{c['id']}", "call_id": c["id"], "name": c["name"], "status": "completed",
                   "arguments": json.dumps(c["arguments"], ensure_ascii=False)} for c in self.calls] or [
            {"id": "msg_1", "type": "message", "role": "assistant", "status": status,
             "content": [{"type": "output_text", "text": text, "annotations": []}]}]
        return {"id": "resp_" + self.rid, "object": "response", "created_at": 1, "model": self.model, "status": status, "output": output,
                "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
                "usage": {"input_tokens": self.prompt, "output_tokens": len(self.text), "total_tokens": self.prompt + len(self.text),
                          "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}}

    def _response_events(self) -> list[bytes]:
        final = self._response("completed")
        steps: list[dict] = [{"type": "response.created", "response": {**self._response("in_progress"), "output": [], "usage": None}}]
        for index, item in enumerate(final["output"]):
            at = {"output_index": index, "item_id": item["id"]}
            if item["type"] == "function_call":
                steps.append({"type": "response.output_item.added", "output_index": index, "item": {**item, "arguments": "", "status": "in_progress"}})
                steps += [{"type": "response.function_call_arguments.delta", **at, "delta": piece} for piece in pieces(item["arguments"])]
                steps.append({"type": "response.function_call_arguments.done", **at, "name": item["name"], "arguments": item["arguments"]})
            else:
                at["content_index"] = 0
                (part,) = item["content"]
                steps.append({"type": "response.output_item.added", "output_index": index, "item": {**item, "content": [], "status": "in_progress"}})
                steps.append({"type": "response.content_part.added", **at, "part": {**part, "text": ""}})
                steps += [{"type": "response.output_text.delta", **at, "delta": word, "logprobs": []} for word in self.text]
                steps.append({"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []})
                steps.append({"type": "response.content_part.done", **at, "part": part})
            steps.append({"type": "response.output_item.done", "output_index": index, "item": item})
        steps.append({"type": "response.completed", "response": final})
        return [named({**step, "sequence_number": number}) for number, step in enumerate(steps)]
