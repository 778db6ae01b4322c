"""A prompt's token ids as they came: in parts, of which those that are known from the last turn are never joined or copied."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain


class Ids:
    """`parts` (arrays 'I') one after the other; `ends[i]` is where part i ends, in tokens of the whole. Parts are shared: nobody changes them."""

    __slots__ = ("parts", "ends")

    def __init__(self, parts: Iterable[array] = ()) -> None:
        self.parts = [part for part in parts if part]
        self.ends = array("Q", accumulate(map(len, self.parts)))

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self.parts)

    def head(self, count: int) -> list[array]:
        """The parts of the first `count` ids."""
        whole = bisect_right(self.ends, count)
        parts = self.parts[:whole]
        begun = self.ends[whole - 1] if whole else 0
        if count > begun and whole < len(self.parts):
            parts.append(self.parts[whole][:count - begun])
        return parts

    def raw(self, start: int, end: int) -> bytes:
        """Ids start..end-1 as unsigned 32-bit integers in the machine's order."""
        ends = self.ends
        at = bisect_right(ends, start)
        begun = ends[at - 1] if at else 0
        found = []
        while begun < end and at < len(ends):
            found.append(memoryview(self.parts[at])[max(0, start - begun):end - begun])
            begun = ends[at]
            at += 1
        return b"".join(found)

    def size(self) -> int:
        """Bytes held."""
        return 4 * len(self) + 80 * len(self.parts)
