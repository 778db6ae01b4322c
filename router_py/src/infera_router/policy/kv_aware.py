"""kv-aware: the target with the least (pages to compute × weight + images to fetch + load).

cost(t) = w·(B − H(t)) + w_img·(images t lacks) + load(t), load(t) = A(t) + R(t)
  B     full pages of the prompt;  H(t) length of its leading run that t holds, on any tier
  w     overlap weight of the role × retention; 0 for a multimodal prompt, whose placeholder ids collide across images
  A(t)  distinct pages in flight on t, and 1 for each request without a full page
  R(t)  pages recently handed to t: at every pick of the group all R shrink to 97%, then the winner gets the B − H it has to compute (1 when B = 0)
Smaller load breaks ties of cost, rotation those of both.
"""
from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, Sequence

from .api import PolicySettings, RequestFacts
from .flight import InFlight
from .targets import Group

DECAY = 0.97
FLOOR = 0.001           # a recent load below this is none
IMAGE_PAGES = 48.0      # what fetching and encoding one image counts, in pages
IMAGES_KEPT = 256       # images remembered per target


class Home:
    """What kv-aware remembers of one target."""

    __slots__ = ("key", "worker_id", "flight", "recent", "stamp", "images")

    def __init__(self, key: str):
        self.key = key
        self.worker_id = key.partition("#")[0]
        self.flight = InFlight()
        self.recent = 0.0
        self.stamp = 0                                      # pick number of its group at which `recent` was true
        self.images: OrderedDict[int, None] = OrderedDict()

    def recent_at(self, stamp: int) -> float:
        if not self.recent:
            return 0.0
        value = self.recent * DECAY ** (stamp - self.stamp)
        if value < FLOOR:
            self.recent = 0.0
            return 0.0
        return value


class Flight:
    """One request's pages on one target, until `end`."""

    __slots__ = ("home", "pages", "blocks", "hit")

    def __init__(self, home: Home, pages: Sequence[int], blocks: int, hit: int):
        self.home = home
        self.pages = pages
        self.blocks = blocks
        self.hit = hit

    def end(self) -> None:
        home, self.home = self.home, None
        if home is not None:
            home.flight.remove(self.pages)


class KvAware:
    """views: kv.view.View; trusted: worker_id → False when that worker renders prompts otherwise than we do, so that hashes mean nothing there."""

    name = "kv-aware"
    wants_pages = True

    def __init__(self, settings: PolicySettings, views: Any, trusted: Callable[[str], bool] | None = None):
        self.views = views
        self.trusted = trusted
        base = settings.kv_overlap_weight
        prefill = settings.kv_prefill_overlap_weight
        decode = settings.kv_decode_overlap_weight
        self.weights = {"prefill": base if prefill is None else prefill, "decode": base if decode is None else decode, "mixed": base}
        self._homes: dict[str, Home] = {}
        self._picks = {"prefill": 0, "decode": 0, "mixed": 0}
        self._memo: tuple[Any, Any, list[tuple[int, int]]] = (None, None, [])

    def open(self, key: str, role: str) -> Home:
        home = self._homes.get(key)
        if home is None:
            home = self._homes[key] = Home(key)
            home.stamp = self._picks[role]
        return home

    def retain(self, keys: set[str]) -> None:
        """Forget every target but these. Requests still in flight elsewhere keep their own reference, so their end changes nothing here."""
        for key in self._homes.keys() - keys:
            del self._homes[key]

    def flights(self) -> dict[str, int]:
        """Distinct pages in flight by target (gauge infera_policy_active_blocks)."""
        return {key: home.flight.distinct for key, home in self._homes.items()}

    def scores(self, group: Group, facts: RequestFacts) -> list[tuple[float, float]]:
        overlaps = self._overlaps(group, facts)
        weight = self.weights[group.role] * facts.cost_scale
        images = facts.images
        stamp = self._picks[group.role] + 1
        result = []
        for home, (blocks, hit) in zip(group.homes, overlaps, strict=True):
            flight = home.flight
            load = flight.distinct + flight.bare + home.recent_at(stamp)
            if images:
                held = home.images
                cost = IMAGE_PAGES * weight * sum(1 for key in images if key not in held) + load
            else:
                cost = weight * (blocks - hit) + load
            result.append((cost, load))
        return result

    def picked(self, group: Group, index: int, facts: RequestFacts, scores: list | None) -> Flight:
        home = group.homes[index]
        blocks, hit = self._overlaps(group, facts)[index]
        role = group.role
        stamp = self._picks[role] = self._picks[role] + 1
        home.recent = home.recent_at(stamp) + (blocks - hit if blocks else 1)
        home.stamp = stamp
        for key in facts.images:
            home.images[key] = None
            home.images.move_to_end(key)
        while len(home.images) > IMAGES_KEPT:
            home.images.popitem(last=False)
        pages: Sequence[int] = ()
        if blocks:
            pages = facts.pages.hashes(self.views.form(home.key))
        home.flight.add(pages)
        self._memo = (None, None, [])
        return Flight(home, pages, blocks, hit)

    def _overlaps(self, group: Group, facts: RequestFacts) -> list[tuple[int, int]]:
        """(B, H) by target, computed once for a request and group."""
        pages = facts.pages
        if pages is None or self.views is None:
            return [(0, 0)] * group.size
        if self._memo[0] is group and self._memo[1] is facts:
            return self._memo[2]
        result = []
        for home in group.homes:
            if self.trusted is not None and not self.trusted(home.worker_id):
                # It has to compute the whole prompt, as far as we can tell; with no pages at all it would look like the cheapest.
                result.append((len(pages.hashes(self.views.form(home.key))), 0))
                continue
            seen = self.views.overlap(home.key, pages)
            result.append((seen.pages, seen.device + seen.host))
        self._memo = (group, facts, result)
        return result
