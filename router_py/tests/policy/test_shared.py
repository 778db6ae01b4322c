"""The ledger and the session table that processes share: several policies on one region, and real processes that die."""
import multiprocessing
import os
import random
import signal
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from infera_router.policy.api import PolicySettings, RequestFacts
from infera_router.policy.region import LOCK_WAIT_S, Region
from infera_router.policy.shared import SharedLedger, attach
from policy_fleets import policy, snapshot, worker

FLEET = worker("p", "prefill"), worker("q", "prefill"), worker("d", "decode", 4)
ON = {"decode_input_demand": "on", "decode_request_weight": 1000}


def processes(count, *fleet, sessions=0, region=None, clock=None, **more):
    region = region or Region.create(count, slots=64, sessions=sessions)
    made = []
    for index in range(count):
        ledger, affinity = attach(region.fd, index, PolicySettings(**more), clock or time.monotonic)
        made.append(policy(*(fleet or FLEET), ledger=ledger, affinity=affinity, clock=clock, **more))
    return region, made


def go(made, tokens=10, session=None, now=0.0):
    return made.pick(RequestFacts("m", tokens, session=session), now=now)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.one_of(st.none(), st.integers(0, 10_000)), st.integers(0, 9)), max_size=60))
def test_each_process_picks_by_the_sum_of_all_and_all_show_the_same(steps):
    region, made = processes(3, **ON)
    held = []
    for who, size, end in steps:
        if end > 6 and held:
            held.pop(size % len(held) if size else 0).release()
            continue
        before = {h.target: h.tokens + 1000 * h.requests for h in made[who].demand()}
        pick = go(made[who], size)
        assert before[pick.decode.key] == min(before.values())
        held.append(pick.lease)
        assert made[0].demand() == made[1].demand() == made[2].demand()
        assert region.held()[1] == len(held)
    for lease in held:
        lease.release()
    assert region.held() == (0, 0, 0)
    for m in made:
        m.ledger.region.close()
    os.close(region.fd)
    region.close()


def test_processes_that_learn_of_targets_in_another_order_agree_on_them():
    region, (one, two) = processes(2, worker("p", "prefill"), **ON)
    a, b = worker("a", "decode", 2), worker("b", "decode")
    one.update(snapshot(FLEET[0], a))
    two.update(snapshot(FLEET[0], b))
    one.update(snapshot(FLEET[0], a, b))
    two.update(snapshot(FLEET[0], a, b))
    held = [go(m) for m in (one, two, one)]
    assert [h.requests for h in one.demand()] == [h.requests for h in two.demand()] == [1, 1, 1]
    del held


def test_a_slot_is_given_away_only_when_nobody_claims_it():
    region, (one, two) = processes(2, worker("p", "prefill"), worker("a", "decode"), **ON)
    held = go(one)
    slot = held.lease.account.slot
    one.update(snapshot(FLEET[0]))                      # gone here, but holding; two still sees it
    two.update(snapshot(FLEET[0]))
    one.update(snapshot(FLEET[0], worker("b", "decode")))
    assert go(one).lease.account is None or one._groups["m"]["decode"].accounts[0].slot != slot
    held.lease.release()
    two.update(snapshot(FLEET[0], worker("c", "decode")))
    assert two._groups["m"]["decode"].accounts[0].slot == slot
    assert [h.requests for h in two.demand()] == [0]


def test_what_a_worker_that_left_still_holds_is_known_to_all():
    region, (one, two) = processes(2, worker("p", "prefill"), worker("a", "decode"), **ON)
    held = [go(one, 10), go(one, 20), go(two, 40)]
    for made in (one, two):
        made.update(snapshot(FLEET[0]))
    assert region.held() == (70, 3, 0)
    held[0].lease.release()
    assert region.held() == (60, 2, 0)
    held[2].lease.release()
    assert region.held() == (20, 1, 0)
    held[1].lease.release()
    assert region.held() == (0, 0, 0) and one.demand() == two.demand() == []


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_read_alike_wherever_the_slots_of_their_targets_lie(seed):
    rng = random.Random(seed)
    region = Region.create(3, slots=200)
    ledgers = [SharedLedger(Region(region.fd), index) for index in range(3)]
    keys = [f"w{i}" for i in range(rng.choice([1, 4, 60]))]
    accounts = [{key: ledger.open(key, "1") for key in keys} for ledger in ledgers]
    wanted = {key: [0, 0, 0] for key in keys}
    for _ in range(200):
        key, size = rng.choice(keys), rng.choice([None, 0, 7, 90_000])
        at = rng.randrange(3)
        ledgers[at].book(accounts[at][key], size)
        wanted[key] = [a + b for a, b in zip(wanted[key], (size or 0, 1, size is None), strict=True)]
    chosen = rng.sample(keys, rng.randrange(1, len(keys) + 1))
    if rng.random() < 0.5:
        chosen.sort(key=keys.index)
    sums = [sum(wanted[key][2] for key in chosen), 0]
    for ledger, mine in zip(ledgers, accounts, strict=True):
        group = [mine[key] for key in chosen]
        for form in (group, ledger.gather(group)):
            for unknown, strange in zip((True, False), sums, strict=True):
                tokens, requests, found = ledger.read(form, unknown)
                assert (list(tokens), list(requests), found) == ([wanted[k][0] for k in chosen], [wanted[k][1] for k in chosen], strange)


def test_a_region_without_room_still_serves():
    region = Region.create(1, slots=2)
    ledger, _ = attach(region.fd, 0, PolicySettings(**ON), time.monotonic)
    made = policy(*FLEET, ledger=ledger, **ON)
    picks = [go(made) for _ in range(8)]
    assert [h.requests for h in made.demand()] == [2, 2, 2, 2] and ledger.slotless == 2
    del picks


def test_a_session_that_changes_process_keeps_its_target():
    region, made = processes(2, sessions=100, session_affinity="both", **ON)
    for session in "abcdefgh":
        picks = [go(made[i % 2], session=session) for i in range(4)]
        assert len({p.prefill.key for p in picks}) == 1 and len({p.decode.key for p in picks}) == 1
        for p in picks:
            p.lease.release()
    assert made[0].affinity.active == made[1].affinity.active == {"prefill": 8, "decode": 8, "mixed": 0}
    assert sum(m.affinity.selected.get("prefill", 0) for m in made) == 8


def test_a_shared_session_expires_counts_from_the_last_release_and_ends_with_a_failure():
    now = [100.0]
    region, (one, two) = processes(2, sessions=10, session_affinity="prefill", session_affinity_ttl_s=60.0, clock=lambda: now[0])
    pick = go(one, session="s", now=100.0)
    now[0] = 1000.0
    assert go(two, session="s", now=1000.0).session_hit, "held by the other process"
    pick.lease.release()
    now[0] = 1059.0
    again = go(two, session="s", now=1059.0)
    assert again.session_hit
    again.lease.release()
    now[0] = 1200.0
    late = go(one, session="s", now=1200.0)
    assert not late.session_hit
    two.record_fault("nobody:1", now[0], late)
    one.record_fault(late.prefill.worker_id, now[0], late)
    assert not go(two, session="s", now=1200.0).session_hit


def test_a_full_shared_table_refuses_nobody_and_evicts_no_active_session():
    region, (one, two) = processes(2, sessions=2, session_affinity="prefill")
    active = [(f"s{i}", go(one, session=f"s{i}")) for i in range(region.buckets)]
    assert one.affinity.unbound == 0
    extra = [go(two, session=f"x{i}") for i in range(20)]
    assert two.affinity.unbound == 20 and all(p.prefill for p in extra)
    for session, p in active:
        assert go(two, session=session).prefill.key == p.prefill.key


def test_the_lock_excludes_other_processes_and_is_not_waited_for_forever():
    region = Region.create(2)
    one, two = Region(region.fd), Region(region.fd)
    one.lock()
    started = time.monotonic()
    two.lock()
    assert LOCK_WAIT_S <= time.monotonic() - started < 1.0
    assert (two.timeouts, two.waits) == (1, 1)
    two.unlock()
    one.lock()                      # the same process may take it again
    one.unlock()
    three = Region(region.fd)
    three.lock()
    assert three.timeouts == 1, "still held by the first"
    three.unlock()
    one.unlock()
    two.lock()
    assert two.timeouts == 1
    two.unlock()


def _die_with_the_lock(fd):
    region = Region(fd)
    region.lock()
    os.kill(os.getpid(), signal.SIGKILL)


def _serve(fd, index, seed, stop, started):
    rng = random.Random(seed)
    ledger, _ = attach(fd, index, PolicySettings(**ON), time.monotonic)
    made = policy(*FLEET, ledger=ledger, **ON)
    held = []
    started.set()
    while not stop.value:
        held.append(go(made, rng.choice([None, 5, 500, 90_000])).lease)
        if len(held) > 20:
            held.pop(rng.randrange(len(held))).release()
    for lease in held:
        lease.release()


def test_a_process_killed_with_the_lock_stops_nobody():
    region = Region.create(2)
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=_die_with_the_lock, args=(region.fd,))
    child.start()
    child.join(10)
    assert child.exitcode == -signal.SIGKILL
    region.lock()
    assert region.timeouts == 0
    region.unlock()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_process_killed_midway_leaves_nothing_once_its_parent_has_cleared(seed):
    region = Region.create(3)
    fork = multiprocessing.get_context("fork")
    stop = fork.RawValue("b", 0)  # not an Event: a process killed inside its lock would keep it
    started = [fork.Event() for _ in range(2)]
    children = [fork.Process(target=_serve, args=(region.fd, i, seed + i, stop, started[i]), daemon=True) for i in range(2)]
    for child in children:
        child.start()
    for event in started:
        assert event.wait(10)
    watcher = policy(*FLEET, ledger=SharedLedger(Region(region.fd), 2), **ON)

    def least_held():
        """Of several sums, since a request that moves while a sum is made may count twice."""
        return min(sum(h.requests for h in watcher.demand()) for _ in range(50))

    deadline = time.monotonic() + 10
    while region.held()[1] < 30 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    os.kill(children[1].pid, signal.SIGKILL)
    children[1].join(10)
    assert least_held() > 20
    region.clear(1)
    time.sleep(0.1)
    assert 0 < least_held() <= 21
    stop.value = 1
    children[0].join(10)
    assert children[0].exitcode == 0
    assert region.held() == (0, 0, 0)
    assert all(h.requests == h.tokens == h.unknown == 0 for h in watcher.demand())
