"""Which rounds of the router benchmark count: those at full core speed, where every router has enough of them."""

import importlib.machinery
import importlib.util
import pathlib
import sys

import pytest

BENCH = pathlib.Path(__file__).resolve().parents[3] / "bench"
FULL, SHARED = [100.0, 110.0], [100.0, 180.0]


@pytest.fixture
def summarize(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = importlib.machinery.SourceFileLoader("run_router_bench", str(BENCH / "run_router_bench"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    monkeypatch.setitem(sys.modules, loader.name, module)
    loader.exec_module(module)
    return module.summarize


def rounds(router, *taken):
    """One result for each (CPU per request, probes of the router's core)."""
    return [{"router": router, "mode": "plain", "round": number, "scenarios": {"small_c32": {
        "cpu_us_per_req": cpu, "errors": 1, "probe_us": {"router": probes, "load": FULL}}}} for number, (cpu, probes) in enumerate(taken)]


def test_only_rounds_at_full_speed_count_where_every_router_has_three(summarize):
    ours = rounds("ours", (60.0, FULL), (61.0, FULL), (62.0, FULL), (120.0, SHARED), (130.0, SHARED))
    peer = rounds("peer", (150.0, FULL), (250.0, SHARED), (151.0, FULL), (152.0, FULL))
    found = summarize(ours + peer)
    assert (found["ours"]["small_c32.cpu_us_per_req"], found["peer"]["small_c32.cpu_us_per_req"]) == (61.0, 151.0)
    assert (found["ours"]["small_c32.rounds"], found["ours"]["small_c32.steady"]) == (3, True)
    assert found["ours"]["small_c32.errors"] == 5       # an error counts at any speed


def test_all_rounds_count_where_one_router_had_its_rounds_beside_a_neighbour(summarize):
    ours = rounds("ours", (60.0, FULL), (61.0, FULL), (62.0, FULL), (120.0, SHARED), (130.0, SHARED))
    peer = rounds("peer", (150.0, FULL), (250.0, SHARED), (251.0, SHARED))
    found = summarize(ours + peer)
    assert (found["ours"]["small_c32.cpu_us_per_req"], found["peer"]["small_c32.cpu_us_per_req"]) == (62.0, 250.0)
    assert (found["ours"]["small_c32.rounds"], found["ours"]["small_c32.steady"]) == (5, False)


def test_a_result_without_probes_counts_as_before(summarize):
    ours = rounds("ours", (60.0, FULL), (70.0, FULL), (80.0, FULL))
    for result in ours:
        del result["scenarios"]["small_c32"]["probe_us"]
    assert summarize(ours)["ours"]["small_c32.cpu_us_per_req"] == 70.0
