"""The model's chat template, rendered as Hugging Face's `apply_chat_template` renders it.

The rules reproduced here are documented behaviour of transformers (chat templating guide) and were checked
against transformers 5.19 as SGLang 0.5.22 pins it: an immutable sandbox with trimmed blocks, the loop-control
extension, `generation` blocks, `tojson` without HTML escapes, `raise_exception` and `strftime_now`.
"""

from __future__ import annotations

import datetime
import json
import pathlib
from typing import Any

from .errors import TokenizerError, Unknown

# A client's chat_template_kwargs may not redefine what the worker passes itself: it would answer 400 or render another template.
RESERVED = frozenset({
    "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents", "max_length", "messages", "padding",
    "return_assistant_tokens_mask", "return_dict", "return_tensors", "self", "tokenize", "tokenizer_kwargs", "tools", "truncation",
})
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def load_json(path: pathlib.Path) -> dict:
    """The JSON object in `path`, or {} where there is no such file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise TokenizerError(f"--router-tokenizer-path: {path} is no JSON ({exc}); copy the model's tokenizer files again") from exc
    if not isinstance(value, dict):
        raise TokenizerError(f"--router-tokenizer-path: {path} holds no JSON object; copy the model's tokenizer files again")
    return value


def _environment():
    import jinja2
    import jinja2.ext
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks assistant text for training masks; for a prompt it is transparent."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

        def _content(self, caller):
            return caller()

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda fmt: datetime.datetime.now().strftime(fmt)
    return env


def _iterates_content(env, source: str) -> bool:
    """Whether the template loops over a message's content, so that the worker hands it a list of parts."""
    from jinja2 import nodes

    if any(word in source for word in ("image", "audio", "video", "vision")):
        return True

    def is_content(node) -> bool:
        while True:
            if isinstance(node, (nodes.Filter, nodes.Test)) and node.node is not None:
                node = node.node
            elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
                node = node.node
            else:
                break
        if isinstance(node, nodes.Getitem):
            named = isinstance(node.arg, nodes.Const) and node.arg.value == "content"
        elif isinstance(node, nodes.Getattr):
            named = node.attr == "content"
        else:
            return False
        return named and isinstance(node.node, nodes.Name) and node.node.name in ("message", "msg", "m")

    return any(is_content(loop.iter) for loop in env.parse(source).find_all(nodes.For))


class ChatTemplate:
    """One compiled template. `content_format` is "openai" (lists of parts) or "string", by SGLang's detection.

    `low_effort` is the name of the template variable that stands for reasoning_effort "low" on templates of that kind, or None.
    """

    def __init__(self, source: str, special_tokens: dict[str, str]):
        import jinja2

        env = _environment()
        try:
            self._compiled = env.from_string(source)
            self.content_format = "openai" if _iterates_content(env, source) else "string"
        except jinja2.TemplateError as exc:
            raise TokenizerError(f"--router-tokenizer-path: the chat template does not compile: {exc}") from exc
        self.source = source
        self._special = special_tokens
        self.low_effort = "low_effort" if "low_effort" in source and "truncate_history_thinking" in source else None
        # These templates take a reasoning effort that the worker rewrites by its --reasoning-parser, which the router does not know.
        self.rewrites_effort = all(word in source for word in ("reasoning_effort", "reasoning_mode_token", "no_think"))

    def render(self, messages: list[dict], tools: list[dict] | None, variables: dict[str, Any]) -> list[str]:
        """The prompt's text with a generation prompt, in pieces. Raises Unknown where the worker answers 400."""
        if not messages or RESERVED.intersection(variables):
            raise Unknown("template", "no messages, or chat_template_kwargs with a reserved name")
        try:
            given = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True, **self._special, **variables}
            return list(self._compiled.root_render_func(self._compiled.new_context(given)))
        except Exception as exc:  # whatever a template raises, the router routes on load
            raise Unknown("template", f"{type(exc).__name__}: {exc}") from exc


def load_template(folder: pathlib.Path, config: dict) -> ChatTemplate | None:
    """The template that SGLang uses for the model in `folder`; None where the model has none.

    chat_template.jinja wins over tokenizer_config.json. Of several named templates SGLang takes the first.
    """
    named: dict[str, str] = {}
    main = folder / "chat_template.jinja"
    if main.is_file():
        named["default"] = main.read_text(encoding="utf-8")
    for extra in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        named[extra.stem] = extra.read_text(encoding="utf-8")
    if not named:
        given = config.get("chat_template")
        if isinstance(given, str):
            named["default"] = given
        elif isinstance(given, list):
            named = {item["name"]: item["template"] for item in given if isinstance(item, dict)}
    if not named:
        return None
    return ChatTemplate(next(iter(named.values())), special_tokens(folder, config))


def special_tokens(folder: pathlib.Path, config: dict) -> dict[str, str]:
    """bos_token, eos_token, … that templates may name; tokenizer_config.json wins over special_tokens_map.json."""
    values = {**load_json(folder / "special_tokens_map.json"), **{k: v for k, v in config.items() if v is not None}}
    found = {}
    for name in _SPECIAL_NAMES:
        value = values.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found
