"""A prompt's text in pieces reads as the whole does."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from infera_router.kv.text import Text

PIECES = st.lists(st.text(alphabet="ab\u00e9", max_size=5), max_size=8)


@given(PIECES, st.integers(0, 45), st.integers(0, 45))
@example([], 0, 0)
def test_a_stretch_equals_that_of_the_whole(pieces, one, two):
    text, whole = Text(pieces), "".join(pieces)
    start, end = sorted((min(one, len(whole)), min(two, len(whole))))
    assert len(text) == len(whole) and str(text) == whole
    assert text.between(start, end) == whole[start:end]


@given(PIECES, PIECES, PIECES)
@example(["aab"], ["b"], ["a"])
@example(["ab", "ab"], [], ["a"])
def test_what_is_shared_is_a_common_beginning(common, one, two):
    mine, others = Text([*common, *one]), Text([*common, *two])
    shared = mine.shared(others)
    assert shared >= len("".join(common))
    assert str(mine)[:shared] == str(others)[:shared]
    assert shared == others.shared(mine)


@given(st.text(alphabet="ab", max_size=40), st.text(alphabet="ab", max_size=40))
def test_of_two_single_pieces_nothing_shared_is_missed(one, two):
    shared = Text((one,)).shared(Text((two,)))
    assert one[:shared] == two[:shared]
    assert one[shared:shared + 1] != two[shared:shared + 1] or shared in (len(one), len(two))
