"""The demand ledger beside what the engines say: every rank's own count of requests, asked for with /v1/loads.

The two are taken at slightly different moments, and an engine's answer may be a step old, so a single difference means nothing. Exported is the
difference nearest to zero of the last few audits: one that stays is real. More on the ledger: leases that nobody released, or requests that the
engine lost. More on the engine: requests that another router sent, or that go on there after their end here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from typing import TYPE_CHECKING

import msgspec

from infera_router.fleet.http1 import HttpError, fetch
from infera_router.fleet.record import WorkerRecord
from infera_router.policy.targets import expand

if TYPE_CHECKING:
    from infera_router.pd.core import Core

log = logging.getLogger(__name__)

ASK_TIMEOUT_S = 2.0
REMEMBERED = 3  # audits in which a difference has to stay


class BadLoads(ValueError):
    """An answer whose counts cannot be used; one line."""


def counts(body: bytes, ranks: int) -> dict[int, int]:
    """Requests by rank, running or in any queue of a decode (num_waiting_reqs counts its queues of prefill and transfer). Raises BadLoads."""
    out: dict[int, int] = {}
    try:
        for row in msgspec.json.decode(body)["loads"]:
            rank, running, waiting = row["dp_rank"], row["num_running_reqs"], row["num_waiting_reqs"]
            if not all(type(value) is int and value >= 0 for value in (rank, running, waiting)):
                raise BadLoads(f"rank {rank!r} has {running!r} running and {waiting!r} waiting requests")
            out[rank] = running + waiting
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise BadLoads(f"no loads by rank in it ({type(error).__name__})") from None
    if sorted(out) != list(range(ranks)):
        raise BadLoads(f"loads of ranks {sorted(out)}, not of {ranks}")
    return out


class LedgerAudit:
    """Asks all decodes every `interval` seconds. `engine` and `difference` are by target key, `outcomes` counts ok, unanswered and unusable."""

    def __init__(self, core: Core, interval: float) -> None:
        self.core, self.interval = core, interval
        self.engine: dict[str, int] = {}
        self.outcomes: Counter[str] = Counter(ok=0, unanswered=0, unusable=0)
        self._seen: dict[str, deque[int]] = {}
        self._complained: set[str] = set()

    @property
    def difference(self) -> dict[str, int]:
        """Requests on the ledger less those on the engine."""
        return {key: min(seen, key=abs) for key, seen in self._seen.items()}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.interval)
            try:
                await self.look()
            except Exception:
                log.exception("comparing the ledger with the engines failed")

    async def look(self) -> None:
        """One audit of every decode that is there."""
        decodes = [record for record in self.core.fleet.snapshot.workers.values() if record.disagg_mode == "decode"]
        await asyncio.gather(*[self._ask(record) for record in decodes])
        here = {target.key for record in self.core.fleet.snapshot.workers.values() for target in expand(record)}
        for key in self.engine.keys() - here:
            del self.engine[key], self._seen[key]

    async def _ask(self, record: WorkerRecord) -> None:
        targets = expand(record)
        before = self._held()
        try:
            response = await fetch(record.host, record.port, "/v1/loads", ASK_TIMEOUT_S)
            if response.status != 200:
                raise BadLoads(f"status {response.status}")
            found = counts(response.body, len(targets))
        except HttpError:
            self.outcomes["unanswered"] += 1
            return
        except BadLoads as error:
            self.outcomes["unusable"] += 1
            if record.worker_id not in self._complained:
                self._complained.add(record.worker_id)
                log.warning("the ledger cannot be compared with %s: %s", record.worker_id, error)
            return
        after = self._held()
        self.outcomes["ok"] += 1
        for index, target in enumerate(targets):
            engine = self.engine[target.key] = found[index]
            held = sorted((before.get(target.key, 0), after.get(target.key, 0)))
            off = max(held[0] - engine, 0) or min(held[1] - engine, 0)
            self._seen.setdefault(target.key, deque(maxlen=REMEMBERED)).append(off)

    def _held(self) -> dict[str, int]:
        return {line.target: line.requests for line in self.core.policy.demand()}
