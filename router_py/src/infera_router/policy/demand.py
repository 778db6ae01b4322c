"""Decode input demand: the target with the least (held tokens + W × held requests), the request's own tokens being the same for all.

W is in tokens per held request. W = 0 is demand by tokens alone; a large W orders by requests first and by tokens among equals.
"""
from __future__ import annotations

from typing import Callable, Sequence


def exact_weight(weight: float) -> int | float:
    """The weight as an integer where it is one, so that sums stay exact."""
    return int(weight) if float(weight).is_integer() else float(weight)


def least(tokens: Sequence[int], requests: Sequence[int], weight: int | float, scores: Sequence | None, first: Callable[[Sequence[int]], int],
          turn: int = -1) -> int:
    """Index of the target with the least demand. Ties: fewer held requests, then the ordinary policy's score, then rotation (`first`).

    `turn`: whose turn the rotation says it is among all, where it is known; saves looking through the ties, which are the common case.
    """
    demand = [t + weight * r for t, r in zip(tokens, requests, strict=True)] if weight else tokens
    low = min(demand)
    if turn >= 0 and scores is None and demand[turn] == low and requests[turn] == min(requests):
        return turn
    if demand.count(low) == 1:
        return demand.index(low)
    tied = [i for i, d in enumerate(demand) if d == low]
    few = min([requests[i] for i in tied])
    tied = [i for i in tied if requests[i] == few]
    if len(tied) > 1 and scores is not None:
        best = min([scores[i] for i in tied])
        tied = [i for i in tied if scores[i] == best]
    return tied[0] if len(tied) == 1 else first(tied)


def usable(size: int | None, unknown_held: int, weight: int | float) -> bool:
    """Whether demand can decide at all.

    By tokens alone an unknown size anywhere makes the sums meaningless, and the ordinary policy decides. With W > 0 the request's own size
    cancels out and the counts are always known, so an unknown request counts as W and no tokens.
    """
    return bool(weight) or (size is not None and not unknown_held)
