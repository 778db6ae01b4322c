"""A prompt as the engine's KV cache pages it: event ids of full pages, chained over the whole prefix.

SGLang 0.5.22 (`--kv-events-config`, format "default"): d_i = SHA-256(d_{i-1} || the page's tokens as little-endian u32), where
d_{-1} is nothing, or SHA-256("sglang-cache-salt-v1" NUL salt) under a cache_salt. An event carries the first 8 bytes of d_i as a signed
big-endian integer. Under EAGLE a page is page_size pairs (t0,t1), (t1,t2), ...: n tokens give (n - 1) // page_size pages.
"""

from __future__ import annotations

import hashlib
import struct
import time
from array import array
from dataclasses import dataclass
from typing import NamedTuple

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


class Chain(NamedTuple):
    """`hashes` (array 'q'): event ids of the pages; `digests`: 32 bytes of each SPACING-th page, which the one after it is chained to."""

    digests: bytes
    hashes: array


_EMPTY = Chain(b"", array("q"))


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


def extend_chain(chain: Chain, ids: Ids, form: PageForm, seed: bytes, polite: bool = False) -> Chain:
    """`chain` (the first pages of `ids`, a multiple of SPACING) continued over all full pages. `polite`: let other threads run in between."""
    done = len(chain.hashes)
    count = max(0, len(ids) - form.pairs) // form.page_size
    if count <= done:
        return chain
    width = form.page_size * (8 if form.pairs else 4)
    buffer = memoryview(page_bytes(ids, form, done, count))
    previous = chain.digests[-_DIGEST:] or seed
    fresh = hashlib.sha256().copy       # a copy saves OpenSSL the search for its algorithm: 0.05 of 0.5 us a page
    page = struct.Struct(f"{width}s")
    digests: list[bytes] = []
    add = digests.append
    step = width * _YIELD_EVERY
    for start in range(0, len(buffer), step):
        for (data,) in page.iter_unpack(buffer[start:start + step]):
            page_hash = fresh()
            page_hash.update(previous + data)
            previous = page_hash.digest()
            add(previous)
        if polite:
            time.sleep(0)
    return Chain(chain.digests + b"".join(digests[SPACING - 1::SPACING]), chain.hashes + event_ids(b"".join(digests)))


class Pages:
    """The pages of one prompt; hashes are made once for each form that a worker uses.

    `tokens`: prompt tokens. `credit`: False where the engine keeps this prompt apart (extra_key, LoRA) in a way that events do
    not show, so that no page may count as a hit.
    """

    __slots__ = ("tokens", "credit", "ids", "_seed", "_chains", "_base")

    def __init__(self, ids: Ids | array, seed: bytes = b"", credit: bool = True, chains: dict | None = None, shared: int = 0):
        self.ids = ids if isinstance(ids, Ids) else Ids((ids,))
        self.tokens = len(ids)
        self.credit = credit
        self._seed = seed
        self._chains: dict[tuple[PageForm, bytes], Chain] = {}
        self._base = (chains, shared) if chains and shared else None

    @property
    def chains(self) -> dict[tuple[PageForm, bytes], Chain]:
        """What a longer prompt with the same first tokens can start from."""
        return self._chains

    def hashes(self, form: PageForm, polite: bool = False) -> array:
        """Event ids (array 'q') of the full pages, in order. Computed in about 0.5 us a page at the first call for a form."""
        key = (form, self._seed)
        chain = self._chains.get(key)
        if chain is None:
            chain = _EMPTY
            if self._base is not None:
                known = self._base[0].get(key)
                if known is not None:
                    keep = min(len(known.hashes), max(0, self._base[1] - form.pairs) // form.page_size)
                    keep -= keep % SPACING
                    chain = Chain(known.digests[:keep // SPACING * _DIGEST], known.hashes[:keep])
            chain = extend_chain(chain, self.ids, form, self._seed, polite)
            self._chains[key] = chain
        return chain.hashes

    def forget_base(self) -> None:
        """Let go of the earlier prompt's chains, once the forms in use are hashed."""
        self._base = None
