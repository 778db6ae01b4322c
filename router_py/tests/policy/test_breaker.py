"""The circuit breaker, alone and inside picks."""
from infera_router.policy.api import RequestFacts
from infera_router.policy.breaker import CLOSED, HALF_OPEN, OPEN, Breaker
from policy_fleets import policy, snapshot, worker

FLEET = worker("p", "prefill"), worker("q", "prefill"), worker("d", "decode", 2)


def trip(breaker, worker_id, now=0.0, times=3):
    for _ in range(times):
        breaker.record_fault(worker_id, now)


def test_consecutive_faults_open_it_and_a_success_in_between_does_not_count():
    b = Breaker()
    trip(b, "w", times=2)
    b.record_success("w", 0.0)
    trip(b, "w", times=2)
    assert b.state("w") == CLOSED and not b.blocked(0.0)
    trip(b, "w", times=1)
    assert b.state("w") == OPEN and b.blocked(4.9) == {"w"} and b.trips == {"w": 1}


def test_half_open_lets_one_probe_through_and_looking_takes_no_place():
    b = Breaker()
    trip(b, "w")
    assert not b.blocked(5.0) and not b.blocked(5.0)
    assert b.claim("w", 5.0) and b.state("w") == HALF_OPEN
    assert b.blocked(5.1) == {"w"}
    assert not b.blocked(65.1), "a probe that never ended gives its place back"
    b.unclaim("w")
    assert not b.blocked(5.2)


def test_a_failed_probe_doubles_the_cooldown_up_to_its_maximum():
    b = Breaker(3, 5.0, 12.0)
    trip(b, "w")
    now = 5.0
    for cooldown in (10.0, 12.0, 12.0):
        b.claim("w", now)
        b.record_fault("w", now)
        assert b.blocked(now + cooldown - 0.1) == {"w"} and not b.blocked(now + cooldown)
        now += cooldown
    b.claim("w", now)
    b.record_success("w", now)
    assert b.state("w") == CLOSED
    trip(b, "w", now)
    assert not b.blocked(now + 5.0), "closed again, the cooldown starts over"


def test_news_from_before_the_trip_changes_nothing():
    b = Breaker()
    trip(b, "w")
    b.record_success("w", 1.0)
    trip(b, "w", 4.0)
    assert b.state("w") == OPEN and not b.blocked(5.0)


def test_threshold_zero_disables_it():
    b = Breaker(threshold=0)
    trip(b, "w", times=50)
    assert not b.blocked(0.0) and b.state("w") == CLOSED


def pick(made, now, **more):
    return made.pick(RequestFacts("m", 1), now=now, **more)


def test_an_open_worker_is_not_picked_and_comes_back_by_one_probe():
    made = policy(*FLEET)
    trip(made.breaker, "p:1")
    assert {pick(made, 1.0).prefill.key for _ in range(4)} == {"q:1"}
    probe = [p for p in (pick(made, 6.0) for _ in range(4)) if p.prefill.key == "p:1"]
    assert len(probe) == 1
    made.record_success("p:1", 6.1)
    assert {pick(made, 6.2).prefill.key for _ in range(4)} == {"p:1", "q:1"}


def test_a_probe_without_a_verdict_gives_its_place_back_with_its_lease():
    made = policy(*FLEET)
    trip(made.breaker, "p:1")
    picks = [pick(made, 6.0) for _ in range(2)]
    (probe,) = [p for p in picks if p.prefill.key == "p:1"]
    assert made.breaker.blocked(6.1) == {"p:1"}
    probe.lease.release()
    assert made.breaker.blocked(6.1) == frozenset()


def test_when_all_are_open_requests_are_routed_anyway():
    made = policy(*FLEET)
    for w in ("p:1", "q:1", "d:1"):
        trip(made.breaker, w)
    assert {pick(made, 1.0).prefill.key for _ in range(4)} == {"p:1", "q:1"}
    assert made.breaker.blocked(4.9) == {"p:1", "q:1", "d:1"}, "that does not shorten the cooldown"
    made.record_success("q:1", 1.0)
    assert {pick(made, 1.1).prefill.key for _ in range(4)} == {"q:1"}


def test_history_goes_with_the_worker_or_its_generation():
    made = policy(*FLEET)
    trip(made.breaker, "p:1")
    made.update(snapshot(worker("p", "prefill", generation="g2"), *FLEET[1:]))
    assert made.breaker.state("p:1") == CLOSED
    trip(made.breaker, "q:1")
    made.update(snapshot(FLEET[0], FLEET[2]))
    made.update(snapshot(*FLEET))
    assert made.breaker.state("q:1") == CLOSED


def test_a_worker_held_out_by_hand_is_left_until_let_in():
    made = policy(*FLEET)
    made.breaker.hold("p:1", "no progress for 30 s")
    assert {pick(made, 1.0).prefill.key for _ in range(4)} == {"q:1"}
    assert made.breaker.held() == {"p:1": "no progress for 30 s"}
    made.breaker.let_in("p:1")
    assert {pick(made, 1.0).prefill.key for _ in range(4)} == {"p:1", "q:1"}
