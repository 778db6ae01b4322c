"""Demand's single rules: ties, unknown sizes, generations, the order of booking, what a setting may be."""
import gc
import math

import pytest
from infera_router.policy.api import NoTarget, PolicySettings, RequestFacts
from infera_router.policy.engine import Policy
from policy_fleets import FakePages, FakeViews, policy, snapshot, worker

FLEET = worker("p", "prefill"), worker("d", "decode", 3)


def facts(tokens=None, **more):
    return RequestFacts("m", tokens, **more)


def test_a_burst_does_not_herd_onto_one_rank():
    made = policy(*FLEET, decode_input_demand="on")
    leases = [made.pick(facts(100), now=0.0) for _ in range(30)]
    assert [h.requests for h in made.demand()] == [10, 10, 10]
    del leases


def test_token_demand_leaves_many_short_requests_on_one_rank_and_the_weight_does_not():
    for weight, want in ((0, [1, 1, 20]), (1_000_000, [7, 7, 8])):
        made = policy(*FLEET, decode_input_demand="on", decode_request_weight=weight)
        held = [made.pick(facts(size), now=0.0).lease for size in [100_000, 100_000] + [100] * 20]
        assert sorted(h.requests for h in made.demand()) == want
        del held


def test_ties_go_to_fewer_requests_then_the_ordinary_score_then_the_rotation():
    made = policy(*FLEET, decode_input_demand="on")
    empty = [made.pick(facts(0), now=0.0) for _ in range(2)]            # dp0, dp1 hold a request without tokens
    assert made.pick(facts(5), now=0.0).decode.rank == 2
    views = FakeViews(**{"d:1#dp1": {1, 2}})
    aware = policy(*FLEET, views=views, router_policy="kv-aware", decode_input_demand="on")
    assert aware.pick(facts(5, pages=FakePages(1, 2)), now=0.0).decode.rank == 1
    turning = policy(*FLEET, decode_input_demand="on")
    ranks = []
    for _ in range(6):
        pick = turning.pick(facts(5), now=0.0)
        ranks.append(pick.decode.rank)
        pick.lease.release()
    assert ranks == [0, 1, 2, 0, 1, 2]
    del empty


def test_an_unknown_size_is_never_zero_tokens_at_weight_zero():
    made = policy(*FLEET, decode_input_demand="on")
    first = made.pick(facts(50), now=0.0)
    unknown = made.pick(facts(None), now=0.0)
    assert made.decisions == {"agree": 1, "disagree": 0, "fallback": 1}
    made.pick(facts(10), now=0.0)                                       # a held unknown hides the sums: the ordinary policy again
    assert made.decisions["fallback"] == 2
    unknown.lease.release()
    made.pick(facts(10), now=0.0)
    assert made.decisions["fallback"] == 2
    del first


def test_an_unknown_size_counts_its_weight_when_there_is_one():
    made = policy(*FLEET, decode_input_demand="on", decode_request_weight=1000)
    held = [made.pick(facts(None), now=0.0) for _ in range(9)]
    assert [(h.requests, h.unknown, h.tokens) for h in made.demand()] == [(3, 3, 0)] * 3
    assert made.decisions["fallback"] == 0
    del held


@pytest.mark.parametrize("size", [-1, 1 << 60])
def test_an_impossible_size_is_unknown(size):
    made = policy(*FLEET, decode_input_demand="on", decode_request_weight=1)
    pick = made.pick(facts(size), now=0.0)
    assert sum(h.unknown for h in made.demand()) == 1 and sum(h.tokens for h in made.demand()) == 0
    pick.lease.release()


def test_off_books_nothing_and_shows_nothing():
    made = policy(*FLEET)
    pick = made.pick(facts(5), now=0.0)
    assert made.demand() == [] and pick.lease.account is None and made.open_leases == 1
    pick.lease.release()
    assert made.open_leases == 0


def test_prefill_and_mixed_picks_are_not_demand():
    made = policy(worker("a", "mixed", 2), decode_input_demand="on", decode_request_weight=5)
    keys = [made.pick(facts(size), now=0.0).mixed.key for size in (1000, 1, 1, 1)]
    assert keys == ["a:1#dp0", "a:1#dp1", "a:1#dp0", "a:1#dp1"]
    assert made.demand() == []


def test_a_new_engine_starts_at_zero_and_a_late_release_lands_on_the_old_one():
    made = policy(*FLEET, decode_input_demand="on")
    old = made.pick(facts(500), now=0.0)
    made.update(snapshot(worker("p", "prefill"), worker("d", "decode", 3, generation="g2")))
    new = made.pick(facts(70), now=0.0)
    again = made.pick(facts(70), now=0.0)
    third = made.pick(facts(70), now=0.0)
    assert {p.decode.rank for p in (new, again, third)} == {0, 1, 2}, "the old engine's 500 tokens must not weigh on the new one"
    old.lease.release()
    assert [h.tokens for h in made.demand()] == [70, 70, 70]
    assert made.ledger.faults == 0


def test_the_same_engine_coming_back_still_holds_what_it_held():
    made = policy(*FLEET, decode_input_demand="on")
    held = made.pick(facts(500), now=0.0)
    made.update(snapshot(worker("p", "prefill")))
    assert [(h.requests, h.live) for h in made.demand()] == [(1, False)]
    made.update(snapshot(*FLEET))
    assert made.pick(facts(1), now=0.0).decode.rank != held.decode.rank
    assert [h.live for h in made.demand()] == [True] * 3


def test_without_a_generation_every_return_is_a_new_engine():
    bare = worker("p", "prefill", generation=None), worker("d", "decode", 2, generation=None)
    made = policy(*bare, decode_input_demand="on")
    held = made.pick(facts(500), now=0.0)
    made.update(snapshot(bare[0]))
    made.update(snapshot(*bare))
    keys = [made.pick(facts(1), now=0.0) for _ in range(2)]
    assert {p.decode.rank for p in keys} == {0, 1}
    held.lease.release()
    assert sum(h.tokens for h in made.demand()) == 2


def test_a_draining_worker_keeps_its_line_and_gets_no_more():
    made = policy(*FLEET, worker("e", "decode"), decode_input_demand="on")
    picks = [made.pick(facts(10), now=0.0) for _ in range(4)]
    made.update(snapshot(FLEET[0], FLEET[1], worker("e", "decode", status="draining")))
    assert {h.target: h.requests for h in made.demand()}["e:1"] == 1
    assert all(made.pick(facts(1), now=0.0).decode.worker_id == "d:1" for _ in range(9))
    del picks


def test_a_lost_lease_is_released_and_counted():
    made = policy(*FLEET, decode_input_demand="on")
    pick = made.pick(facts(5), now=0.0)
    del pick
    gc.collect()
    assert made.lost == 1 and made.ledger.own() == (0, 0)


def test_the_oldest_lease_is_known():
    made = policy(*FLEET, decode_input_demand="on")
    assert made.oldest_lease(99.0) == (0.0, "")
    first, second = made.pick(facts(1), now=10.0), made.pick(facts(1), now=20.0)
    assert made.oldest_lease(30.0) == (20.0, first.decode.key)
    first.lease.release()
    assert made.oldest_lease(30.0) == (10.0, second.decode.key)


def test_a_failed_selection_leaves_nothing_booked():
    class Broken(FakeViews):
        def overlap(self, key, pages):
            if key.startswith("d"):
                raise RuntimeError("view")
            return super().overlap(key, pages)

    made = policy(*FLEET, views=Broken(), router_policy="kv-aware", decode_input_demand="on", session_affinity="prefill")
    with pytest.raises(RuntimeError):
        made.pick(facts(5, pages=FakePages(1), session="s"), now=0.0)
    assert made.open_leases == 0 and made.ledger.own() == (0, 0)
    assert set(made.ordinary.flights().values()) == {0}


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf, -math.inf, "5", None, True])
def test_a_wrong_weight_names_its_option(weight):
    with pytest.raises(ValueError, match="--decode-request-weight"):
        Policy(PolicySettings(decode_input_demand="on", decode_request_weight=weight))


def test_a_weight_without_demand_names_both_options():
    (problem,) = PolicySettings(decode_request_weight=5).problems()
    assert "--decode-request-weight" in problem and "--decode-input-demand" in problem
    assert PolicySettings(decode_request_weight=5, decode_input_demand="shadow").problems() == []


def test_a_missing_side_is_named():
    made = policy(worker("p", "prefill"), worker("q", "prefill"))
    with pytest.raises(NoTarget) as caught:
        made.pick(facts(), now=0.0)
    assert (caught.value.kind, caught.value.missing_role, caught.value.counts["prefill"]) == ("half_pair", "decode", 2)
    assert "decode" in str(caught.value) and "2 prefill" in str(caught.value)


def test_a_mixed_worker_stands_in_for_half_a_pair_and_pd_comes_first():
    made = policy(worker("p", "prefill"), worker("m", "mixed"))
    assert made.pick(facts(), now=0.0).mixed.key == "m:1"
    made.update(snapshot(*FLEET, worker("m", "mixed")))
    pick = made.pick(facts(), now=0.0)
    assert pick.mixed is None and pick.prefill.key == "p:1"
    assert made.pick(facts(), frozenset({"p:1"}), 0.0).mixed.key == "m:1"


def test_models_are_kept_apart():
    made = policy(*FLEET, worker("x", "mixed", model="other"))
    with pytest.raises(NoTarget) as caught:
        made.pick(RequestFacts("nobody"), now=0.0)
    assert caught.value.kind == "no_worker" and caught.value.models == ("m", "other")
    with pytest.raises(NoTarget) as caught:
        made.pick(RequestFacts(None), now=0.0)
    assert caught.value.kind == "model_required"
    assert made.pick(RequestFacts("other"), now=0.0).mixed.key == "x:1"
    assert policy(*FLEET).pick(RequestFacts(None), now=0.0).prefill.key == "p:1"


def test_excluded_workers_are_not_picked_and_running_out_says_so():
    made = policy(*FLEET, worker("e", "decode"), decode_input_demand="on")
    assert all(made.pick(facts(5), frozenset({"d:1"}), 0.0).decode.key == "e:1" for _ in range(5))
    with pytest.raises(NoTarget) as caught:
        made.pick(facts(5), frozenset({"d:1", "e:1"}), 0.0)
    assert caught.value.kind == "excluded"


def test_prefill_and_decode_rotate_by_themselves_also_after_an_update():
    made = policy(worker("a", "prefill"), worker("b", "prefill"), worker("d", "decode", 3))
    seen = [(p.prefill.key, p.decode.rank) for p in (made.pick(facts(), now=0.0) for _ in range(6))]
    assert seen == [("a:1", 0), ("b:1", 1), ("a:1", 2), ("b:1", 0), ("a:1", 1), ("b:1", 2)]
    made.pick(facts(), now=0.0)
    made.update(snapshot(worker("a", "prefill"), worker("b", "prefill"), worker("d", "decode", 3), worker("x", "mixed"), version=2))
    pick = made.pick(facts(), now=0.0)
    assert (pick.prefill.key, pick.decode.rank) == ("b:1", 1)


def test_count_tokens_goes_to_a_mixed_or_a_prefill_worker_and_books_no_demand():
    made = policy(*FLEET, decode_input_demand="on")
    pick = made.pick_one(facts(7), now=0.0)
    assert pick.prefill.key == "p:1" and pick.decode is None
    assert made.ledger.own() == (0, 0)
    pick.lease.release()
    assert policy(worker("m", "mixed")).pick_one(facts(), now=0.0).mixed.key == "m:1"
    with pytest.raises(NoTarget):
        policy(worker("d", "decode")).pick_one(facts(), now=0.0)


def test_servable_counts_and_models():
    made = policy(worker("p", "prefill"))
    assert not made.servable and made.counts() == {"prefill": 1, "decode": 0, "mixed": 0}
    made.update(snapshot(*FLEET))
    assert made.servable and made.models == ("m",) and made.counts("m")["decode"] == 1
