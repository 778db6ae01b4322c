"""A prompt as the engine's KV cache pages it: event ids of full pages, chained over the whole prefix, made as far as somebody looks.

SGLang 0.5.22 (`--kv-events-config`, format "default"): d_i = SHA-256(d_{i-1} || the page's tokens as little-endian u32), where
d_{-1} is nothing, or SHA-256("sglang-cache-salt-v1" NUL salt) under a cache_salt. An event carries the first 8 bytes of d_i as a signed
big-endian integer. Under EAGLE a page is page_size pairs (t0,t1), (t1,t2), ...: n tokens give (n - 1) // page_size pages.
"""

from __future__ import annotations

import hashlib
import struct
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from .ids import Ids

_DIGEST = 32
# A longer prompt goes on from such a page: 15 pages hashed once more take 10 us, and the digests of all would be three quarters of the memory.
SPACING = 16
# Pages hashed between two offers of the GIL to the event loop: about 0.2 ms.
_YIELD_EVERY = 256


@dataclass(frozen=True, slots=True)
class PageForm:
    """How a worker pages: `page_size` tokens, or, with `pairs` (EAGLE keys), page_size pairs of neighbouring tokens."""

    page_size: int
    pairs: bool = False


def salt_seed(cache_salt: str | None) -> bytes:
    """What the first page's hash is chained to. An empty salt is no salt, as in the engine's radix keys."""
    return b"" if not cache_salt else hashlib.sha256(b"sglang-cache-salt-v1\0" + cache_salt.encode("utf-8")).digest()


def page_bytes(ids: Ids, form: PageForm, first: int, last: int) -> bytes:
    """The hashed bytes of pages first..last-1 of `ids` (native order is little-endian on every supported host)."""
    size = form.page_size
    left = ids.raw(first * size, last * size)
    if not form.pairs:
        return left
    pairs = array("I", bytes(2 * len(left)))
    pairs[0::2] = array("I", left)
    pairs[1::2] = array("I", ids.raw(first * size + 1, last * size + 1))
    return pairs.tobytes()


def event_ids(digests: bytes) -> array:
    """What an event carries of each digest: its first 8 bytes, signed and big-endian."""
    found = array("q", digests)[::_DIGEST // 8]
    found.byteswap()
    return found


class Chain:
    """Event ids of a prompt's full pages, a sequence that is hashed up to where it was looked at: about 0.5 us a page.

    `made`: how many are hashed, a multiple of SPACING or all. `base`: the chain of an earlier prompt with the same first `shared` tokens, form
    and seed, to start from. One thread at a time may look; any may start another chain from it.
    """

    __slots__ = ("_ids", "_form", "_seed", "_total", "_hashes", "_digests")

    def __init__(self, ids: Ids, form: PageForm, seed: bytes, base: Chain | None = None, shared: int = 0):
        self._ids, self._form, self._seed = ids, form, seed
        self._total = max(0, len(ids) - form.pairs) // form.page_size
        self._hashes, self._digests = array("q"), b""       # `_digests`: 32 bytes of each SPACING-th page, which the one after it is chained to
        if base is not None:
            digests = base._digests         # looked at first: its hashes are there before it
            steps = min(len(digests) // _DIGEST, max(0, shared - form.pairs) // (form.page_size * SPACING))
            self._hashes, self._digests = base._hashes[:steps * SPACING], digests[:steps * _DIGEST]

    def __len__(self) -> int:
        return self._total

    @property
    def made(self) -> int:
        return len(self._hashes)

    def __getitem__(self, at: int | slice) -> int | array:
        """Slices go forward."""
        if isinstance(at, slice):
            at = slice(*at.indices(self._total))
            if at.stop > len(self._hashes):
                self.make(at.stop)
            return self._hashes[at]
        if at < 0:
            at += self._total
        if len(self._hashes) <= at < self._total:
            self.make(at + 1)
        return self._hashes[at]

    def __iter__(self) -> Iterator[int]:
        return iter(self[:])

    def size(self) -> int:
        """Bytes held once all is made."""
        return 8 * self._total + _DIGEST * (self._total // SPACING)

    def make(self, count: int, polite: bool = False) -> None:
        """Hash the first `count` pages, where they are not yet. `polite`: let other threads run in between."""
        form, total = self._form, self._total
        count = min(total, -(-count // SPACING) * SPACING)
        width = form.page_size * (8 if form.pairs else 4)
        page = struct.Struct(f"{width}s")
        fresh = hashlib.sha256().copy       # a copy saves OpenSSL the search for its algorithm: 0.05 of 0.5 us a page
        for start in range(len(self._hashes), count, _YIELD_EVERY):
            digests: list[bytes] = []
            add = digests.append
            previous = self._digests[-_DIGEST:] or self._seed
            for (data,) in page.iter_unpack(page_bytes(self._ids, form, start, min(start + _YIELD_EVERY, count))):
                page_hash = fresh()
                page_hash.update(previous + data)
                previous = page_hash.digest()
                add(previous)
            self._hashes += event_ids(b"".join(digests))
            self._digests += b"".join(digests[SPACING - 1::SPACING])
            if polite:
                time.sleep(0)


class Pages:
    """The pages of one prompt, chained once for each form that a worker uses.

    `tokens`: prompt tokens. `credit`: False where the engine keeps this prompt apart (extra_key, LoRA) in a way that events do
    not show, so that no page may count as a hit. `shared`: how many of its first tokens an earlier prompt had, with these `chains`.
    """

    __slots__ = ("tokens", "credit", "ids", "shared", "_seed", "_chains", "_base")

    def __init__(self, ids: Ids | array, seed: bytes = b"", credit: bool = True, chains: dict | None = None, shared: int = 0):
        self.ids = ids if isinstance(ids, Ids) else Ids((ids,))
        self.tokens = len(ids)
        self.credit = credit
        self.shared = shared
        self._seed = seed
        self._chains: dict[tuple[PageForm, bytes], Chain] = {}
        self._base = chains if shared else None

    @property
    def chains(self) -> dict[tuple[PageForm, bytes], Chain]:
        """What a longer prompt with the same first tokens can start from."""
        return self._chains

    def hashes(self, form: PageForm) -> Chain:
        """Event ids of the full pages, in order."""
        key = (form, self._seed)
        chain = self._chains.get(key)
        if chain is None:
            chain = self._chains[key] = Chain(self.ids, form, self._seed, self._base.get(key) if self._base else None, self.shared)
        return chain

    def forget_base(self) -> None:
        """Let go of the earlier prompt's chains, once there are chains for the forms in use."""
        self._base = None
