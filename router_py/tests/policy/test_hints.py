"""What a body says to kv-aware routing beside its prompt."""
import json
import types

import pytest
from infera_router.kv.prepare import Prepared
from infera_router.pd import envelope, hints
from infera_router.pd.core import Core

DATA = "data:image/png;base64,AAAA"


def body(*content, **more):
    return json.dumps({"messages": [{"role": "user", "content": list(content)}], **more}).encode()


def test_the_same_image_has_the_same_key_in_every_form():
    forms = [
        body({"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": DATA}}),
        body({"type": "image_url", "image_url": DATA}),
        json.dumps({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": DATA}]}]}).encode(),
        body({"type": "image", "source": {"type": "url", "url": DATA}}),
        body({"type": "tool_result", "content": [{"type": "image", "source": {"type": "base64", "data": DATA}}]}),
    ]
    keys = [hints.images(form) for form in forms]
    assert len(keys[0]) == 1 and set(keys) == {keys[0]} and all(hints.may_hold_images(form) for form in forms)


def test_images_keep_their_order_and_text_is_none():
    a, b = ({"type": "image_url", "image_url": {"url": url}} for url in ("http://h/a", "http://h/b"))
    assert hints.images(body(a, b)) == hints.images(body(a)) + hints.images(body(b)) and hints.images(body(b, a)) != hints.images(body(a, b))
    assert hints.images(body({"type": "text", "text": '"image_url"'})) == ()
    assert not hints.may_hold_images(body({"type": "text", "text": "an image"}))


@pytest.mark.parametrize("broken", [b"", b"[]", b'{"messages": 5}', b'{"messages": [1, null]}', b'{"messages": "image_url"}', b"[" * 2000])
def test_a_body_of_another_form_has_no_images(broken):
    assert hints.images(broken) == ()


@pytest.mark.parametrize("value, scale", [("24h", 2.0), ("long", 2.0), ("none", 0.1), ("in_memory", 1.0), (None, 1.0), (5, 1.0), ({}, 1.0)])
def test_retention_scales_what_a_cached_page_counts(value, scale):
    assert hints.cost_scale(value) == scale


def test_hints_reach_the_policy():
    import asyncio

    raw = body({"type": "image_url", "image_url": DATA}, model="m", prompt_cache_retention="none")
    read, _ = envelope.read(raw)

    async def facts(route, given, known, members):
        return Prepared(error="image")

    async def run():
        core = types.SimpleNamespace(preparer=types.SimpleNamespace(facts=facts), loop=asyncio.get_running_loop())
        return await Core.prepare(core, "/v1/chat/completions", read, raw, "s", None)

    made, _prepared = asyncio.run(run())
    assert (made.model, made.tokens, made.session, made.cost_scale, made.images) == ("m", None, "s", 0.1, hints.images(raw))
