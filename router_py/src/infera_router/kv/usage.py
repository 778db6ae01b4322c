"""The prompt's size as an engine's reply tells it, read off the reply's last bytes."""

from __future__ import annotations

import re

_PROMPT = re.compile(rb'"(?:prompt|input)_tokens": ?(\d{1,12})\b')
_CACHED = re.compile(rb'"cache_read_input_tokens": ?(\d{1,12})\b')


def prompt_tokens(tail: bytes) -> int | None:
    """usage.prompt_tokens of a reply that ends with `tail`; None where it says nothing. Anthropic's input_tokens leave cached tokens out."""
    at = tail.rfind(b'"usage":')
    if at < 0:
        # Native /generate: meta_info.
        at = tail.rfind(b'"meta_info":')
    found = _PROMPT.search(tail, at) if at >= 0 else None
    if found is None:
        return None
    cached = _CACHED.search(tail, at)
    return int(found[1]) + (int(cached[1]) if cached else 0)
