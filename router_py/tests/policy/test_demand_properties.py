"""Demand and its ledger, on random traces of arrivals, endings and fleet changes."""
from hypothesis import given, settings
from hypothesis import strategies as st
from infera_router.policy.api import RequestFacts
from policy_fleets import policy, snapshot, worker

SIZES = st.one_of(st.none(), st.integers(0, 400_000))
KNOWN = st.integers(0, 400_000)


def traces(sizes, min_size=1):
    """Steps: (size, None) is an arrival, (None, k) ends the k-th open request."""
    arrival = st.tuples(st.just("arrive"), sizes)
    ending = st.tuples(st.just("end"), st.integers(0, 30))
    return st.lists(st.one_of(arrival, arrival, ending), min_size=min_size, max_size=80)


def replay(made, trace):
    """Run a trace; the decode keys picked, and the leases left open."""
    held, keys = [], []
    for step, value in trace:
        if step == "arrive":
            pick = made.pick(RequestFacts("m", value), now=0.0)
            held.append(pick.lease)
            keys.append(pick.decode.key)
        elif held:
            held.pop(value % len(held)).release()
    return keys, held


class TokenOnly:
    """Token-only demand written from its definition: least (held tokens, held requests), then the rotation. Nothing of ours."""

    def __init__(self, keys):
        self.keys = keys
        self.held = {k: [] for k in keys}
        self.cursor = 0
        self.open = []

    def run(self, trace):
        picked = []
        for step, value in trace:
            if step == "arrive":
                order = self.keys[self.cursor:] + self.keys[:self.cursor]
                key = min(order, key=lambda k: (sum(self.held[k]), len(self.held[k])))
                self.cursor = (self.keys.index(key) + 1) % len(self.keys)
                self.held[key].append(value)
                self.open.append((key, value))
                picked.append(key)
            elif self.open:
                key, size = self.open.pop(value % len(self.open))
                self.held[key].remove(size)
        return picked


@settings(max_examples=150, deadline=None)
@given(traces(KNOWN), st.integers(1, 9))
def test_weight_zero_is_token_only_demand(trace, ranks):
    made = policy(worker("p", "prefill"), worker("d", "decode", ranks), decode_input_demand="on")
    keys = [f"d:1#dp{r}" for r in range(ranks)] if ranks > 1 else ["d:1"]
    picked, _held = replay(made, trace)
    assert picked == TokenOnly(keys).run(trace)


@settings(max_examples=100, deadline=None)
@given(traces(KNOWN), st.sampled_from([1, 1000, 0.5, 1_000_000]))
def test_every_pick_has_the_least_tokens_plus_weight_times_requests(trace, weight):
    made = policy(worker("p", "prefill"), worker("d", "decode", 5), decode_input_demand="on", decode_request_weight=weight)
    held = []
    for step, value in trace:
        if step == "arrive":
            before = {h.target: h.tokens + weight * h.requests for h in made.demand()}
            pick = made.pick(RequestFacts("m", value), now=0.0)
            held.append(pick.lease)
            assert before[pick.decode.key] == min(before.values())
        elif held:
            held.pop(value % len(held)).release()


@settings(max_examples=100, deadline=None)
@given(traces(SIZES), st.sampled_from(["on", "shadow"]), st.sampled_from([0, 1000, 1_000_000]), st.sampled_from(["round-robin", "kv-aware"]))
def test_ledger_is_the_open_requests_at_every_step_and_empty_at_the_end(trace, mode, weight, ordinary):
    made = policy(worker("p", "prefill"), worker("d", "decode", 3), decode_input_demand=mode, decode_request_weight=weight, router_policy=ordinary)
    held = []
    for step, value in trace:
        if step == "arrive":
            held.append((made.pick(RequestFacts("m", value), now=0.0).lease, value))
        elif held:
            lease, _size = held.pop(value % len(held))
            lease.release()
            lease.release()
        lines = made.demand()
        assert sum(h.requests for h in lines) == len(held) == made.open_leases
        assert sum(h.tokens for h in lines) == sum(size or 0 for _l, size in held)
        assert sum(h.unknown for h in lines) == sum(size is None for _l, size in held)
        assert all(h.requests >= 0 and h.tokens >= 0 and h.unknown >= 0 for h in lines)
    for lease, _size in held:
        lease.release()
    assert [(h.requests, h.tokens, h.unknown) for h in made.demand()] == [(0, 0, 0)] * 3
    assert made.ledger.faults == made.lost == made.failed_releases == made.open_leases == 0


@settings(max_examples=100, deadline=None)
@given(traces(SIZES), st.sampled_from([0, 1_000_000]))
def test_shadow_picks_as_off_does_and_counts_what_demand_would_have_done(trace, weight):
    fleet = worker("p", "prefill"), worker("d", "decode", 4)
    plain, _held = replay(policy(*fleet), trace)
    made = policy(*fleet, decode_input_demand="shadow", decode_request_weight=weight)
    held, keys, expected = [], [], {"agree": 0, "disagree": 0, "fallback": 0}
    for step, value in trace:
        if step == "arrive":
            before = made.demand()
            pick = made.pick(RequestFacts("m", value), now=0.0)
            held.append(pick.lease)
            keys.append(pick.decode.key)
            if not weight and (value is None or any(h.unknown for h in before)):
                expected["fallback"] += 1
                assert pick.suggested is None
            else:
                demand = {h.target: h.tokens + weight * h.requests for h in before}
                assert demand[pick.suggested.key] == min(demand.values())
                expected["agree" if pick.suggested is pick.decode else "disagree"] += 1
        elif held:
            held.pop(value % len(held)).release()
    assert keys == plain
    assert made.decisions == expected


FLEET_STEPS = st.lists(st.one_of(st.tuples(st.just("arrive"), SIZES), st.tuples(st.just("end"), st.integers(0, 30)),
                                 st.tuples(st.just("leave"), st.integers(0, 1)), st.tuples(st.just("join"), st.integers(0, 1)),
                                 st.tuples(st.just("restart"), st.integers(0, 1)), st.tuples(st.just("drain"), st.integers(0, 1))),
                       min_size=5, max_size=80)


@settings(max_examples=150, deadline=None)
@given(FLEET_STEPS)
def test_workers_may_come_and_go_while_they_hold_requests(trace):
    made = policy(worker("p", "prefill"), decode_input_demand="on", decode_request_weight=1000)
    here, generation, held = {}, [0, 0], []

    def publish():
        made.update(snapshot(worker("p", "prefill"), *here.values()))

    here = {i: worker(f"d{i}", "decode", 2, generation="0") for i in (0, 1)}
    publish()
    for step, value in trace:
        if step == "arrive" and any(r.routable for r in here.values()):
            pick = made.pick(RequestFacts("m", value), now=0.0)
            held.append((pick.lease, pick.decode.key, value))
        elif step == "end" and held:
            held.pop(value % len(held))[0].release()
        elif step == "leave":
            here.pop(value, None)
            publish()
        elif step in ("join", "restart", "drain"):
            generation[value] += step == "restart"
            here[value] = worker(f"d{value}", "decode", 2, generation=str(generation[value]), status="draining" if step == "drain" else "active")
            publish()
        by_target = {}
        for _lease, key, _size in held:
            by_target[key] = by_target.get(key, 0) + 1
        assert {h.target: h.requests for h in made.demand() if h.requests} == by_target
    for lease, _key, _size in held:
        lease.release()
    assert all(h.requests == h.tokens == h.unknown == 0 for h in made.demand())
    assert made.ledger.faults == made.failed_releases == 0
    made.update(snapshot(worker("p", "prefill")))
    assert made.demand() == []
