"""Any supported body to the token ids of its prompts: the plain way, without a cache."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from typing import Any

import orjson

from . import anthropic, chat, responses
from .errors import Unknown
from .held import held
from .text import Text
from .tokenizer import Tokenizer

_TOOL_SETS_KEPT = 128
# For all of them together, beside what the cache of prompts may have.
TOOL_BYTES = 32 * 1024 * 1024
_JSON_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_DATA_KEYS = frozenset({"default", "const", "enum", "example", "examples"})


class Renderer:
    """`tokenizer`'s model as its workers render it. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        # Validated tools or what was wrong with them, and the bytes held for them.
        self._tool_sets: OrderedDict[bytes, tuple[list[dict] | None | Unknown, int]] = OrderedDict()
        self._tool_lock = threading.Lock()
        self.tool_bytes = 0

    def check(self) -> None:
        """Raise Unknown where this model's chats are not rendered from a Jinja template that the router has."""
        tok = self.tokenizer
        if tok.own_encoder or tok.template is None or tok.template.rewrites_effort:
            raise Unknown("template", "the worker builds this model's prompts by rules of its own")
        if tok.multimodal and tok.adds_specials:
            raise Unknown("template", "a multimodal processor tokenizes this model's prompts")

    @property
    def as_list(self) -> bool:
        return self.tokenizer.template.content_format == "openai"

    def fields(self, route: str, body: dict) -> dict:
        """The chat members of a body of any chat-like route."""
        if route == "/v1/responses":
            return responses.chat_fields(body)
        if route == "/v1/messages":
            return anthropic.chat_fields(body)
        return body

    def chat(self, fields: dict, messages: list[dict] | None = None) -> chat.Chat:
        """The chat of such members. `messages`: the same in template form where they are known already."""
        self.check()
        given = fields.get("messages")
        if messages is None:
            if not isinstance(given, list) or not given:
                raise Unknown("invalid", "messages")
            as_list = self.as_list
            messages = [chat.template_message(message, as_list) for message in given]
        effort, variables = chat.reasoning(fields)
        effort = fields.get(chat.LATE_EFFORT, effort)
        made = chat.finish(fields, messages, self.tools(fields, messages), effort, variables, self.tokenizer.template.low_effort)
        made.variants = fields.get(chat.VARIANTS) or []
        return made

    def tools(self, fields: dict, messages: list[dict]) -> list[dict] | None:
        """The tools that the template gets; the same definitions are validated once."""
        given = fields.get("tools")
        if not given:
            return chat.template_tools(fields, messages)
        try:
            key = orjson.dumps((given, fields.get("tool_choice")))
        except TypeError:
            raise Unknown("invalid", "tools") from None
        found = self._tool_sets.get(key)
        known = found[0] if found is not None else self._keep_tools(key, fields, messages)
        if isinstance(known, Unknown):
            raise Unknown(known.reason, str(known))
        return known

    def _keep_tools(self, key: bytes, fields: dict, messages: list[dict]) -> list[dict] | None | Unknown:
        try:
            known = chat.template_tools(fields, messages)
            if not plain_schemas(fields["tools"]):
                # The worker rewrites type names of other systems ("varchar") before it renders.
                raise Unknown("schema_types")
        except Unknown as exc:
            known = exc.with_traceback(None)
        size = len(key) + (held(known) if isinstance(known, list) else 0)
        if known is None or size > TOOL_BYTES // 4:
            return known
        with self._tool_lock:
            if key not in self._tool_sets:
                # A copy: what orjson returns may hold many times its length.
                self._tool_sets[bytes(memoryview(key))] = known, size
                self.tool_bytes += size
            while self.tool_bytes > TOOL_BYTES or len(self._tool_sets) > _TOOL_SETS_KEPT:
                self.tool_bytes -= self._tool_sets.popitem(last=False)[1][1]
        return known

    def text(self, made: chat.Chat) -> Text:
        """The rendered prompt. Where the worker uses one of several sets of variables, all must give the same text."""
        pieces = self._render(made, made.variables)
        for variant in made.variants:
            if variant and "".join(self._render(made, {**made.variables, **variant})) != "".join(pieces):
                raise Unknown("reasoning_switch")
        return Text(pieces)

    def _render(self, made: chat.Chat, variables: dict[str, Any]) -> list[str]:
        template = self.tokenizer.template
        try:
            return template.render(made.messages, made.tools, variables)
        except Unknown:
            if not made.tools:
                raise
            # Some templates want the bare function objects; the worker tries those next.
            return template.render(made.messages, [tool["function"] for tool in made.tools], variables)

    def ids(self, made: chat.Chat) -> array:
        ids = self.tokenizer.encode(str(self.text(made)))
        if made.prefix:
            ids.extend(self.tokenizer.encode_prefix(made.prefix))
        return ids

    def prompts(self, body: dict, route: str = "") -> list[array]:
        """The ids of every prompt of a parsed body. Without a route: of a chat or a completions body."""
        if route in ("/v1/responses", "/v1/messages"):
            return [self.ids(self.chat(self.fields(route, body)))]
        if "messages" in body:
            given = body.get("input_ids")
            return [as_ids(given)] if given is not None else [self.ids(self.chat(body))]
        return self.completion(prompt_of(body))

    def completion(self, prompt: Any) -> list[array]:
        """The prompts of a completions body: a text, ids, or a list of either."""
        return [self.tokenizer.encode_raw(item) if isinstance(item, str) else as_ids(item) for item in split_prompt(prompt)]


def prompt_of(body: dict) -> Any:
    """What a completions or /generate body asks for. Raises Unknown for media and embeddings."""
    if any(body.get(key) is not None for key in ("image_data", "video_data", "audio_data", "input_embeds")):
        raise Unknown("multimodal")
    for key in ("prompt", "text", "input_ids"):
        if body.get(key) is not None:
            return body[key]
    raise Unknown("invalid", "prompt")


def split_prompt(prompt: Any) -> list:
    """The single prompts, each a text or a list of ids."""
    if isinstance(prompt, str) and prompt:
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise Unknown("invalid", "prompt")
    if isinstance(prompt[0], int):
        return [prompt]
    if all(isinstance(item, str) for item in prompt) or all(isinstance(item, list) for item in prompt):
        return prompt
    raise Unknown("invalid", "prompt")


def as_ids(given: Any) -> array:
    try:
        ids = array("I", given) if isinstance(given, list) and given else None
    except (TypeError, OverflowError):
        ids = None
    if ids is None:
        raise Unknown("invalid", "token ids")
    return ids


def plain_schemas(value: Any) -> bool:
    """Whether every `type` in tool definitions is one that JSON Schema knows."""
    if isinstance(value, list):
        return all(plain_schemas(item) for item in value)
    if not isinstance(value, dict):
        return True
    for key, item in value.items():
        if key == "type" and "function" not in value and not _plain_type(item):
            return False
        if key not in _DATA_KEYS and isinstance(item, (dict, list)) and not plain_schemas(item):
            return False
    return True


def _plain_type(kind: Any) -> bool:
    if isinstance(kind, str):
        return kind in _JSON_TYPES
    if isinstance(kind, list):
        return all(item in _JSON_TYPES for item in kind if isinstance(item, str)) and len(set(map(str, kind))) == len(kind)
    return True
