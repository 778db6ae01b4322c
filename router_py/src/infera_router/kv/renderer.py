"""Any supported body to the token ids of its prompts: the plain way, without a cache."""

from __future__ import annotations

from array import array
from typing import Any

from . import chat
from .errors import Unknown
from .tokenizer import Tokenizer


class Renderer:
    """`tokenizer`'s model as one worker serves it. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

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

    def chat(self, fields: dict) -> chat.Chat:
        """The chat of a /v1/chat/completions body in template form."""
        self.check()
        messages = fields.get("messages")
        if not isinstance(messages, list) or not messages:
            raise Unknown("invalid", "messages")
        as_list = self.as_list
        effort, variables = chat.reasoning(fields)
        return chat.finish(
            fields, [chat.template_message(message, as_list) for message in messages], chat.template_tools(fields, messages),
            effort, variables, self.tokenizer.template.low_effort)

    def text(self, chat_: chat.Chat) -> str:
        """The rendered prompt. A template that fails on tools is tried once more with the bare function objects, as the worker does."""
        template = self.tokenizer.template
        try:
            return template.render(chat_.messages, chat_.tools, chat_.variables)
        except Unknown:
            if not chat_.tools:
                raise
            return template.render(chat_.messages, [tool.get("function", tool) for tool in chat_.tools], chat_.variables)

    def ids(self, chat_: chat.Chat) -> array:
        ids = self.tokenizer.encode(self.text(chat_))
        if chat_.prefix:
            ids.extend(self.tokenizer.encode_prefix(chat_.prefix))
        return ids

    def prompts(self, fields: dict) -> list[array]:
        """The ids of every prompt in a parsed chat or completions body."""
        given = fields.get("input_ids")
        if given is not None and "messages" in fields:
            return [as_ids(given)]
        if "messages" in fields:
            return [self.ids(self.chat(fields))]
        return self.completion(fields.get("prompt"))

    def completion(self, prompt: Any) -> list[array]:
        """The prompts of a completions body: a text, ids, or a list of either."""
        if isinstance(prompt, str) and prompt:
            return [self.tokenizer.encode_raw(prompt)]
        if not isinstance(prompt, list) or not prompt:
            raise Unknown("invalid", "prompt")
        if isinstance(prompt[0], int):
            return [as_ids(prompt)]
        if all(isinstance(item, str) for item in prompt):
            return [self.tokenizer.encode_raw(item) for item in prompt]
        return [as_ids(item) for item in prompt]


def as_ids(given: Any) -> array:
    try:
        ids = array("I", given) if isinstance(given, list) and given else None
    except (TypeError, OverflowError):
        ids = None
    if ids is None:
        raise Unknown("invalid", "token ids")
    return ids
