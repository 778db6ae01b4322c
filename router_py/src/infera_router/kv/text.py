"""A prompt's text as the template gave it: in pieces, of which those that are known from the last turn are never joined or copied."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, compress, count
from operator import ne
from sys import getsizeof


class Text:
    """`pieces` one after the other; `ends[i]` is where piece i ends, in characters of the whole."""

    __slots__ = ("pieces", "ends")

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = pieces
        self.ends = array("Q", accumulate(map(len, pieces)))

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __str__(self) -> str:
        return "".join(self.pieces)

    def between(self, start: int, end: int) -> str:
        """Characters start..end-1."""
        ends = self.ends
        first = bisect_right(ends, start)
        if first == len(ends):
            return ""
        begun = ends[first - 1] if first else 0
        if end <= ends[first]:
            return self.pieces[first][start - begun:end - begun]
        last = bisect_right(ends, end)
        parts = [self.pieces[first][start - begun:], *self.pieces[first + 1:last]]
        if last < len(ends):
            parts.append(self.pieces[last][:end - ends[last - 1]])
        return "".join(parts)

    def shared(self, other: Text) -> int:
        """Characters of a beginning that both have; fewer than there are where the two were cut into pieces differently."""
        mine, others = self.pieces, other.pieces
        same = next(compress(count(), map(ne, mine, others)), -1)
        if same < 0:
            same = min(len(mine), len(others))
        chars = self.ends[same - 1] if same else 0
        if same < len(mine) and same < len(others):
            chars += _shared(mine[same], others[same])
        return chars

    def size(self) -> int:
        """Bytes held."""
        return sum(map(getsizeof, self.pieces)) + 16 * len(self.ends)


def _shared(one: str, two: str) -> int:
    if one.startswith(two):
        return len(two)
    if two.startswith(one):
        return len(one)
    low, high = 0, min(len(one), len(two)) - 1
    while low < high:  # the first `low` characters are the same, and high is not more than can be
        middle = (low + high + 1) // 2
        if one.startswith(two[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low
