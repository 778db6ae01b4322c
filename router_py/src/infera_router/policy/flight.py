"""Prompt pages in flight on one target, counted once however many requests share them.

Page hashes are chained, so two prompts that agree in page i agree in all pages before it: the prompts in flight form a tree. It is kept with
one node per unbranched run of pages, which makes adding and removing a prompt of n pages O(branches × log n) instead of O(n).
"""
from __future__ import annotations

from typing import Sequence

_STEP = 16      # pages; a chain is hashed by so many


class _Run:
    """Pages pages[start:end] of some prompt, in flight for `count` requests that all go on from here or end here."""

    __slots__ = ("pages", "start", "end", "count", "next")

    def __init__(self, pages: Sequence[int], start: int, end: int, count: int):
        self.pages = pages
        self.start = start
        self.end = end
        self.count = count
        self.next: dict[int, _Run] = {}


def _common(run: _Run, pages: Sequence[int]) -> int:
    """Where `pages` leaves the run: the first index at which they differ or one of them ends. They agree at run.start.

    Looked for in growing steps from the start, since pages that are not alike need not be hashed for that.
    """
    low, end = run.start + 1, min(run.end, len(pages))
    mine = run.pages
    if mine is pages:
        return max(end, low)
    step = _STEP
    while (high := min(low + step, end)) > low and mine[high - 1] == pages[high - 1]:
        low, step = high, 2 * step
    high -= 1                   # pages before `low` agree; the one at `high` does not, unless all do
    while low < high:
        middle = (low + high) // 2
        if mine[middle] == pages[middle]:
            low = middle + 1
        else:
            high = middle
    return low


class InFlight:
    """`distinct`: pages in flight, each counted once. `requests`: how many prompts they belong to, those without a full page included."""

    __slots__ = ("distinct", "requests", "bare", "_first")

    def __init__(self) -> None:
        self.distinct = 0
        self.requests = 0
        self.bare = 0               # requests without a full page
        self._first: dict[int, _Run] = {}

    def add(self, pages: Sequence[int]) -> None:
        self.requests += 1
        if not pages:
            self.bare += 1
            return
        at, level, total = 0, self._first, len(pages)
        while at < total:
            run = level.get(pages[at])
            if run is None:
                level[pages[at]] = _Run(pages, at, total, 1)
                self.distinct += total - at
                return
            cut = _common(run, pages)
            if cut < run.end:
                tail = _Run(run.pages, cut, run.end, run.count)
                tail.next, run.next = run.next, {run.pages[cut]: tail}
                run.end = cut
            run.count += 1
            at, level = cut, run.next

    def remove(self, pages: Sequence[int]) -> None:
        """Take back one `add` of the same pages."""
        self.requests -= 1
        if not pages:
            self.bare -= 1
            return
        at, level, total = 0, self._first, len(pages)
        while at < total:
            run = level[pages[at]]
            run.count -= 1
            if not run.count:
                # Nobody else is on this run, so all behind it is this prompt's alone.
                del level[pages[at]]
                self.distinct -= total - at
                return
            at, level = run.end, run.next
