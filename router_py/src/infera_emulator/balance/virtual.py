"""A balance run on a virtual clock: the policy that serves picks, the emulated ranks decode, and no time passes."""
from __future__ import annotations

import heapq
import math
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from typing import Any

from infera_router.fleet.pool import Snapshot
from infera_router.fleet.record import WorkerRecord
from infera_router.policy.api import PolicySettings, RequestFacts
from infera_router.policy.engine import Policy

from .figures import Figures, Record, summarise
from .parameters import Case, Parameters
from .ranks import Job, Ranks
from .trace import Turn, turns

MODEL = "emulated"


def fleet(case: Case) -> Snapshot:
    """Worker records of a case: its prefills, and one decode with the case's ranks."""
    workers = [WorkerRecord(f"prefill-{i}:31000", f"http://prefill-{i}:31000", MODEL, disagg_mode="prefill", protocol="sglang-bootstrap",
                            bootstrap_host=f"prefill-{i}", bootstrap_port=31300, generation="1") for i in range(case.prefills)]
    workers.append(WorkerRecord("decode:31000", "http://decode:31000", MODEL, disagg_mode="decode", protocol="sglang-bootstrap",
                                dp_size=case.ranks if case.ranks > 1 else None, generation="1"))
    return Snapshot(1, {w.worker_id: w for w in workers})


class Run:
    """One case, weight and seed."""

    def __init__(self, parameters: Parameters, case: Case, weight: float, seed: int, demand: str = "on"):
        self.p = parameters
        self.weight = weight
        self.seed = seed
        self.now = 0.0
        self.policy = Policy(PolicySettings(decode_input_demand=demand, decode_request_weight=weight), clock=lambda: self.now)
        self.policy.update(fleet(case))
        self.ranks = Ranks(parameters, case.ranks, case.kv_capacity_tokens)
        self.record = Record()
        self.picks: list[str] = []
        self._events: list[tuple[float, int, Any, Any]] = []
        self._order = count()
        self._ready: list[Job] = []
        self._lanes = [turns(parameters, seed, lane) for lane in range(case.lanes)]
        for lane in self._lanes:
            self._think(lane)

    def figures(self) -> Figures:
        self._run(self.p.warmup_s + self.p.duration_s)
        return summarise(self.record, self.weight, self.seed, self.p.duration_s, self.policy.decisions["disagree"], self.ranks.retracted)

    # -- events, each at its own time --------------------------------------------------------------------------------

    def _at(self, when: float, what: Any, about: Any) -> None:
        heapq.heappush(self._events, (when, next(self._order), what, about))

    def _think(self, lane: Any) -> None:
        turn = next(lane)
        self._at(self.now + turn.think, self._arrive, turn)

    def _arrive(self, turn: Turn) -> None:
        pick = self.policy.pick(RequestFacts(MODEL, turn.context), now=self.now)
        self.picks.append(pick.decode.key)
        job = Job(turn, pick.decode.rank or 0, self.now, pick.lease)
        if self.ranks.admit(job):
            self._prefill(job)

    def _prefill(self, job: Job) -> None:
        self._at(self.now + self.p.prefill_base_s + job.turn.new / self.p.prefill_tokens_per_s, self._ready_for_decode, job)

    def _ready_for_decode(self, job: Job) -> None:
        job.tag.prefill_done()
        self._ready.append(job)

    # -- the clock ---------------------------------------------------------------------------------------------------

    def _run(self, end: float) -> None:
        """From boundary to boundary of steps; what happens between two of them happens at its own time before the later one."""
        boundary, ranks, warm = 0.0, self.ranks, self.p.warmup_s
        while boundary < end:
            for job in self._ready:
                if not job.generated:
                    job.first = boundary
                ranks.join(job)
            self._ready.clear()
            ranks.make_room()
            next_event = self._events[0][0] if self._events else end
            if not any(ranks.running):
                boundary = self._until(max(next_event, boundary))
                continue
            cost = ranks.cost()
            steps = min(ranks.until_change(), max(1, math.ceil((next_event - boundary) / cost)))
            if boundary >= warm:
                self.record.step(ranks.busiest, ranks.busiest_tokens, steps)
            boundary = self._until(boundary + steps * cost)
            for job in ranks.step(steps):
                self._end(job, boundary, warm <= boundary <= end)
            for job in ranks.admitted():
                # One that was taken back has its KV saved on the host; a new one is still to be prefilled.
                self._ready.append(job) if job.generated else self._prefill(job)

    def _until(self, boundary: float) -> float:
        events = self._events
        while events and events[0][0] <= boundary:
            self.now, _order, what, about = heapq.heappop(events)
            what(about)
        self.now = boundary
        return boundary

    def _end(self, job: Job, when: float, measured: bool) -> None:
        job.end = when
        job.tag.release()
        if measured:
            self.record.request(job.turn.context, job.turn.output, job.sent, job.first, when)
        self._think(self._lanes[job.turn.lane])


def run_all(parameters: Parameters, case: Case, weights: Sequence[float], seeds: Sequence[int]) -> list[Figures]:
    """Every seed at every weight, on all cores; by seed, then by weight."""
    jobs = [(parameters, case, weight, seed) for seed in seeds for weight in weights]
    workers = min(len(jobs), os.cpu_count() or 1)
    if workers == 1:
        return [run(*job) for job in jobs]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        return list(pool.map(_run, jobs))


def _run(job: tuple) -> Figures:
    return run(*job)


def run(parameters: Parameters, case: Case, weight: float, seed: int, demand: str = "on") -> Figures:
    return Run(parameters, case, weight, seed, demand).figures()
