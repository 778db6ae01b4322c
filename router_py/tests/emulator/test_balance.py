"""The decode emulator on a virtual clock: its parts, and what the request weight does to AgentX-like load."""
import dataclasses
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
from itertools import islice

import pytest
from infera_emulator.balance import figures, parameters, virtual
from infera_emulator.balance.figures import percentile
from infera_emulator.balance.ranks import RESERVE, Job, Ranks
from infera_emulator.balance.trace import Turn, turns
from infera_emulator.balance_cli import main

ROOT = pathlib.Path(__file__).resolve().parents[3]
FILE = ROOT / "bench" / "balance" / "parameters.json"
GIVEN = parameters.load(FILE)
C88 = GIVEN.case("1p1d-c88")
KV_BOUND = GIVEN.case("1p-4gpu-decode-c80")


def job(context, output=100, rank=0):
    return Job(Turn(0, 0, 0.0, context, 1, output), rank, 0.0)


def short(seconds=120.0):
    return dataclasses.replace(GIVEN, duration_s=seconds, warmup_s=30.0)


def test_the_committed_parameters_are_those_of_the_independent_simulation():
    assert (GIVEN.step_base_s, GIVEN.step_per_request_s, GIVEN.tokens_per_step) == (0.030, 0.003, 3.61)
    assert (GIVEN.think, GIVEN.think_long_share, GIVEN.think_long) == ((2.5, 1.3), 0.04, (60, 1.0))
    assert (GIVEN.subagent_share, GIVEN.subagent, GIVEN.main, GIVEN.context_cap) == (0.43, (35000, 0.8), (130000, 0.9), 900000)
    assert (GIVEN.output, GIVEN.output_range) == ((330, 1.5), (8, 24000))
    assert (GIVEN.prefill_base_s, GIVEN.prefill_tokens_per_s, GIVEN.new_tokens) == (0.3, 9000, (1500, 1.2))
    assert (C88.ranks, C88.prefills, C88.lanes, C88.kv_capacity_tokens) == (8, 1, 88, None)
    assert (KV_BOUND.ranks, KV_BOUND.lanes) == (4, 80)


def test_sizes_of_the_trace_follow_their_distributions():
    drawn = [t for lane in range(60) for t in islice(turns(GIVEN, 7, lane), 200)]
    assert statistics.median(t.output for t in drawn) == pytest.approx(330, rel=0.08)
    assert statistics.median(t.think for t in drawn) == pytest.approx(2.6, rel=0.1)
    assert statistics.median(t.new for t in drawn) == pytest.approx(1500, rel=0.08)
    mean = statistics.fmean(t.context for t in drawn)
    assert 115_000 < mean < 145_000 and max(t.context for t in drawn) <= 900_000
    assert all(t.new <= t.context and 8 <= t.output <= 24_000 for t in drawn)


def test_a_lanes_turns_depend_on_seed_and_lane_only():
    one = list(islice(turns(GIVEN, 3, 5), 50))
    assert one == list(islice(turns(GIVEN, 3, 5), 50))
    assert one != list(islice(turns(GIVEN, 3, 6), 50)) and one != list(islice(turns(GIVEN, 4, 5), 50))


def test_a_step_costs_what_the_busiest_rank_holds():
    ranks = Ranks(GIVEN, 3, None)
    assert ranks.cost() == pytest.approx(0.030)
    for rank in (0, 1, 1, 1):
        held = job(10, rank=rank)
        assert ranks.admit(held)
        ranks.join(held)
    assert ranks.busiest == 3 and ranks.cost() == pytest.approx(0.039)


def test_steps_end_requests_when_their_tokens_are_made():
    ranks = Ranks(GIVEN, 2, None)
    quick, slow = job(10, output=8), job(10, output=100, rank=1)
    for held in (quick, slow):
        ranks.admit(held)
        ranks.join(held)
    assert ranks.until_change() == 2                    # the prefill made one token, 3.61 a step make the other seven
    assert ranks.step(2) == [quick]
    assert ranks.used == pytest.approx([0, 10 + 1 + 2 * 3.61])
    assert ranks.step(ranks.until_change()) == [slow] and ranks.used == pytest.approx([0, 0])


def test_a_full_rank_makes_requests_wait_there_while_others_are_empty():
    ranks = Ranks(GIVEN, 2, 10_000)
    first, second, third = job(6_000), job(6_000), job(100)
    assert ranks.admit(first) and not ranks.admit(second)
    assert not ranks.admit(third), "behind the second, in order"
    assert ranks.admitted() == []
    ranks.drop(first)
    assert ranks.admitted() == [second, third]
    assert not ranks.admit(job(10_000 - RESERVE)) and ranks.admit(job(9_000, rank=1))


def test_requests_that_outgrow_the_room_give_it_back_and_keep_their_tokens():
    ranks = Ranks(GIVEN, 1, 8_000)
    jobs = [job(3_300, output=2_000), job(3_300, output=2_000)]
    for held in jobs:
        assert ranks.admit(held)
        ranks.join(held)
    while not ranks.retracted:
        ranks.step(ranks.until_change())
        ranks.make_room()
        assert ranks.used[0] <= 8_000 + 1e-6
    assert list(ranks.waiting[0]) == [jobs[1]] and jobs[1].made > 500 and jobs[1].generated
    ended = []
    while not ended:
        ended = ranks.step(ranks.until_change())
    assert ended == [jobs[0]] and ranks.admitted() == [jobs[1]]


def test_percentiles():
    assert percentile([1, 2, 3, 4], 0.5) == 2.5
    assert percentile([1, 9], 0.5, [9, 1]) == 1 and percentile([1, 9], 0.95, [9, 1]) == 9


@pytest.mark.parametrize("case", [C88, KV_BOUND], ids=lambda c: c.name)
def test_after_a_run_the_policy_holds_exactly_what_is_still_under_way(case):
    run = virtual.Run(short(), case, 1000, seed=1)
    seen = run.figures()
    held = sum(h.requests for h in run.policy.demand())
    asleep = sum(1 for event in run._events if event[2] == run._arrive)
    assert held == case.lanes - asleep == run.policy.open_leases
    assert seen.requests > 50 and run.policy.ledger.faults == 0


def test_the_same_trace_and_weight_give_the_same_run():
    one, two = (virtual.Run(short(), C88, 1000, seed=1) for _ in range(2))
    assert one.figures() == two.figures() and one.picks == two.picks


def test_shadow_picks_as_off_does():
    runs = [virtual.Run(short(), C88, weight, seed=2, demand=mode) for mode, weight in (("off", 0), ("shadow", 1_000_000))]
    off, shadow = [(run.figures(), run.picks) for run in runs]
    assert off[1] == shadow[1]
    assert runs[1].policy.decisions["disagree"] > 50


@pytest.mark.parametrize("change, says", [
    ({"step": {"base_s": 0}}, "step.base_s"), ({"duration_s": "long"}, "duration_s"),
    ({"cases": {"x": {"ranks": 0, "prefills": 1, "lanes": 1, "weights": [0]}}}, "cases.x.ranks"),
    ({"cases": {"x": {"ranks": 1, "prefills": 1, "lanes": 1, "weights": [0], "kv_capacity_tokens": 5000}}}, "cases.x.kv_capacity_tokens")])
def test_a_wrong_parameter_is_named(tmp_path, capsys, change, says):
    data = json.loads(FILE.read_text())
    for key, value in change.items():
        data[key] = {**data[key], **value} if isinstance(value, dict) and key != "cases" else value
    path = tmp_path / "p.json"
    path.write_text(json.dumps(data))
    assert main(["--parameters", str(path)]) == 2
    assert says in capsys.readouterr().err


def test_the_bench_prints_every_column_for_every_weight(tmp_path):
    data = json.loads(FILE.read_text())
    data.update(duration_s=60, warmup_s=10, seeds=[1])
    path = tmp_path / "p.json"
    path.write_text(json.dumps(data))
    out = subprocess.run([sys.executable, ROOT / "bench/balance/run.py", "--parameters", path, "--case", "1p1d-c88", "--weight", "0", "--weight", "5000"],
                         capture_output=True, text=True, check=True).stdout.splitlines()
    begin = next(i for i, line in enumerate(out) if line.split()[:2] == ["weight", "seed"])
    assert [line.split()[0] for line in out[begin + 1:begin + 3]] == ["0", "5,000"]
    for column in ("tok/s", "intvty p50", "intvty p90", "busiest req p50", "busiest tok p50"):
        assert column in out[begin]
    assert [line.split()[:3] for line in out[-2:]] == [["published", "0", "15"], ["published", "1,000,000", "8"]] and "-47%" in out[-1]


def documented(case, made):
    """Whether every line of these runs stands in the manual's table."""
    spec = importlib.util.spec_from_file_location("docs_table", ROOT / "bench" / "balance" / "docs_table.py")
    docs_table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(docs_table)
    page = docs_table.PAGE.read_text()
    return all(line in page for line in docs_table.rows(case, made).splitlines())


@pytest.fixture(scope="module")
def c88():
    made = virtual.run_all(GIVEN, C88, (0, 1_000_000), GIVEN.seeds)
    return {weight: [f for f in made if f.weight == weight] for weight in (0, 1_000_000)}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_weight_levels_requests_and_raises_interactivity_at_c88(c88):
    assert len(GIVEN.seeds) == 5
    falls, rises, rates = [], [], []
    for tokens, weighted in zip(c88[0], c88[1_000_000], strict=True):
        falls.append(1 - weighted.busiest_p90 / tokens.busiest_p90)
        rises.append(weighted.intvty_p90 / tokens.intvty_p90 - 1)
        rates.append(min(weighted.tok_s / tokens.tok_s, weighted.out_tok_s / tokens.out_tok_s))
    print("busiest p90 falls", falls, "interactivity p90 rises", rises, "tok/s ratio", rates)
    assert min(falls) >= 0.25 and statistics.median(falls) >= 0.33
    assert min(rises) >= 0.15
    assert min(rates) >= 1.0
    assert documented(C88, c88[0] + c88[1_000_000]), "docs/routing.md is stale; run bench/balance/docs_table.py"


def test_changes_are_of_the_same_seed_and_a_seed_that_is_worse_in_one_is_not_better():
    base = virtual.Run(short(20), C88, 0, 1).figures()
    made = [dataclasses.replace(base, weight=w, seed=s, busiest_p90=b, intvty_p90=i, tok_s=t) for w, s, b, i, t in (
        (0, 1, 10, 50, 100), (9, 1, 5, 60, 110), (0, 2, 20, 50, 100), (9, 2, 10, 60, 99), (0, 3, 10, 40, 100), (9, 3, 11, 60, 110))]
    zero, nine = figures.compared(made, {})
    assert zero == ("0", "10", "", "50.0", "", "100", "", "")
    assert nine == ("9", "10", "-50%", "60.0", "+20%", "110", "+10%", "1 of 3")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_where_kv_is_the_limit_the_weight_changes_picks_and_gains_nothing():
    runs = {weight: [virtual.Run(GIVEN, KV_BOUND, weight, seed) for seed in GIVEN.seeds] for weight in (0, 1_000_000)}
    seen = {weight: [run.figures() for run in made] for weight, made in runs.items()}
    for tokens, weighted in zip(runs[0], runs[1_000_000], strict=True):
        assert tokens.picks != weighted.picks
    assert all(f.tokens_p90 > 0.98 * KV_BOUND.kv_capacity_tokens for made in seen.values() for f in made), "KV has to be the limit"
    ratios = [a.tok_s / b.tok_s for a, b in zip(seen[0], seen[1_000_000], strict=True)]
    print("tok/s at W=0 over W=1,000,000 by seed", ratios)
    assert statistics.median(ratios) >= 0.98
    assert documented(KV_BOUND, seen[0] + seen[1_000_000]), "docs/routing.md is stale; run bench/balance/docs_table.py"
    assert sum(f.tok_s for f in seen[0]) >= 0.98 * sum(f.tok_s for f in seen[1_000_000])
