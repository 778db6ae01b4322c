"""kv-aware scoring, and the pages in flight that it counts."""
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from infera_router.kv.pages import SPACING, PageForm, Pages
from infera_router.policy.api import RequestFacts
from infera_router.policy.flight import InFlight
from infera_router.policy.kv_aware import DECAY, IMAGES_KEPT
from policy_fleets import FakePages, FakeViews, policy, snapshot, worker

TWO = worker("a", "prefill"), worker("b", "prefill"), worker("d", "decode", 2)


def chain(path):
    """Chained page hashes of a path: equal exactly where all before is equal."""
    return tuple(hash(("page",) + path[:i + 1]) for i in range(len(path)))


# Many agree over more pages than are compared at one go.
PATHS = st.tuples(st.sampled_from([0, 0, 15, 16, 17, 40, 100]), st.lists(st.integers(0, 2), max_size=12)).map(lambda p: (0,) * p[0] + tuple(p[1]))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.booleans(), PATHS, st.integers(0, 20)), max_size=40))
def test_distinct_pages_equal_those_of_a_plain_count(steps):
    flight, open_ = InFlight(), []
    for add, path, which in steps:
        if add or not open_:
            pages = chain(path)
            flight.add(pages)
            open_.append(pages)
        else:
            flight.remove(open_.pop(which % len(open_)))
        assert flight.distinct == len({h for pages in open_ for h in pages})
        assert flight.requests == len(open_) and flight.bare == sum(not p for p in open_)
    for pages in open_:
        flight.remove(pages)
    assert flight.distinct == flight.requests == flight.bare == 0 and not flight._first


def test_pages_in_flight_are_hashed_as_far_as_prompts_agree():
    alike, form = [7] * 400, PageForm(4)
    chains = [Pages(array("I", alike + [n] * 4000)).hashes(form) for n in range(3)]
    flight = InFlight()
    for pages in chains:
        flight.add(pages)
    assert flight.distinct == 100 + 3 * 1000
    assert all(pages.made <= 2 * 100 + 2 * SPACING for pages in chains)
    for pages in chains:
        flight.remove(pages)
    assert flight.distinct == 0 and not flight._first


def request(*pages, **more):
    return RequestFacts("m", 10, FakePages(*pages) if pages else None, **more)


def aware(*fleet, views=None, **more):
    return policy(*(fleet or TWO), views=views or FakeViews(), router_policy="kv-aware", **more)


def test_the_prefill_that_holds_the_prefix_is_picked():
    made = aware(views=FakeViews(**{"b:1": {1, 2, 3}}), kv_prefill_overlap_weight=20.0)
    picks = [made.pick(request(1, 2, 3, 4), now=0.0) for _ in range(5)]
    assert {p.prefill.key for p in picks} == {"b:1"}
    assert (picks[0].blocks, picks[0].prefill_hit) == (4, 3)


def test_a_gap_ends_the_run():
    made = aware(views=FakeViews(**{"a:1": {1}, "b:1": {2, 3, 4}}))
    assert made.pick(request(1, 2, 3, 4), now=0.0).prefill.key == "a:1"


def test_load_overcomes_a_small_overlap_and_a_larger_weight_overcomes_load():
    for weight, want in ((1.0, "a:1"), (20.0, "b:1")):
        made = aware(views=FakeViews(**{"b:1": {1}}), kv_prefill_overlap_weight=weight)
        made._groups["m"]["prefill"].homes[1].flight.add(tuple(range(100, 112)))
        assert made.pick(request(1, 2), now=0.0).prefill.key == want


def test_each_role_has_its_own_weight():
    made = aware(kv_overlap_weight=3.0, kv_prefill_overlap_weight=20.0)
    assert made.ordinary.weights == {"prefill": 20.0, "decode": 3.0, "mixed": 3.0}


def test_retention_scales_the_weight():
    made = aware(views=FakeViews(**{"b:1": {1}}), kv_prefill_overlap_weight=10.0)
    made._groups["m"]["prefill"].homes[1].flight.add((7, 8, 9, 10, 11))
    assert made.pick(request(1, 2, cost_scale=0.1), now=0.0).prefill.key == "a:1"
    made = aware(views=FakeViews(**{"b:1": {1}}), kv_prefill_overlap_weight=10.0)
    made._groups["m"]["prefill"].homes[1].flight.add((7, 8, 9, 10, 11))
    assert made.pick(request(1, 2, cost_scale=2.0), now=0.0).prefill.key == "b:1"


def test_the_prefills_pages_leave_when_its_leg_ends_and_the_decodes_with_the_lease():
    made = aware()
    pick = made.pick(request(1, 2, 3), now=0.0)
    held = lambda: {k: v for k, v in made.ordinary.flights().items() if v}  # noqa: E731
    assert held() == {pick.prefill.key: 3, pick.decode.key: 3}
    pick.lease.prefill_done()
    pick.lease.prefill_done()
    assert held() == {pick.decode.key: 3}
    pick.lease.release()
    pick.lease.prefill_done()
    assert held() == {}


def test_equal_prompts_share_their_pages_in_flight():
    made = aware(worker("a", "prefill"), worker("d", "decode"))
    picks = [made.pick(request(1, 2, 3), now=0.0) for _ in range(10)]
    assert made.ordinary.flights()["a:1"] == 3
    picks.pop().lease.release()
    assert made.ordinary.flights()["a:1"] == 3


def test_requests_without_a_page_still_spread():
    made = aware(worker("a", "mixed"), worker("b", "mixed"), worker("c", "mixed"))
    keys = [made.pick(request(), now=0.0) for _ in range(9)]
    assert sorted(p.mixed.key for p in keys) == ["a:1"] * 3 + ["b:1"] * 3 + ["c:1"] * 3


def test_ties_rotate_when_nothing_differs():
    made = aware(worker("a", "mixed"), worker("b", "mixed"), worker("c", "mixed"))
    keys = []
    for home in made._groups["m"]["mixed"].homes:
        home.recent = 0.0
    for _ in range(6):
        pick = made.pick(request(), now=0.0)
        keys.append(pick.mixed.key)
        pick.lease.release()
        for home in made._groups["m"]["mixed"].homes:
            home.recent = 0.0
    assert keys == ["a:1", "b:1", "c:1"] * 2


def test_recent_work_decays_by_three_percent_a_pick():
    made = aware(worker("a", "mixed"), worker("b", "mixed"))
    made.pick(request(1, 2, 3, 4), now=0.0).lease.release()
    home = made._groups["m"]["mixed"].homes[0]
    stamp = made.ordinary._picks["mixed"]
    assert home.recent_at(stamp) == 4
    assert home.recent_at(stamp + 2) == pytest.approx(4 * DECAY ** 2)
    assert home.recent_at(stamp + 400) == 0.0


def test_images_are_routed_by_image_and_not_by_placeholder_pages():
    made = aware(views=FakeViews(**{"b:1": {1, 2, 3}}), kv_prefill_overlap_weight=20.0)
    first = made.pick(request(1, 2, 3, images=(77,)), now=0.0)
    assert first.prefill.key == "a:1", "pages of a multimodal prompt count nothing"
    first.lease.release()
    again = [made.pick(request(9, images=(77,)), now=0.0).prefill.key for _ in range(3)]
    assert again == ["a:1"] * 3
    for key in range(IMAGES_KEPT + 5):
        made.pick(request(images=(1000 + key,)), now=0.0)
    assert all(len(h.images) <= IMAGES_KEPT for h in made._groups["m"]["prefill"].homes)


def test_a_worker_that_renders_otherwise_gets_no_credit():
    made = aware(views=FakeViews(**{"b:1": {1, 2, 3}}))
    made.ordinary.trusted = lambda worker_id: worker_id != "b:1"
    picks = [made.pick(request(n, n + 1, n + 2), now=0.0) for n in (1, 10, 20, 30)]
    assert picks[0].prefill_hit == 0
    assert sorted(p.prefill.key for p in picks) == ["a:1", "a:1", "b:1", "b:1"], "it is routed on load, neither shunned nor preferred"


def test_demand_decides_decode_over_kv_aware_and_kv_aware_breaks_its_ties():
    views = FakeViews(**{"d:1#dp0": {1, 2, 3}})
    made = aware(views=views, decode_input_demand="on", kv_decode_overlap_weight=100.0)
    ranks = [made.pick(request(1, 2, 3), now=0.0) for _ in range(4)]
    assert [p.decode.rank for p in ranks] == [0, 1, 0, 1]
    assert made.decisions["disagree"] >= 1


def test_a_target_that_left_takes_its_load_with_it():
    made = aware()
    pick = made.pick(request(1, 2), now=0.0)
    made.update(snapshot(TWO[1], TWO[2]) if pick.prefill.key == "a:1" else snapshot(TWO[0], TWO[2]))
    assert pick.prefill.key not in made.ordinary.flights()
    pick.lease.release()
    assert made.failed_releases == 0
