"""Everything at once: sessions, demand, kv-aware, breakers, retries, workers that come, go, restart and drain, in one process and in several."""
import os
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from infera_router.policy.api import NoTarget, PolicySettings, RequestFacts
from infera_router.policy.region import Region
from infera_router.policy.shared import attach
from policy_fleets import FakePages, FakeViews, policy, snapshot, worker

NAMES = ("p0", "p1", "d0", "d1", "m0")
STEP = st.one_of(
    st.tuples(st.just("pick"), st.one_of(st.none(), st.integers(0, 300_000)), st.sampled_from([None, "s", "t", "u", "v"]),
              st.sampled_from([(), (1, 2, 3), (1, 2, 9), (7,)])),
    st.tuples(st.just("pick"), st.integers(0, 300_000), st.sampled_from([None, "s", "t"]), st.just((1, 2, 3))),
    st.tuples(st.sampled_from(["release", "prefilled", "success", "fault", "retry"]), st.integers(0, 50)),
    st.tuples(st.sampled_from(["leave", "join", "restart", "drain", "hold", "let in"]), st.sampled_from(NAMES)),
    st.tuples(st.just("wait"), st.sampled_from([0.1, 6.0, 100.0])))


class World:
    """Policies of some processes over one fleet; what each request was promised."""

    def __init__(self, processes, mode, weight, ordinary, affinity, capacity=2):
        self.now = 1000.0
        self.settings = {"decode_input_demand": mode, "decode_request_weight": weight if mode != "off" else 0, "router_policy": ordinary,
                         "session_affinity": affinity, "session_affinity_capacity": capacity, "session_affinity_ttl_s": 60.0,
                         "session_affinity_escape": 2.0}
        self.region = Region.create(processes, slots=64, sessions=capacity) if processes > 1 else None
        self.here = {name: self.record(name, 0) for name in NAMES}
        self.starts = Counter()
        self.policies = [self.start(index) for index in range(processes)]
        self.open = []          # (process, pick, size, facts)
        self.turn = 0

    @staticmethod
    def record(name, start, status="active"):
        role = {"p": "prefill", "d": "decode", "m": "mixed"}[name[0]]
        return worker(name, role, 2 if name[0] == "d" else None, generation=f"{name}-{start}", status=status)

    def start(self, index):
        ledger = affinity = None
        if self.region is not None:
            ledger, affinity = attach(self.region.fd, index, PolicySettings(**self.settings), lambda: self.now)
        views = FakeViews(**{"p1:1": {1, 2}, "d0:1#dp1": {1, 2, 3}})
        return policy(*self.here.values(), views=views, ledger=ledger, affinity=affinity, clock=lambda: self.now, **self.settings)

    def publish(self):
        for made in self.policies:
            made.update(snapshot(*self.here.values()))

    def roles(self, exclude=frozenset()):
        return Counter(r.disagg_mode for r in self.here.values() if r.routable and r.worker_id not in exclude)

    def pick(self, facts, size, exclude=frozenset()):
        self.turn += 1
        process = self.turn % len(self.policies)
        roles = self.roles(exclude)
        try:
            pick = self.policies[process].pick(facts, exclude, self.now)
        except NoTarget:
            assert not (roles["prefill"] and roles["decode"]) and not roles["mixed"], "somebody could have served this"
            return
        for target in (pick.prefill, pick.decode, pick.mixed):
            if target is not None:
                assert target.worker == self.here[target.worker_id.partition(":")[0]] and target.worker.routable and target.worker_id not in exclude
        assert (pick.mixed is None) == bool(roles["prefill"] and roles["decode"])
        self.open.append((process, pick, size, facts))

    def step(self, what, *args):
        if what == "pick":
            size, session, pages = args
            self.pick(RequestFacts("m", size, FakePages(*pages) if pages else None, session), size)
        elif what == "wait":
            self.now += args[0]
        elif args[0] in NAMES:
            self.fleet(what, args[0])
        elif self.open:
            at = args[0] % len(self.open)
            process, pick, size, facts = self.open[at]
            made, target = self.policies[process], pick.prefill or pick.mixed
            if what == "release":
                self.open.pop(at)
                pick.lease.release()
                pick.lease.release()
            elif what == "prefilled":
                pick.lease.prefill_done()
            elif what == "success":
                made.record_success((pick.decode or target).worker_id, self.now)
            else:
                made.record_fault(target.worker_id, self.now, pick)
                if what == "retry":
                    self.open.pop(at)
                    pick.lease.release()
                    self.pick(facts, size, frozenset({target.worker_id}))

    def fleet(self, what, name):
        if what == "leave":
            self.here.pop(name, None)
        elif what in ("hold", "let in"):
            for made in self.policies:
                made.breaker.hold(f"{name}:1", "test") if what == "hold" else made.breaker.let_in(f"{name}:1")
            return
        else:
            self.starts[name] += what == "restart"
            self.here[name] = self.record(name, self.starts[name], "draining" if what == "drain" else "active")
        self.publish()

    def check(self):
        booked = [(pick, size) for _process, pick, size, _facts in self.open if pick.decode is not None] if self.policies[0].mode != "off" else []
        want = Counter(pick.decode.key for pick, _size in booked)
        for made in self.policies:
            lines = made.demand()
            if self.region is None:
                assert {h.target: h.requests for h in lines if h.requests} == want
            assert all(h.requests >= 0 and h.tokens >= 0 and h.unknown >= 0 for h in lines)
            assert made.ledger.faults == made.failed_releases == made.lost == 0
        if self.region is not None:
            assert self.region.held() == (sum(size or 0 for _p, size in booked), len(booked), sum(size is None for _p, size in booked))
        assert sum(made.open_leases for made in self.policies) == len(self.open)

    def finish(self):
        for _process, pick, _size, _facts in self.open:
            pick.lease.release()
        self.open = []
        self.check()
        for made in self.policies:
            assert all(h.requests == h.tokens == h.unknown == 0 for h in made.demand())
            assert made.breaker.blocked(self.now + 1e6) <= set(made.breaker.held())
            if made.affinity is not None:
                assert made.affinity._busy == {}
            if made.settings.router_policy == "kv-aware":
                assert set(made.ordinary.flights().values()) <= {0}
        if self.policies[0].affinity is not None:
            # Nothing is held, so after the idle time every session binds anew where it is asked for.
            self.now += 1000.0
            self.here = {name: self.record(name, 99) for name in NAMES}
            self.publish()
            for name in NAMES:
                self.fleet("let in", name)
            for session in "stuvwxyz":
                first, second = (self.policies[0].pick(RequestFacts("m", 1, session=session), now=self.now) for _ in range(2))
                assert first.prefill is second.prefill and second.session_hit
                first.lease.release()
                second.lease.release()

    def close(self):
        if self.region is not None:
            for made in self.policies:
                made.ledger.region.close()
            os.close(self.region.fd)
            self.region.close()


@pytest.mark.parametrize("processes", [1, 2])
@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=70), st.sampled_from([("on", 0), ("on", 1_000_000), ("shadow", 1000), ("off", 0)]),
       st.sampled_from(["round-robin", "kv-aware"]), st.sampled_from(["off", "prefill", "both"]))
def test_no_schedule_breaks_the_bookings_or_refuses_what_can_be_served(processes, steps, demand, ordinary, affinity):
    world = World(processes, *demand, ordinary, affinity)
    try:
        for step in steps:
            world.step(*step)
            world.check()
        world.finish()
    finally:
        world.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(STEP, max_size=60), st.integers(0, 59))
def test_a_process_that_dies_takes_its_bookings_along_and_nothing_else(steps, when):
    """Process 1 dies at some step: what it held is cleared by its parent and a new process 1 goes on."""
    world = World(2, "on", 1000, "kv-aware", "prefill")
    try:
        for number, step in enumerate(steps):
            if number == when:
                dead = world.policies[1]
                gone = [pick.lease for process, pick, _size, _facts in world.open if process == 1]
                for lease in gone:
                    lease._policy = None            # a dead process releases nothing
                world.open = [entry for entry in world.open if entry[0] != 1]
                world.region.clear(1)
                dead.ledger.region.close()
                world.policies[1] = world.start(1)
                assert world.region.held()[1] == sum(pick.decode is not None for _p, pick, _s, _f in world.open)
            world.step(*step)
            world.check()
        world.finish()
    finally:
        world.close()
