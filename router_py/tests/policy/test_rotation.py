"""Rotation is fair, also while workers come and go."""
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from infera_router.policy.api import RequestFacts
from policy_fleets import policy, snapshot, worker


def fleet(names):
    return [worker("p", "prefill"), *(worker(name, "decode", 2) for name in names)]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 40), st.sampled_from(["off", "on"]), st.sampled_from([0, 1000]))
def test_equal_requests_one_after_the_other_reach_all_ranks_alike(workers, count, demand, weight):
    made = policy(*fleet("abcde"[:workers]), decode_input_demand=demand, decode_request_weight=weight if demand == "on" else 0)
    seen = Counter()
    for _ in range(count):
        pick = made.pick(RequestFacts("m", 7), now=0.0)
        seen[pick.decode.key] += 1
        pick.lease.release()
    every = [seen[f"{name}:1#dp{rank}"] for name in "abcde"[:workers] for rank in (0, 1)]
    assert max(every) - min(every) <= 1 and sum(every) == count


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["pick", "pick", "pick", "a", "c", "e", "exclude"]), min_size=10, max_size=120))
def test_workers_that_stay_get_alike_while_others_come_and_go(steps):
    """b and d stay, a, c and e leave and return at any time; what is excluded by a request is not skipped afterwards."""
    here, seen = set("abcde"), Counter()
    made = policy(*fleet("abcde"))
    for step in steps:
        if step == "pick":
            pick = made.pick(RequestFacts("m"), now=0.0)
            seen[pick.decode.key] += 1
        elif step == "exclude":
            made.pick(RequestFacts("m"), frozenset({"a:1", "c:1"}), 0.0) if here - set("ac") else None
            seen.clear()
        else:
            here ^= {step}
            made.update(snapshot(*fleet(sorted(here))))
        stay = [seen[f"{name}:1#dp{rank}"] for name in "bd" for rank in (0, 1)]
        assert max(stay) - min(stay) <= 1


def test_the_next_one_is_still_the_next_one_after_an_update():
    made = policy(*fleet("abcd"))
    picked = [made.pick(RequestFacts("m"), now=0.0).decode.key for _ in range(3)]
    assert picked[-1] == "b:1#dp0"
    made.update(snapshot(*fleet("bcd")))
    assert made.pick(RequestFacts("m"), now=0.0).decode.key == "b:1#dp1"
    made.update(snapshot(*fleet("abd")))
    assert made.pick(RequestFacts("m"), now=0.0).decode.key == "d:1#dp0", "c was next and has left"
