"""What a body says to kv-aware routing beside its prompt: which images it holds, and how long its cache is worth keeping."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

# prompt_cache_retention → how much a cached page counts (behaviour.md §1.6)
RETENTION = {"24h": 2.0, "long": 2.0, "none": 0.1}
_MARKS = (b'"image_url"', b'"image"', b'"input_image"')


def cost_scale(retention: Any) -> float:
    """For a body's `prompt_cache_retention`; 1.0 for everything that is not known."""
    return RETENTION.get(retention, 1.0) if isinstance(retention, str) else 1.0


def may_hold_images(body: bytes) -> bool:
    return any(mark in body for mark in _MARKS)


def images(body: bytes) -> tuple[int, ...]:
    """64-bit keys of the images of a chat, Responses or Messages body, in their order. Blocking: as long as parsing and hashing the body takes."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ()
    found: list[int] = []
    for name in ("messages", "input"):
        if isinstance(value, dict) and isinstance(value.get(name), list):
            _walk(value[name], found)
    return tuple(found)


def _walk(value: Any, found: list[int]) -> None:
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, list):
            todo.extend(reversed(item))
        elif isinstance(item, dict):
            url = item.get("image_url")
            source = item.get("source")
            if isinstance(url, dict):
                url = url.get("url")
            elif url is None and item.get("type") == "image" and isinstance(source, dict):
                url = source.get("url") or source.get("data")
            if isinstance(url, str):
                found.append(int.from_bytes(hashlib.blake2b(url.encode("utf-8", "replace"), digest_size=8).digest(), "little"))
            else:
                todo.extend(reversed(list(item.values())))
