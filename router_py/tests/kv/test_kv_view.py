"""Event batches as the wheel encodes them, and what a view makes of them: tiers, namespaces, unknown parents, bounds, overlaps."""

from __future__ import annotations

import random
from array import array
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from infera_router.kv import view as view_module
from infera_router.kv.events import CPU, DISK, EXTERNAL, GPU, Cleared, Removed, Stored, decode
from infera_router.kv.pages import SPACING, PageForm, Pages, salt_seed
from infera_router.kv.view import Overlap, RankView, View


@pytest.fixture
def batches(golden) -> dict[str, bytes]:
    """Built with the wheel's own event classes and encoder. The CPU engine itself never publishes lower tiers or pairs."""
    return {name: bytes.fromhex(text) for name, text in golden["batches"].items()}


FORM = PageForm(2)


def rank_view(form: PageForm = FORM, limit: int = 1000) -> RankView:
    rank = RankView(form, limit, Counter())
    rank.shown = True
    return rank


def applied(batches: dict, *names: str) -> RankView:
    rank = rank_view()
    for name in names:
        found, unknown = decode(batches[name])
        assert found and not unknown
        rank.apply(found)
    return rank


def test_batches_of_the_wheel_are_understood(batches):
    assert decode(batches["plain"]) == ([Stored([11, -12], None, GPU, 2, False, False), Stored([13], -12, GPU, 2, False, False)], 0)
    assert decode(batches["host_copy"])[0] == [Stored([11], None, CPU, 2, False, False)]
    assert decode(batches["device_gone"])[0] == [Removed([11], GPU)]
    assert decode(batches["disk"])[0] == [Stored([21], None, DISK, 2, False, False), Stored([22], 21, EXTERNAL, 2, False, False)]
    assert decode(batches["pairs"])[0] == [Stored([31], None, GPU, 2, True, False)]
    assert decode(batches["lora"])[0] == [Stored([51], None, GPU, 2, False, True)]
    assert decode(batches["cleared"])[0] == [Cleared()]
    assert decode(batches["no_medium"])[0] == [Stored([61], None, GPU, 2, False, False), Removed([61], GPU)]


@pytest.mark.parametrize("event", [
    ["BlockStored", [2], None, [1] * 8, None], ["BlockStored", [2], [1], [1] * 8, 8], ["BlockStored", ["x"], None, [1] * 8, 8], ["BlockStored", 2, None, [], 8],
])
def test_an_array_that_is_no_event_is_counted_and_left_out(event):
    assert decode(msgspec.msgpack.encode([1.0, [event], 0])) == ([], 1)


def test_arrays_of_older_engines_mean_the_same():
    def encode(*rows):
        return decode(msgspec.msgpack.encode([1.0, list(rows), 0]))[0]

    assert encode(["BlockStored", [11, 2**64 - 12], None, [1, 2, 3, 4], 2, None, "GPU"]) == [Stored([11, -12], None, GPU, 2, False, False)]
    assert encode(["BlockStored", [31], 11, [[1, 2], [2, 3]], 2]) == [Stored([31], 11, GPU, 2, True, False)]
    assert encode(["BlockStored", [51], None, [1, 2], 2, 7, "CPU_PINNED"]) == [Stored([51], None, CPU, 2, False, True)]
    assert encode(["BlockRemoved", [11], "CPU_PINNED"], ["BlockRemoved", [12]], ["AllBlocksCleared"]) == [
        Removed([11], CPU), Removed([12], GPU), Cleared()]


def test_unknown_fields_are_ignored_and_unknown_events_counted():
    stored = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None, "token_ids": [5], "block_size": 1, "new": {"x": [1]}}
    batch = [1.0, [stored, {"type": "BlockMoved", "block_hashes": [1]}, ["Other"], {"no": "type"}, stored], 0, "more"]
    found, unknown = decode(msgspec.msgpack.encode(batch))
    assert found == [Stored([1], None, GPU, 1, False, False)] * 2 and unknown == 3


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x01", msgspec.msgpack.encode({"events": []}), msgspec.msgpack.encode(["x", 3])])
def test_what_is_no_batch_is_said_to_be_none(payload):
    with pytest.raises(msgspec.DecodeError):
        decode(payload)


def test_a_page_is_held_while_any_tier_has_it(batches):
    assert applied(batches, "plain").pages == {11: GPU, -12: GPU, 13: GPU}
    assert applied(batches, "plain", "host_copy").pages[11] == GPU | CPU
    assert applied(batches, "plain", "host_copy", "device_gone").pages[11] == CPU
    assert 11 not in applied(batches, "plain", "host_copy", "device_gone", "host_gone").pages
    assert applied(batches, "plain", "host_copy", "host_gone").pages[11] == GPU
    assert applied(batches, "plain", "disk", "cleared").pages == {}


def test_a_page_on_the_host_is_a_hit_and_told_apart(batches):
    rank = applied(batches, "plain", "host_copy", "device_gone")
    pages = Pages(array("I", range(8)))
    pages.chains[(rank.form, b"")] = (11, -12, 13, 14)
    assert rank.overlap(pages) == Overlap(4, 2, 1)


def test_pairs_change_the_form(batches):
    rank = applied(batches, "pairs")
    assert rank.form == PageForm(2, True)
    assert rank.overlap(Pages(array("I", range(9)))).pages == 4, "nine tokens are eight pairs"


def test_unknown_parents_are_counted_and_their_pages_kept():
    rank = rank_view()
    rank.apply([Stored([2], 1, GPU, 2, False, False), Stored([3], 2, GPU, 2, False, False)])
    assert rank.counts["unknown_parent"] == 1 and set(rank.pages) == {2, 3}


def test_a_view_is_bounded():
    rank = rank_view(limit=10)
    rank.apply([Stored(list(range(25)), None, GPU, 2, False, False)])
    assert len(rank.pages) == 10 and rank.counts["over_limit"] == 15
    rank.apply([Removed([0], GPU), Stored([77], None, GPU, 2, False, False)])
    assert len(rank.pages) == 10 and 77 in rank.pages


PROMPT = array("I", range(40))


def holding(pages: Pages, count: int, foreign: bool = False) -> View:
    view = View()
    rank = view.open("w", FORM)
    rank.shown = True
    rank.apply([Stored(list(pages.hashes(FORM)[:count]), None, GPU, 2, False, foreign)])
    return view


def test_namespaces_share_nothing():
    plain, salted = Pages(PROMPT), Pages(PROMPT, salt_seed("tenant"))
    assert holding(plain, 5).overlap("w", plain) == (20, 5, 0)
    assert holding(plain, 5).overlap("w", salted) == (20, 0, 0)
    assert holding(salted, 5).overlap("w", salted) == (20, 5, 0)
    assert holding(salted, 5).overlap("w", Pages(PROMPT, salt_seed("other"))) == (20, 0, 0)
    assert holding(plain, 5).overlap("w", Pages(PROMPT, credit=False)) == (20, 0, 0), "an extra_key keeps its pages apart"
    assert holding(plain, 5, foreign=True).overlap("w", plain) == (20, 0, 0), "a LoRA adapter's pages are nobody else's"


def test_a_view_in_repair_gives_no_hit_and_shows_nothing():
    view = holding(Pages(PROMPT), 5)
    view.ranks["w"].shown = False
    assert view.overlap("w", Pages(PROMPT)) == (20, 0, 0) and view.sizes() == {"w": 0} and view.holds("w") == {}
    view.ranks["w"].shown = True
    assert view.sizes() == {"w": 5} and len(view.holds("w")) == 5
    assert view.overlap("unknown", Pages(PROMPT)).device == 0


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32), total=st.integers(0, 60), lookups=st.integers(1, 70))
def test_overlap_equals_a_walk_page_by_page(seed, total, lookups):
    """On any view that an engine can have: a page is held only where all before it are. A search finds the same run."""
    rng = random.Random(seed)
    pages = Pages(array("I", (rng.randrange(9) for _ in range(total))))
    hashes = pages.hashes(PageForm(1))
    rank = rank_view(PageForm(1))
    for _ in range(rng.randrange(4)):
        held = rng.randrange(total + 1)
        rank.apply([Stored(list(hashes[:held]), None, rng.choice((GPU, CPU)), 1, False, False)])
    if rng.random() < 0.5 and total:
        rank.apply([Removed(list(hashes[rng.randrange(total):]), GPU)])
    run = next((at for at, page in enumerate(hashes) if page not in rank.pages), total)
    saved, view_module._LOOKUPS = view_module._LOOKUPS, lookups
    fresh = Pages(pages.ids)
    try:
        found = rank.overlap(fresh)
    finally:
        view_module._LOOKUPS = saved
    # no more of it is hashed than the search needs
    assert fresh.hashes(PageForm(1)).made <= max(2 * (run + 64), lookups + SPACING)
    assert found.pages == total and found.device + found.host == run
    if total <= lookups:
        assert found.device == sum(1 for page in hashes[:run] if rank.pages[page] & GPU)


@pytest.mark.parametrize(("held", "known", "made"), [
    (0, 0, SPACING),        # another prompt is held: the first pages tell
    (0, 100, 112),          # what an earlier prompt had too may be in flight or held soon
    (300, 0, 336),          # no more than 64 pages beyond the last one held
    (1000, 300, 1000),      # all of it
])
def test_what_a_pick_looks_at_is_hashed_ahead_and_little_more(held, known, made):
    form = PageForm(4)
    prompt = array("I", range(4000))
    view = View()
    rank = view.open("w", form)
    rank.shown = True
    rank.apply([Stored([1, 2, 3, *Pages(prompt).hashes(form)[:held]], None, GPU, 4, False, False)])
    pages = Pages(prompt, shared=4 * known)
    view.hash_ahead(pages)
    assert pages.hashes(form).made == made
    assert view.overlap("w", pages) == Overlap(1000, held, 0)
    assert pages.hashes(form).made == made, "the pick had to hash"


def test_of_a_new_prompt_nothing_is_hashed_while_nobody_holds_anything():
    view = View()
    view.open("w", PageForm(4)).shown = True
    pages = Pages(array("I", range(4000)))
    view.hash_ahead(pages)
    assert view.overlap("w", pages) == Overlap(1000, 0, 0) and pages.hashes(PageForm(4)).made == 0


def test_forms_follow_events_then_records():
    from infera_router.fleet.record import parse

    record = parse("/p/a:1", b'{"worker_id":"a:1","url":"http://127.0.0.1:1","model_name":"m","engine":"sglang","disagg_mode":"mixed","page_size":16}')
    view = View()
    assert view.form("a:1") == PageForm(64)
    view.set_records([record])
    assert view.form("a:1") == PageForm(16) and view.forms() == {PageForm(16)}
    view.open("b:1", PageForm(16, True))
    assert view.form("a:1") == PageForm(16, True), "the fleet pages in pairs"
