"""Conversations already seen: their parsed messages, rendered text, ids and page hashes, in bounded memory.

A prompt reuses the longest known text that ends at an added token after which the tokenizer guarantees equal ids (`Tokenizer.cuts`).
Entries are immutable and shared by threads; only the two indexes are guarded by a lock.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from . import outline
from .ids import Ids
from .text import Text

# Text between two marks: short enough to reuse most of an edited conversation, long enough to keep few.
_MARK_SPACING = 256
_WINDOW = 256
_RAW_CANDIDATES = 4
# A character that comes more often than once in so many, per cut, takes longer to look at each time than the cuts to search for.
_FEW = 500
# Seldom in text, the rarest first.
_SELDOM = "\uff5c\u2581|[]<>{}"


def _levels(growth: float, limit: int = 1 << 26) -> list[int]:
    levels, size = [], float(2 * _WINDOW)
    while size < limit:
        levels.append(int(size))
        size *= growth
    return levels


_RAW_LEVELS = _levels(1.19)
_TEXT_LEVELS = _levels(1.41)


def _each(text: str, word: str) -> Iterator[int]:
    """Where `word` ends in `text`, each time."""
    at = text.find(word)
    while at >= 0:
        at += len(word)
        yield at
        at = text.find(word, at)


def _groups(cuts: tuple[str, ...]) -> list[tuple[str, int, tuple[str, ...]]]:
    """Cuts by their rarest character: (character, characters before it, cuts)."""
    found: dict[tuple[str, int], list[str]] = {}
    for cut in cuts:
        before = min(range(len(cut)), key=lambda at: _SELDOM.find(cut[at]) % len(_SELDOM + "x"))
        found.setdefault((cut[before], before), []).append(cut)
    return [(char, before, tuple(group)) for (char, before), group in found.items()]


@dataclass(slots=True, eq=False)
class Entry:
    """One prompt: marks are (characters, tokens) pairs in two arrays; of `ids` nothing beyond the last one is ever read."""

    text: Text
    ids: Ids
    mark_chars: array
    mark_tokens: array
    chains: dict = field(default_factory=dict)
    stem: outline.Stem | None = None
    messages: list | None = None
    parsed: int = 0
    cost_s: float = 0.0

    def size(self) -> int:
        """Bytes held, estimated; `parsed` of them by the messages and the stem's members."""
        raw = len(self.stem.raw.obj) if self.stem else 0
        pages = sum(chain.size() for chain in self.chains.values())
        return raw + self.parsed + self.text.size() + self.ids.size() + 16 * len(self.mark_chars) + pages + 2048


class Encoded:
    """`ids` of a text and how they came about: `shared` tokens were known before, as the first tokens of `base`."""

    __slots__ = ("ids", "mark_chars", "mark_tokens", "shared", "new_chars")

    def __init__(self, ids: Ids, mark_chars: array, mark_tokens: array, shared: int, new_chars: int):
        self.ids, self.mark_chars, self.mark_tokens = ids, mark_chars, mark_tokens
        self.shared, self.new_chars = shared, new_chars


class IncrementalEncoder:
    """Encodes a text from the last safe cut that it shares with a known one."""

    def __init__(self, encode: Callable[[str], array], cuts: tuple[str, ...]):
        self._encode = encode
        self._groups = _groups(cuts)

    def _ends(self, text: str) -> list[int]:
        """Where added tokens that are safe cuts end in `text`, in order. They never overlap, so each is searched for by itself."""
        ends = []
        for rare, before, cuts in self._groups:
            found = self._by_character(text, rare, before, cuts)
            ends += [end for cut in cuts for end in _each(text, cut)] if found is None else found
        ends.sort()
        return ends

    def _by_character(self, text: str, rare: str, before: int, cuts: tuple[str, ...]) -> list[int] | None:
        """Where these cuts end, found by a character of theirs, which is far faster than by the word where it is rare; None where it is not."""
        ends = []
        left = len(text) * len(cuts) // _FEW
        at = text.find(rare)
        while at >= 0:
            start = at - before
            if start >= 0 and text.startswith(cuts, start):
                # One of them only: a cut that another one begins with is no safe cut.
                ends.append(next(start + len(cut) for cut in cuts if text.startswith(cut, start)))
            left -= 1
            if left < 0:
                return None
            at = text.find(rare, at + 1)
        return ends

    def shared_chars(self, text: Text, base: Entry) -> int:
        """How many characters of `text` end at a mark of `base` and are its text."""
        marks = base.mark_chars
        if not marks:
            return 0
        at = bisect_right(marks, text.shared(base.text))
        return marks[at - 1] if at else 0

    def encode(self, text: Text, base: Entry | None = None, chars: int = 0) -> Encoded:
        """The ids of `text`, of which the first `chars` characters are known to be `base`'s (see `shared_chars`)."""
        if chars:
            known = bisect_right(base.mark_chars, chars)
            mark_chars, mark_tokens = base.mark_chars[:known], base.mark_tokens[:known]
            shared = mark_tokens[-1]
            parts = base.ids.head(shared)
        else:
            mark_chars, mark_tokens, shared, parts = array("Q"), array("Q"), 0, []
        fresh = text.between(chars, len(text))
        position, total = 0, shared
        ends = self._ends(fresh)
        for index, end in enumerate(ends):
            # The last safe cut is always kept: the next turn starts there.
            if end - position < _MARK_SPACING and index < len(ends) - 1:
                continue
            part = self._encode(fresh[position:end])
            parts.append(part)
            total += len(part)
            mark_chars.append(chars + end)
            mark_tokens.append(total)
            position = end
        if position < len(fresh):
            parts.append(self._encode(fresh[position:]))
        return Encoded(Ids(parts), mark_chars, mark_tokens, shared, len(fresh))


class PrefixCache:
    """Least recently used entries within `limit` bytes, found by the bytes of a body or by the text of a prompt."""

    def __init__(self, limit: int):
        self._limit = limit
        self._entries: OrderedDict[int, tuple[Entry, int, list]] = OrderedDict()
        self._raw: dict[tuple[int, int], list[Entry]] = {}
        self._text: dict[tuple[int, int], Entry] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    @property
    def bytes(self) -> int:
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def by_body(self, body: bytes) -> Entry | None:
        """The entry whose stem is the longest known beginning of `body`."""
        for level in reversed(_RAW_LEVELS[:bisect_right(_RAW_LEVELS, len(body))]):
            found = self._raw.get((level, hash(body[level - _WINDOW:level])))
            if found:
                for entry in reversed(found):
                    if body.startswith(entry.stem.raw):
                        self._touch(entry)
                        return entry
        return None

    def by_text(self, text: Text) -> Entry | None:
        """An entry that shares a long beginning with `text`."""
        for level in reversed(_TEXT_LEVELS[:bisect_right(_TEXT_LEVELS, len(text))]):
            entry = self._text.get((level, hash(text.between(level - _WINDOW, level))))
            if entry is not None and text.shared(entry.text) >= level:
                self._touch(entry)
                return entry
        return None

    def _touch(self, entry: Entry) -> None:
        with self._lock:
            if id(entry) in self._entries:
                self._entries.move_to_end(id(entry))

    def add(self, entry: Entry, replaces: Entry | None = None, shared: int = 0) -> None:
        """Keep `entry`; `replaces` is the shorter form of the same conversation, which begins with the same `shared` characters."""
        size = entry.size()
        if size > self._limit // 4 or not entry.mark_chars:
            return
        keys: list = []
        raw = entry.stem.raw if entry.stem else b""
        at = bisect_right(_RAW_LEVELS, len(raw))
        if at:
            level = _RAW_LEVELS[at - 1]
            # As bytes: the hash of a view reads all of the body behind it.
            keys.append((True, (level, hash(bytes(raw[level - _WINDOW:level])))))
        text = entry.text
        known = self._entries.get(id(replaces)) if shared else None
        if known is not None:
            keys += [key for key in known[2] if not key[0] and key[1][0] <= shared]
        first = bisect_right(_TEXT_LEVELS, keys[-1][1][0]) if keys and not keys[-1][0] else 0
        for level in _TEXT_LEVELS[first:bisect_right(_TEXT_LEVELS, entry.mark_chars[-1])]:
            keys.append((False, (level, hash(text.between(level - _WINDOW, level)))))
        with self._lock:
            if replaces is not None:
                self._drop(id(replaces))
            self._entries[id(entry)] = (entry, size, keys)
            self._bytes += size
            for is_raw, key in keys:
                if is_raw:
                    bucket = [*self._raw.get(key, ()), entry]
                    self._raw[key] = bucket[-_RAW_CANDIDATES:]
                else:
                    self._text[key] = entry
            while self._bytes > self._limit:
                self._drop(next(iter(self._entries)))

    def _drop(self, key: int) -> None:
        held = self._entries.pop(key, None)
        if held is None:
            return
        entry, size, keys = held
        self._bytes -= size
        for is_raw, name in keys:
            if is_raw:
                bucket = [other for other in self._raw.get(name, ()) if other is not entry]
                if bucket:
                    self._raw[name] = bucket
                else:
                    self._raw.pop(name, None)
            elif self._text.get(name) is entry:
                del self._text[name]
