"""Decode ranks that step together, as under DP attention: a step takes what the rank with the most requests needs.

A rank has room for so many tokens of KV. A request that finds none waits at its rank, whatever the others have free; when running requests
outgrow the room, the one that came last gives its place back and waits at the head of the queue with what it has generated.
"""
from __future__ import annotations

import math
from collections import deque
from typing import Any

from .parameters import Parameters

RESERVE = 512           # tokens that must be free beyond the prompt before a request is let in (SGLang's --num-reserved-decode-tokens)


class Job:
    """One request on one rank. Times in seconds of the run's clock."""

    __slots__ = ("turn", "rank", "tag", "sent", "first", "end", "made", "generated", "resident")

    def __init__(self, turn: Any, rank: int, sent: float, tag: Any = None):
        self.turn = turn
        self.rank = rank
        self.tag = tag
        self.sent = sent
        self.first = 0.0            # its first token
        self.end = 0.0
        self.made = 1.0             # tokens generated; the prefill makes the first one
        self.generated = False      # has been in a step
        self.resident = 0.0         # KV tokens held


class Ranks:
    def __init__(self, parameters: Parameters, ranks: int, capacity: int | None):
        self.parameters = parameters
        self.capacity = capacity
        self.running: list[list[Job]] = [[] for _ in range(ranks)]
        self.waiting: list[deque[Job]] = [deque() for _ in range(ranks)]
        self.used = [0.0] * ranks
        self.retracted = 0

    # -- coming and going ------------------------------------------------------------------------------------------

    def admit(self, job: Job) -> bool:
        """Give a request its KV. False: its rank is full (or others wait there), it waits and comes out of `admitted`."""
        rank = job.rank
        if self.waiting[rank] or not self._fits(job):
            self.waiting[rank].append(job)
            return False
        self._hold(job)
        return True

    def admitted(self) -> list[Job]:
        """Waiting requests that have got their KV now, in order."""
        out = []
        for queue in self.waiting:
            while queue and self._fits(queue[0]):
                job = queue.popleft()
                self._hold(job)
                out.append(job)
        return out

    def join(self, job: Job) -> None:
        """Its KV is there: it takes part in the next step."""
        self.running[job.rank].append(job)

    def drop(self, job: Job) -> None:
        """It was aborted, wherever it was."""
        rank = job.rank
        if job in self.waiting[rank]:
            self.waiting[rank].remove(job)
        elif job.resident:
            self._free(job)
        if job in self.running[rank]:
            self.running[rank].remove(job)

    def _fits(self, job: Job) -> bool:
        return self.capacity is None or self.used[job.rank] + job.turn.context + job.made + RESERVE <= self.capacity

    def _hold(self, job: Job) -> None:
        job.resident = job.turn.context + job.made
        self.used[job.rank] += job.resident

    def _free(self, job: Job) -> None:
        self.used[job.rank] -= job.resident
        job.resident = 0.0

    # -- steps -----------------------------------------------------------------------------------------------------

    @property
    def busiest(self) -> int:
        """Requests on the rank that runs the most."""
        return max([len(jobs) for jobs in self.running])

    @property
    def busiest_tokens(self) -> float:
        """KV tokens of running requests on the rank that holds the most."""
        return max([sum([job.resident for job in jobs]) for jobs in self.running])

    def cost(self) -> float:
        """Seconds that the next step takes."""
        return self.parameters.step_base_s + self.parameters.step_per_request_s * self.busiest

    def until_change(self) -> int:
        """How many steps can be taken before a request ends or a rank is full; at least 1."""
        per = self.parameters.tokens_per_step
        left = min([job.turn.output - job.made for jobs in self.running for job in jobs], default=math.inf)
        steps = math.inf if left == math.inf else math.ceil(left / per - 1e-9)
        for rank, jobs in enumerate(self.running):
            if jobs and self.capacity is not None:
                steps = min(steps, (self.capacity - self.used[rank]) // (per * len(jobs)))
        return max(1, int(steps)) if steps != math.inf else 1

    def make_room(self) -> None:
        """Before a step: take back requests where the rank's KV would not hold what the step adds."""
        if self.capacity is None:
            return
        per = self.parameters.tokens_per_step
        for rank, jobs in enumerate(self.running):
            while len(jobs) > 1 and self.used[rank] + per * len(jobs) > self.capacity:
                job = jobs.pop()
                self._free(job)
                self.waiting[rank].appendleft(job)
                self.retracted += 1

    def step(self, count: int = 1) -> list[Job]:
        """Take `count` steps, not more than until_change(); the requests that ended."""
        grown = self.parameters.tokens_per_step * count
        ended = []
        for rank, jobs in enumerate(self.running):
            if not jobs:
                continue
            done = 0
            for job in jobs:
                made = min(job.made + grown, job.turn.output)
                self.used[rank] += made - job.made
                job.resident += made - job.made
                job.made = made
                job.generated = True
                done += made >= job.turn.output
            if done:
                ended += [job for job in jobs if job.made >= job.turn.output]
                self.running[rank] = [job for job in jobs if job.made < job.turn.output]
        for job in ended:
            self._free(job)
        return ended
