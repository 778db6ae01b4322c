"""The incremental ways equal the full ones: JSON, ids, page hashes; in bounded memory."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tracemalloc
from array import array

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from infera_router.kv import outline, prefix, renderer
from infera_router.kv.errors import Unknown
from infera_router.kv.ids import Ids
from infera_router.kv.pages import SPACING, PageForm, Pages, salt_seed
from infera_router.kv.prefix import Entry, IncrementalEncoder, PrefixCache
from infera_router.kv.prepare import Builder
from infera_router.kv.renderer import Renderer
from infera_router.kv.text import Text
from infera_router.kv.tokenizer import safe_cuts
from infera_router.kv.view import View
from infera_router.pd import envelope

MARKS = ["<|user|>", "<|assistant|>", "<|system|>", "<|endoftext|>", "[gMASK]", "<sop>", "<think>", "</tool_call>"]
PIECES = st.one_of(
    st.sampled_from(MARKS),
    st.sampled_from([" ", "\n", "  \n", "'s", "1234", "\u00e9", "e\u0301", "\u4f60", "<", "|", "<|", "|>", "[", "user", "\U0001f44d"]),
    st.text(max_size=12),
    st.text(alphabet="ab \n1'<|>", max_size=40),
)
TEXTS = st.lists(PIECES, max_size=30).map("".join)
CUTS = st.lists(st.floats(0, 1), max_size=6)
FULL = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def entry_of(text: str | Text, encoded) -> Entry:
    tokens = encoded.mark_tokens[-1] if encoded.mark_tokens else 0
    return Entry(text if isinstance(text, Text) else Text((text,)), Ids(encoded.ids.head(tokens)), encoded.mark_chars, encoded.mark_tokens)


def flat(parts) -> list[int]:
    return [token for part in parts for token in part]


def encode(incremental: IncrementalEncoder, text: str | Text, base: Entry | None = None):
    text = text if isinstance(text, Text) else Text((text,))
    return incremental.encode(text, base, incremental.shared_chars(text, base) if base is not None else 0)


def cut(text: str, at: list[float]) -> Text:
    """`text` in pieces, some of them empty, cut at these fractions of it."""
    places = sorted(round(fraction * len(text)) for fraction in at)
    return Text([text[start:end] for start, end in zip([0, *places], [*places, len(text)])])


@pytest.fixture(scope="module", params=["glm", "plain", "fast"])
def encoder(request, tokenizers):
    tokenizer = request.getfixturevalue("fast_tokenizer") if request.param == "fast" else tokenizers[request.param]
    assert len(tokenizer.cuts) >= 9
    return tokenizer, IncrementalEncoder(tokenizer.encode, tokenizer.cuts)


@FULL
@given(first=TEXTS, second=TEXTS, third=TEXTS, keep=st.floats(0, 1), cuts=st.lists(CUTS, min_size=3, max_size=3))
@example("<|user|>" + "a" * 300 + "<|assistant|>", "\n b<|user|>", "x", 1.0, [[], [], []])
def test_encoding_from_a_cut_equals_the_full_encode(encoder, first, second, third, keep, cuts):
    """A text, one that goes on from any point of it, and one that goes on from that: ids equal the library's own, always."""
    tokenizer, incremental = encoder
    full = lambda text: list(tokenizer._reference.encode(text, add_special_tokens=False).ids)  # noqa: E731
    base = None
    text = ""
    for part, places in zip((first, second, third), cuts):
        text = text[: round(len(text) * keep)] + part
        pieces = cut(text, places)
        made = encode(incremental, pieces, base)
        assert list(made.ids) == full(text)
        assert flat(made.ids.head(made.shared)) == flat(base.ids.head(made.shared) if base else [])
        for chars, tokens in zip(made.mark_chars, made.mark_tokens):
            assert flat(made.ids.head(tokens)) == full(text[:chars])
        base = entry_of(pieces, made)


@FULL
@given(text=TEXTS, few=st.sampled_from([1, 500, 1 << 40]), cuts=st.lists(st.sampled_from([*MARKS, "abc", "user", "\uff5cUser\uff5c"]), unique=True))
@example("<|user|>|<|user|>", 1, ["<|user|>"])
@example("user|>abc", 1, ["<|user|>", "abc"])
def test_cuts_are_found_by_their_rarest_character_as_by_the_words(text, few, cuts):
    found = IncrementalEncoder(None, tuple(cuts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix, "_FEW", few)
        assert found._ends(text) == sorted(at.end() for cut in cuts for at in re.finditer(re.escape(cut), text))


def test_many_rare_characters_do_not_make_the_search_slow():
    """A table of nothing but bars: each is looked at only up to what the words would have taken."""
    found = IncrementalEncoder(None, ("<|user|>", "<|assistant|>"))
    assert found._by_character("|" * 100_000, "|", 1, ("<|user|>", "<|assistant|>")) is None
    assert found._by_character("a|" * 100 + "a" * 100_000 + "<|user|>", "|", 1, ("<|user|>", "<|assistant|>")) == [100_208]


def test_long_texts_are_cut_and_reused(encoder):
    tokenizer, incremental = encoder
    text = "".join(f"<|user|>\nquestion {n} " + "word " * 80 + f"<|assistant|>\nanswer {n} " + "more " * 80 for n in range(20))
    made = encode(incremental, text)
    assert len(made.mark_chars) >= 38
    longer = encode(incremental, text + "<|user|>\nnext", entry_of(text, made))
    assert longer.shared == made.mark_tokens[-1] and longer.new_chars < 500
    edited = text.replace("question 10", "question ten")
    again = encode(incremental, edited, entry_of(text, made))
    assert 0.4 * len(made.ids) < again.shared < 0.6 * len(made.ids)
    assert list(again.ids) == list(tokenizer.encode(edited))


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["added_tokens"].append({**c["added_tokens"][0], "id": 1600, "content": "<|user|>x"}),  # a longer token begins with it
        lambda c: c["added_tokens"].append({**c["added_tokens"][0], "id": 1600, "content": "!<|user|>"}),  # and one contains it
        lambda c: c["added_tokens"].append({**c["added_tokens"][0], "id": 1600, "content": "!<|us"}),  # and one overlaps its start
    ],
)
def test_a_token_that_another_can_swallow_is_no_cut(change, model_dirs):
    from tokenizers import Tokenizer

    config = json.loads((model_dirs["glm"] / "tokenizer.json").read_text())
    assert "<|user|>" in safe_cuts(Tokenizer.from_str(json.dumps(config)))
    change(config)
    cuts = safe_cuts(Tokenizer.from_str(json.dumps(config)))
    assert "<|user|>" not in cuts and "[gMASK]" in cuts


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(pre_tokenizer={"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}),
        lambda c: c.update(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}),
        lambda c: c.update(normalizer={"type": "Prepend", "prepend": "x"}),
        lambda c: c["added_tokens"][3].update(lstrip=True),
        lambda c: c["added_tokens"][3].update(single_word=True),
    ],
)
def test_a_tokenizer_without_the_guarantee_has_no_cuts(change, model_dirs):
    from tokenizers import Tokenizer

    config = json.loads((model_dirs["glm"] / "tokenizer.json").read_text())
    change(config)
    assert safe_cuts(Tokenizer.from_str(json.dumps(config))) == ()


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**40), 2**40),
        st.text(max_size=8),
        st.sampled_from(["]", "}", '"', "\\", '],"x":1}', "messages"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
MESSAGES = st.lists(st.dictionaries(st.sampled_from(["role", "content", "x"]), JSON, max_size=3), max_size=5)
MEMBERS = st.dictionaries(st.one_of(st.text(max_size=6), st.sampled_from(["model", "stop", "messages"])), JSON, max_size=4)


@FULL
@given(
    head=MEMBERS,
    tail=MEMBERS,
    tail2=MEMBERS,
    known=MESSAGES,
    new=MESSAGES,
    gap=st.sampled_from(["", " ", "\n\t ", "\n" + 130 * " "]),
    ascii_only=st.booleans(),
)
def test_resumed_json_equals_a_full_parse(head, tail, tail2, known, new, gap, ascii_only):
    """Any members around the messages, duplicate names among them, odd spacing: fields and messages are those of a full parse."""

    def members(values):
        return [
            f"{json.dumps(key, ensure_ascii=ascii_only)}{gap}:{gap}{json.dumps(value, ensure_ascii=ascii_only)}"
            for key, value in values.items()
        ]

    def body(messages, after):
        array_ = "[" + gap + f"{gap},{gap}".join(json.dumps(m, ensure_ascii=ascii_only) for m in messages) + gap + "]"
        return ("{" + gap + f"{gap},{gap}".join([*members(head), f'"messages"{gap}:{gap}{array_}', *members(after)]) + gap + "}").encode(
            "utf-8", "surrogatepass"
        )

    first, second = body(known, tail), body(known + new, tail2)
    try:
        _, stem = outline.parse(first)
    except Unknown:
        return
    if stem is None:
        return
    resumed = outline.resume(second, stem) if second.startswith(stem.raw) else None
    want = json.loads(second)
    if resumed is None:
        return
    parsed, fresh = resumed
    assert known + parsed.messages == want.pop("messages")
    assert parsed.fields == want
    if fresh is not None:
        assert second.startswith(fresh.raw) and outline.resume(second, fresh)[0].messages == []


def test_resume_is_used_where_it_matters():
    known = [{"role": "user", "content": f'turn {n} \u00e9 ] }} " '} for n in range(30)]
    first = json.dumps({"model": "m", "messages": known, "stop": ["]"], "stream": True}).encode()
    second = json.dumps({"model": "m", "messages": [*known, {"role": "user", "content": "new"}], "stop": ["x]"], "n": 2}).encode()
    _, stem = outline.parse(first)
    assert len(stem.raw) > 0.9 * len(first)
    parsed, fresh = outline.resume(second, stem)
    assert parsed.messages == [{"role": "user", "content": "new"}] and parsed.fields == {"model": "m", "stop": ["x]"], "n": 2}
    assert len(fresh.raw) > len(stem.raw)


def test_a_long_name_costs_no_memory_of_its_length():
    code = ("import resource; from infera_router.kv import outline; peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10; "
            "before = peak(); _, stem = outline.parse(b'{\"' + b'k' * (8 << 20) + b'\":1,\"messages\":[{\"r\":1}]}'); print(stem is not None, peak() - before)")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found, grown = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True).stdout.split()
    assert found == "True" and int(grown) < 150, "MB for a name of 8 MB"


def test_a_name_that_occurs_twice_before_the_messages_is_not_taken_for_them():
    body = b'{"a":[{"r":1}],"a":[{"r":1}],"messages":[{"r":1}]}'
    parsed, stem = outline.parse(body)
    assert stem is None and parsed.messages == [{"r": 1}]


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [{"a": 1}], "messages": [{"b": 2}]}',
        b'{"messages": [{"a": 1}], "m\\u0065ssages": [{"b": 2}]}',
        b'{"n": 1, "messages": [{"a": 1}], "n": 2}',
        b'{"n": 1, "messages": [{"a": 1}] , "stream": true}',
    ],
)
def test_members_that_occur_twice_count_as_in_a_full_parse(body):
    for known in (b'{"messages": [{"a": 1}]}', b'{"n": 1, "messages": [{"a": 1}]}'):
        _, stem = outline.parse(known)
        resumed = outline.resume(body, stem) if body.startswith(stem.raw) else None
        if resumed is not None:
            want = json.loads(body)
            assert [{"a": 1}, *resumed[0].messages] == want.pop("messages") and resumed[0].fields == want
    parsed, stem = outline.parse(body)
    assert outline.parse(body, envelope.read(body)[0].members) == (parsed, stem)
    want = json.loads(body)
    assert parsed.messages == want.pop("messages") and parsed.fields == want


@settings(max_examples=200, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 2**32 - 1), max_size=200),
    cut=st.integers(0, 200),
    size=st.integers(1, 9),
    pairs=st.booleans(),
    salt=st.sampled_from([None, "", "s"]),
    before=st.lists(st.integers(-200, 199), max_size=3),
    looks=st.lists(st.tuples(st.integers(-200, 199), st.integers(0, 200), st.integers(1, 5)), max_size=6),
)
def test_hashes_are_the_same_however_far_and_in_which_order_they_were_made(tokens, cut, size, pairs, salt, before, looks):
    """The prompt goes on from another one with the same beginning, of which only some pages were looked at."""
    form, seed = PageForm(size, pairs), salt_seed(salt)
    wanted, last = [], seed
    for at in range(max(0, len(tokens) - pairs) // size):
        page = [(t, tokens[i + 1]) if pairs else (t,) for i, t in enumerate(tokens) if at * size <= i < (at + 1) * size]
        last = hashlib.sha256(last + array("I", [t for unit in page for t in unit]).tobytes()).digest()
        wanted.append(int.from_bytes(last[:8], "big", signed=True))
    shared = min(cut, len(tokens))
    other = Pages(array("I", tokens[:shared] + [7] * (cut % 5)), seed)
    for at in before:
        if -len(other.hashes(form)) <= at < len(other.hashes(form)):
            other.hashes(form)[at]
    chain = Pages(array("I", tokens), seed, chains=other.chains, shared=shared).hashes(form)
    assert len(chain) == len(wanted)
    for at, end, step in looks:
        if -len(wanted) <= at < len(wanted):
            assert chain[at] == wanted[at]
        assert list(chain[max(0, at):end:step]) == wanted[max(0, at):end:step]
        assert chain.made == len(wanted) or chain.made % SPACING == 0
    assert list(chain) == wanted


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=6), max_size=8), start=st.integers(0, 50), end=st.integers(0, 50))
def test_ids_in_parts_are_the_ids(parts, start, end):
    whole = [token for part in parts for token in part]
    made = Ids(array("I", part) for part in parts)
    assert list(made) == whole and len(made) == len(whole)
    assert array("I", made.raw(start, end)).tolist() == whole[start:end]
    assert flat(made.head(end)) == whole[:end]


def test_a_longer_conversation_is_found_by_the_names_that_it_has_from_the_shorter_one(encoder):
    tokenizer, incremental = encoder
    turn = "<|user|>" + "some words of a turn " * 60
    texts = [Text([turn] * count) for count in (3, 9)]
    names = []
    for reuse in (True, False):
        cache = PrefixCache(1 << 24)
        short = entry_of(texts[0], encode(incremental, texts[0]))
        made = entry_of(texts[1], encode(incremental, texts[1], short))
        cache.add(short)
        cache.add(made, short, incremental.shared_chars(texts[1], short) if reuse else 0)
        assert cache.by_text(texts[1]) is made and len(cache) == 1
        names.append(sorted(cache._text))
    assert names[0] == names[1] and len(names[0]) > 6


def conversation(rng: random.Random, length: int) -> list[dict]:
    out = [{"role": "system", "content": "shared " * 60}]
    for n in range(length):
        role = ("user", "assistant")[n % 2]
        words = [rng.choice(["alpha", "beta", "\u4f60\u597d", "<|user|>", "1234", "it's"]) for _ in range(rng.randrange(1, 120))]
        out.append({"role": role, "content": [{"type": "text", "text": " ".join(words)}] if rng.random() < 0.2 else " ".join(words)})
    return out


@pytest.mark.parametrize("model", ["glm", "plain"])
def test_requests_in_any_order_equal_the_plain_render(model, tokenizers):
    """Growing, edited, branched, truncated and repeated conversations through one small cache, against a render without a cache."""
    rng = random.Random(11)
    view = View()
    view.open("w", PageForm(8))
    view.open("x", PageForm(8, True))
    builder = Builder(tokenizers[model], view, cache_bytes=1_500_000)
    plain = Renderer(tokenizers[model])
    chats = [conversation(rng, 3) for _ in range(6)]
    reused = 0
    for step in range(150):
        pick = rng.randrange(len(chats))
        messages = chats[pick]
        action = rng.random()
        if action < 0.6:
            messages = [*messages, *conversation(rng, 2)[1:]]
        elif action < 0.7 and len(messages) > 3:
            messages = [*messages[:-2], {"role": "user", "content": f"edited {step}"}]
        elif action < 0.8:
            messages = messages[: max(2, len(messages) // 2)]
        if action < 0.9:
            chats[pick] = messages
        body = {"model": "m", "messages": messages, "stream": True, "max_tokens": step}
        if rng.random() < 0.3:
            body = {"max_tokens": step, **body, "tools": [{"type": "function", "function": {"name": f"f{step % 2}"}}]}
        if rng.random() < 0.2:
            body["cache_salt"] = f"s{step % 2}"
        raw = json.dumps(body).encode()
        base = builder.known("/v1/chat/completions", raw)
        reused += base is not None
        made = builder.build("/v1/chat/completions", raw, base)
        want = plain.prompts(body)[0]
        assert array("I", made.pages.ids) == want
        fresh = Pages(want, salt_seed(body.get("cache_salt")))
        for form in view.forms():
            assert list(made.pages.hashes(form)) == list(fresh.hashes(form))
        assert builder.cache.bytes <= 1_500_000
    assert reused > 40 and builder.tokens_reused > 0.5 * builder.tokens_total


def test_cache_stays_within_its_bytes_and_forgets_the_oldest():
    cache = PrefixCache(100_000)
    entries = []
    for n in range(40):
        text = f"{n:04d}" + "x" * 3000
        raw = outline.Stem(memoryview(f'{{"n":{n},"messages":[{{"content":"{"y" * 1500}"}}'.encode()), {})
        entry = Entry(Text((text,)), Ids((array("I", range(600)),)), array("Q", [len(text)]), array("Q", [600]), stem=raw, messages=[])
        cache.add(entry)
        entries.append(entry)
        assert cache.bytes <= 100_000
    assert cache.by_body(bytes(entries[-1].stem.raw) + b"]}") is entries[-1]
    assert cache.by_text(Text((*entries[-1].text.pieces, "more"))) is entries[-1]
    assert cache.by_body(bytes(entries[0].stem.raw) + b"]}") is None and cache.by_text(entries[0].text) is None
    assert 3 < len(cache) < 20
    for entry in entries:
        cache._drop(id(entry))
    assert cache.bytes == 0 and not cache._raw and not cache._text


LITTLE = {
    "lists in calls": lambda n: {"messages": [{"role": "user", "content": "u" * 600}, {"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "f", "arguments": {"a": [[]] * 4 * n}}}]}]},
    "parts": lambda n: {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * n}]},
    "messages": lambda n: {"messages": [{"role": "user", "content": ""}] * n},
    "members before": lambda n: {"metadata": [{}] * 4 * n, "messages": [{"role": "user", "content": "u" * 600}]},
    "wide letters": lambda n: {"messages": [{"role": "user", "content": "\U0001f44d" + "u" * 40 * n}]},
}


@pytest.mark.parametrize("kind", LITTLE)
def test_the_cache_holds_no_more_than_its_limit_of_what_is_small_as_text_and_large_in_memory(tokenizers, kind):
    builder = Builder(tokenizers["glm"], None, cache_bytes=2_000_000)
    body = lambda step: json.dumps({"step": step, **LITTLE[kind](5_000 + step)}, separators=(",", ":")).encode()  # noqa: E731
    builder.build("/v1/chat/completions", body(0))
    tracemalloc.start()
    try:
        for step in range(1, 12):
            builder.build("/v1/chat/completions", body(step))
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 2_500_000
    finally:
        tracemalloc.stop()
    for step in range(20):  # small ones are kept as ever
        builder.build("/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": f"{step} " * 300}]}).encode())
    assert len(builder.cache) >= 20


def test_tool_sets_are_kept_within_bytes_also_those_that_were_refused(tokenizers, monkeypatch):
    monkeypatch.setattr(renderer, "TOOL_BYTES", 1_000_000)
    made = Renderer(tokenizers["glm"])
    chats = [{"role": "user", "content": "u" * 1_000_000}]
    tools = lambda step, kind: [{"type": "function", "function": {"name": f"f{step}", "parameters": {"type": kind, "enum": [[]] * 500}}}]  # noqa: E731
    tracemalloc.start()
    try:
        for step in range(300):
            assert made.tools({"tools": tools(step, "object")}, chats)[0]["function"]["name"] == f"f{step}"
            try:
                refused = made.tools({"tools": tools(step, "varchar")}, [{"role": "user", "content": f"{step}" * 10_000}])
            except Unknown as unknown:
                refused = unknown.reason
            assert refused == "schema_types"
            assert made.tool_bytes <= 1_000_000
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 1_500_000
    finally:
        tracemalloc.stop()
    assert len(made._tool_sets) > 10


def test_the_fast_tokenizer_is_made_anew_when_the_process_has_grown(fast_tokenizer, monkeypatch):
    import time

    from infera_router.kv import tokenizer as module

    monkeypatch.setattr(module, "LOOK_EVERY", 100)
    before = fast_tokenizer._fast
    fast_tokenizer.encode("x " * 200)
    assert fast_tokenizer._fast is before, "it has not grown"
    monkeypatch.setattr(module, "GROWTH_LIMIT", -1 << 40)
    text = "word " * 200 + "<|user|>"
    want = fast_tokenizer.encode(text)
    ends = time.monotonic() + 20
    while fast_tokenizer._fast is before and time.monotonic() < ends:
        time.sleep(0.01)
    assert fast_tokenizer._fast is not before and fast_tokenizer.encode(text) == want


def test_a_fast_tokenizer_that_errs_is_left(model_dirs, monkeypatch):
    pytest.importorskip("gigatoken", reason="gigatoken is not installed: the tokenizers library alone is tested")
    from infera_router.kv import tokenizer as module

    monkeypatch.setattr(module, "SPOT_CHECK_EVERY", 3)
    one = module.Tokenizer(model_dirs["glm"])
    assert one.fast
    right = one._fast

    class Wrong:
        def encode(self, text):
            return right.encode(text)[:-1]

    one._fast = Wrong()
    for _ in range(3):
        one.encode("some words here")
    assert not one.fast and list(one.encode("some words here")) == list(one._reference.encode("some words here", add_special_tokens=False).ids)
