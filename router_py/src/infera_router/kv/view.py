"""Which pages each target's KV cache holds, as its events tell.

The subscriber's thread writes, the event loop reads. Every read touches single dictionary entries, so the GIL is the only lock:
a pick that runs between two events of a batch sees some of its pages, which is what a pick a moment earlier would have seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .events import GPU, Cleared, Removed, Stored
from .pages import PageForm, Pages

if TYPE_CHECKING:
    from infera_router.fleet.record import WorkerRecord

# Set beside the tiers of a page that only a LoRA adapter's requests can use.
_FOREIGN = 1 << 7
# Pages hashed, and looked up, beyond the last one that is known to be held.
_CHUNK = 64
# Pages of a prompt that are looked up one by one, about 0.1 ms a target; and how many of a longer prompt are looked at for their tiers.
_LOOKUPS, _SAMPLE = 2048, 256
# One dictionary entry with its two integers, measured on CPython 3.11.
PAGE_BYTES = 110
DEFAULT_MAX_PAGES = 2_000_000


class Overlap(NamedTuple):
    """`pages`: full pages of the prompt. Of its leading run held: `device` on the GPU, `host` on a lower tier only."""

    pages: int
    device: int
    host: int


class RankView:
    """One target's pages: event id to the tiers it is on. At most `limit` pages; further ones are counted and left out."""

    __slots__ = ("pages", "form", "limit", "shown", "counts")

    def __init__(self, form: PageForm, limit: int, counts: Counter):
        self.pages: dict[int, int] = {}
        self.form = form
        self.limit = limit
        # False while a replay is outstanding: what is not known to be current gives no hit.
        self.shown = False
        self.counts = counts

    def apply(self, events: Iterable[Stored | Removed | Cleared]) -> None:
        pages, counts = self.pages, self.counts
        for event in events:
            if isinstance(event, Stored):
                counts["stored"] += len(event.hashes)
                if event.parent is not None and event.parent not in pages:
                    # The page is kept: its id vouches for its whole prefix, so it counts once the pages before it are stored again.
                    counts["unknown_parent"] += 1
                if event.block_size > 0 and (event.block_size != self.form.page_size or event.pairs != self.form.pairs):
                    self.form = PageForm(event.block_size, event.pairs)
                mark = event.tier | (_FOREIGN if event.foreign else 0)
                for key in event.hashes:
                    held = pages.get(key)
                    if held is not None:
                        pages[key] = (held | mark) if event.foreign else (held | mark) & ~_FOREIGN
                    elif len(pages) < self.limit:
                        pages[key] = mark
                    else:
                        counts["over_limit"] += 1
            elif isinstance(event, Removed):
                counts["removed"] += len(event.hashes)
                for key in event.hashes:
                    held = pages.get(key)
                    if held is None:
                        continue
                    left = held & ~event.tier
                    if left & ~_FOREIGN:
                        pages[key] = left
                    else:
                        del pages[key]
            else:
                counts["cleared"] += 1
                self.clear()
                pages = self.pages

    def clear(self) -> None:
        """Forget all pages. They are freed one by one: freeing millions at once would keep the event loop waiting."""
        old, self.pages = self.pages, {}
        while old:
            old.popitem()

    def overlap(self, pages: Pages) -> Overlap:
        """The leading run that is held. Of a prompt of more than 2,048 pages its end is searched for: an engine that holds a page holds all
        before it, which its id vouches for; and the tiers are those of a sample."""
        hashes = pages.hashes(self.form)
        total = len(hashes)
        if not pages.credit or not self.shown or not self.pages or not total or not self._mine(hashes[0]):
            return Overlap(total, 0, 0)
        if total <= _LOOKUPS:
            run, device = self._run(hashes)
            return Overlap(total, device, run - device)
        low, high = 1, max(_LOOKUPS, hashes.made)
        while high < total and self._mine(hashes[high - 1]):  # what lies beyond the end of the run need not be hashed
            low, high = high, 2 * high
        high = min(high, total)
        while low < high:  # invariant: page low - 1 is held
            middle = (low + high + 1) // 2
            if self._mine(hashes[middle - 1]):
                low = middle
            else:
                high = middle - 1
        run = low
        sample = hashes[:run:run // _SAMPLE + 1]
        device = run * self._run(sample)[1] // len(sample)
        return Overlap(total, device, run - device)

    def _mine(self, key: int) -> bool:
        tiers = self.pages.get(key)
        return tiers is not None and not tiers & _FOREIGN

    def _run(self, hashes: Sequence[int]) -> tuple[int, int]:
        """(how many of `hashes` are held before the first that is not, how many of these on the GPU)."""
        held = self.pages
        run = device = 0
        for start in range(0, len(hashes), _CHUNK):
            tiers = list(map(held.get, hashes[start:start + _CHUNK]))
            whole = None not in tiers
            if not whole:
                del tiers[tiers.index(None):]
            kinds = set(tiers)
            if any(tier & _FOREIGN for tier in kinds):
                whole = False
                del tiers[next(at for at, tier in enumerate(tiers) if tier & _FOREIGN):]
            run += len(tiers)
            device += len(tiers) if all(kind & GPU for kind in kinds) else sum(1 for tier in tiers if tier & GPU)
            if not whole:
                break
        return run, device


def target_keys(record: WorkerRecord) -> list[tuple[str, int]]:
    """(target key, rank) for every target of a worker: worker_id, or worker_id#dpR where it has several ranks."""
    if record.ranks > 1 and record.dp_rank is None:
        return [(f"{record.worker_id}#dp{rank}", rank) for rank in range(record.ranks)]
    return [(record.worker_id, record.dp_rank or 0)]


class View:
    """All targets. Reads belong to the event loop; `ranks` is replaced as a whole when the fleet changes."""

    def __init__(self, max_pages: int = DEFAULT_MAX_PAGES):
        self.max_pages = max_pages
        self.ranks: dict[str, RankView] = {}
        self.counts: Counter = Counter()
        self._record_forms: dict[str, PageForm] = {}

    def open(self, key: str, form: PageForm) -> RankView:
        """A new, empty view of one target that will follow its events."""
        rank = RankView(form, self.max_pages, self.counts)
        self.ranks = {**self.ranks, key: rank}
        return rank

    def drop(self, key: str) -> None:
        self.ranks = {name: rank for name, rank in self.ranks.items() if name != key}

    def set_records(self, records: Iterable[WorkerRecord]) -> None:
        """Remember the page sizes that targets without events report."""
        forms = {}
        for record in records:
            size = record.page_size or record.kv_block_size
            if size:
                forms.update((key, PageForm(size)) for key, _ in target_keys(record))
        self._record_forms = forms

    def form(self, target_key: str) -> PageForm:
        """How the target pages: as its events say, else by its record, paired where the fleet's events are of that size and paired."""
        rank = self.ranks.get(target_key)
        if rank is not None:
            return rank.form
        form = self._record_forms.get(target_key)
        for rank in self.ranks.values():
            if form is None or rank.form.page_size == form.page_size:
                return rank.form
        return form or PageForm(64)

    def forms(self) -> set[PageForm]:
        """The forms in use; a prompt is hashed in each of them before a pick."""
        return {rank.form for rank in self.ranks.values()} or set(self._record_forms.values())

    def overlap(self, target_key: str, pages: Pages) -> Overlap:
        """How much of `pages` the target holds; (n, 0, 0) for a target without events or whose view is in repair."""
        rank = self.ranks.get(target_key)
        if rank is None:
            return Overlap(len(pages.hashes(self.form(target_key))), 0, 0)
        return rank.overlap(pages)

    def hash_ahead(self, pages: Pages, polite: bool = False) -> None:
        """Hash what a pick will look at, which is not its to do: what an earlier prompt had too, and what any target holds beyond.

        The pages of a new prompt are nowhere yet, so nobody looks for them: they are hashed when the conversation goes on.
        """
        for form in self.forms():
            chain = pages.hashes(form)
            chain.make(max(0, pages.shared - form.pairs) // form.page_size, polite)
            held = [rank.pages for rank in self.ranks.values() if rank.form == form and rank.pages] if pages.credit else []
            if held and not chain.made:
                chain.make(1)
            while held and 0 < chain.made < len(chain) and any(chain[chain.made - 1] in known for known in held):
                chain.make(chain.made + _CHUNK, polite)
        pages.forget_base()

    def sizes(self) -> dict[str, int]:
        """Pages held, by target that publishes events; 0 while a view is in repair."""
        return {key: len(rank.pages) if rank.shown else 0 for key, rank in self.ranks.items()}

    def holds(self, target_key: str) -> dict[int, int]:
        """Event id to tiers (bits 1 GPU, 2 host, 4 disk, 8 external) of one target, for the admin view and tests."""
        rank = self.ranks.get(target_key)
        return {} if rank is None or not rank.shown else dict(rank.pages)
