"""Sessions and the targets that they stay on."""
from collections import Counter

import pytest
from infera_router.policy.affinity import MAX_ID_BYTES, SessionError, session_of
from infera_router.policy.api import PolicySettings, RequestFacts
from policy_fleets import policy, snapshot, worker

NAMES = PolicySettings().session_affinity_headers
FLEET = worker("a", "prefill"), worker("b", "prefill"), worker("c", "prefill"), worker("d", "decode", 2)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def made_with(*fleet, mode="prefill", clock=None, **more):
    return policy(*(fleet or FLEET), session_affinity=mode, clock=clock or Clock(), **more)


def go(made, session, now=1000.0, exclude=frozenset()):
    return made.pick(RequestFacts("m", 5, session=session), exclude, now)


def test_the_first_header_in_order_wins_whatever_its_case():
    assert session_of([("x-correlation-id", "c"), ("X-SESSION-ID", "s")], None, NAMES) == "s"
    assert session_of([("X-Correlation-ID", " c ")], {"prompt_cache_key": "k"}, NAMES) == "c"
    assert session_of([("X-Other", "c")], {"prompt_cache_key": "k"}, NAMES) == "k"
    assert session_of([], {"prompt_cache_key": 5}, NAMES) is None
    assert session_of([], {}, NAMES) is None and session_of([], None, NAMES) is None


@pytest.mark.parametrize("pairs, why", [
    ([("X-Session-ID", "a"), ("x-session-id", "a")], "twice"), ([("X-Session-ID", "  ")], "empty"),
    ([("X-Correlation-ID", "x" * (MAX_ID_BYTES + 1))], "longer")])
def test_a_bad_header_is_refused_by_name(pairs, why):
    with pytest.raises(SessionError, match=why) as caught:
        session_of(pairs, None, NAMES)
    assert pairs[0][0].lower() in str(caught.value).lower()


def test_a_session_stays_and_sessions_spread():
    made = made_with()
    first = {s: go(made, s).prefill.key for s in "uvwxyz"}
    assert len(set(first.values())) == 3
    for _ in range(4):
        assert {s: go(made, s).prefill.key for s in "zyxwvu"} == first
    assert made.affinity.hits["prefill"] == 24 and made.affinity.selected["prefill"] == 6


def test_concurrent_first_requests_of_a_session_agree():
    made = made_with()
    picks = [go(made, "s") for _ in range(8)]
    assert len({p.prefill.key for p in picks}) == 1


def test_the_mode_says_which_legs_stay():
    made = made_with(mode="prefill")
    assert len({go(made, "s").decode.rank for _ in range(4)}) == 2
    made = made_with(mode="both")
    assert len({go(made, "s").decode.rank for _ in range(4)}) == 1
    assert policy(*FLEET).affinity is None


def test_a_bound_decode_is_still_booked():
    made = made_with(mode="both", decode_input_demand="on", decode_request_weight=10)
    picks = [go(made, "s") for _ in range(4)]
    assert sorted(h.requests for h in made.demand()) == [0, 4]
    del picks


def test_a_changed_or_missing_worker_means_a_new_pick():
    made = made_with()
    key = go(made, "s").prefill.key
    others = [r for r in FLEET if r.worker_id != key]
    made.update(snapshot(*others))
    second = go(made, "s").prefill.key
    assert second != key
    made.update(snapshot(*FLEET))
    assert go(made, "s").prefill.key == second, "the session stays where it went"
    restarted = [r if r.worker_id != second else worker(second.split(":")[0], "prefill", generation="new") for r in FLEET]
    made.update(snapshot(*restarted))
    selected = made.affinity.selected["prefill"]
    go(made, "s")
    assert made.affinity.selected["prefill"] == selected + 1


def test_an_idle_session_expires_and_an_active_one_does_not():
    clock = Clock()
    made = made_with(clock=clock, session_affinity_ttl_s=60.0)
    pick = go(made, "s")
    key = pick.prefill.key
    clock.now = 5000.0
    assert go(made, "s", now=5000.0).prefill.key == key, "held by the first request"
    pick.lease.release()
    clock.now = 5059.0
    hits = made.affinity.hits["prefill"]
    go(made, "s", now=5059.0).lease.release()
    assert made.affinity.hits["prefill"] == hits + 1, "idle time counts from the last release"
    clock.now = 5200.0
    selected = made.affinity.selected["prefill"]
    go(made, "s", now=5200.0)
    assert made.affinity.selected["prefill"] == selected + 1


def test_a_full_table_refuses_nobody_and_evicts_no_active_session():
    made = made_with(session_affinity_capacity=2)
    active = [go(made, s) for s in ("s1", "s2")]
    homes = [p.prefill.key for p in active]
    extra = [go(made, f"x{i}") for i in range(20)]
    assert made.affinity.unbound == 20 and all(p.prefill for p in extra)
    assert [go(made, s).prefill.key for s in ("s1", "s2")] == homes
    active[0].lease.release()
    for p in extra:
        p.lease.release()
    # s1's second pick is garbage by now, so s1 is idle and gives its place.
    bound = go(made, "y")
    assert go(made, "y").prefill.key == bound.prefill.key
    assert made.affinity.active == {"prefill": 2, "decode": 0, "mixed": 0}


def test_a_failure_frees_the_session_but_not_a_newer_binding():
    made = made_with()
    old = go(made, "s")
    newer = go(made, "s", exclude=frozenset({old.prefill.key}))
    assert newer.prefill.key != old.prefill.key
    made.record_fault(old.prefill.worker_id, 1000.0, old)
    assert go(made, "s").prefill.key == newer.prefill.key
    made.record_fault(newer.prefill.worker_id, 1000.0, newer)
    selected = made.affinity.selected["prefill"]
    go(made, "s")
    assert made.affinity.selected["prefill"] == selected + 1


def test_a_decode_fault_leaves_the_prefill_binding():
    made = made_with()
    pick = go(made, "s")
    made.record_fault(pick.decode.worker_id, 1000.0, pick)
    assert go(made, "s").prefill.key == pick.prefill.key


def test_a_session_may_leave_an_overloaded_target_when_allowed():
    for escape, homes in ((0.0, [12]), (2.0, [5, 7])):
        made = made_with(FLEET[0], FLEET[1], FLEET[3], session_affinity_escape=escape)
        picks = [go(made, "s") for _ in range(12)]
        assert sorted(Counter(p.prefill.key for p in picks).values()) == homes
        assert made.affinity.escapes == (escape > 0)


def test_what_has_been_prefilled_is_no_reason_to_leave():
    made = made_with(session_affinity_escape=2.0)
    picks = []
    for _ in range(30):
        picks.append(go(made, "s"))
        picks[-1].lease.prefill_done()
        picks[-1].lease.prefill_done()
    assert len({p.prefill.key for p in picks}) == 1 and made.affinity.escapes == 0


def test_requests_without_a_session_make_a_target_busy_too():
    made = made_with(worker("a", "prefill"), worker("b", "prefill"), FLEET[3], session_affinity_escape=2.0)
    home = go(made, "s").prefill.key
    other = {"a:1", "b:1"} - {home}
    crowd = [made.pick(RequestFacts("m", 5), frozenset(other), 0.0) for _ in range(5)]
    assert {p.prefill.key for p in crowd} == {home}
    assert go(made, "s").prefill.key != home and made.affinity.escapes == 1


def test_a_pool_that_is_busy_all_over_keeps_its_sessions():
    made = made_with(session_affinity_escape=2.0)
    homes = {s: go(made, s).prefill.key for s in "uvwxyz"}
    kept = [go(made, s) for _ in range(30) for s in "uvwxyz"]
    assert [p.prefill.key for p in kept] == [homes[s] for _ in range(30) for s in "uvwxyz"] and made.affinity.escapes == 0


def test_bindings_end_with_their_leases():
    made = made_with(mode="both", session_affinity_escape=3.0)
    picks = [go(made, s) for s in "abcab"]
    bindings = [b for p in picks for b in p.lease.bindings]
    assert sum(made.affinity._busy.values()) == 10 and sum({id(b): b.active for b in bindings}.values()) == 10
    picks[0].lease.prefill_done()
    assert sum(made.affinity._busy.values()) == 9
    for p in picks:
        p.lease.release()
    assert made.affinity._busy == {} and all(b.active == 0 for b in bindings)
