"""Fleets and views for the policy's tests."""
from typing import NamedTuple

from infera_router.fleet.pool import Snapshot
from infera_router.fleet.record import WorkerRecord
from infera_router.policy.api import PolicySettings
from infera_router.policy.engine import Policy


def worker(name, mode, ranks=None, model="m", generation="g1", **more):
    boot = {"bootstrap_host": name, "bootstrap_port": 8998} if mode == "prefill" else {}
    return WorkerRecord(f"{name}:1", f"http://{name}:1", model, disagg_mode=mode, dp_size=ranks, generation=generation, **boot, **more)


def snapshot(*records, version=1):
    return Snapshot(version, {r.worker_id: r for r in records})


def policy(*records, views=None, ledger=None, trusted=None, clock=None, affinity=None, **settings):
    made = Policy(PolicySettings(**settings), views=views, ledger=ledger, trusted=trusted, affinity=affinity, **({"clock": clock} if clock else {}))
    made.update(snapshot(*records))
    return made


class Overlap(NamedTuple):
    pages: int
    device: int
    host: int


class FakePages:
    """Page hashes given directly; the form plays no part."""

    def __init__(self, *hashes):
        self._hashes = tuple(hashes)

    def hashes(self, form):
        return self._hashes


class FakeViews:
    """A view whose holdings the test writes: target key → set of hashes."""

    def __init__(self, **held):
        self.held = held

    def form(self, key):
        return None

    def overlap(self, key, pages):
        mine = self.held.get(key, set())
        run = 0
        for h in pages.hashes(None):
            if h not in mine:
                break
            run += 1
        return Overlap(len(pages.hashes(None)), run, 0)
