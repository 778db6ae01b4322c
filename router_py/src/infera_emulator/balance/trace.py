"""The load: lanes that think, ask and wait for the answer. A lane's turns depend on the seed, the lane and the turn's number and on nothing
that happens in a run, so every run with a seed replays the same turns, only at other times.
"""
from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Iterator

from .parameters import Parameters


@dataclass(frozen=True, slots=True)
class Turn:
    """think: seconds before it is sent; context: prompt tokens; new: those of them that are not cached; output: tokens to generate."""

    lane: int
    number: int
    think: float
    context: int
    new: int
    output: int


def turns(parameters: Parameters, seed: int, lane: int) -> Iterator[Turn]:
    """The endless turns of one lane."""
    p = parameters
    rng = random.Random(f"{seed}/{lane}")

    def draw(shape: tuple[float, float]) -> float:
        median, sigma = shape
        return rng.lognormvariate(math.log(median), sigma)

    number = 0
    while True:
        think = draw(p.think_long) if rng.random() < p.think_long_share else draw(p.think)
        context = int(min(max(draw(p.subagent if rng.random() < p.subagent_share else p.main), 16), p.context_cap))
        new = int(min(max(draw(p.new_tokens), 1), context))
        output = int(min(max(draw(p.output), p.output_range[0]), p.output_range[1]))
        yield Turn(lane, number, think, context, new, output)
        number += 1
