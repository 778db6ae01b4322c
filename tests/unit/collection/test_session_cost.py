"""What the benchmark says of a session's turns is computed from two runs."""

import importlib.util
import json
import pathlib
import subprocess
import sys

BENCH = pathlib.Path(__file__).resolve().parents[3] / "bench"
TOOL = BENCH / "session_cost.py"
FULL, SHARED = [100.0, 100.0], [100.0, 180.0]


def result(path, turns, probes=None, **costs):
    """A run's JSON: `costs` are {router: [CPU per request of each round]}, `probes` those of each round's core."""
    runs = [{"router": router, "mode": "pd", "round": number, "scenarios": {"long_c1": {
        "cpu_us_per_req": cost, **({"probe_us": {"router": probes[number]}} if probes else {})}}}
            for router, given in costs.items() for number, cost in enumerate(given)]
    path.write_text(json.dumps({"args": {"turns": turns}, "results": runs}))
    return str(path)


def say(first, sessions):
    return subprocess.run([sys.executable, "-B", str(TOOL), first, sessions], check=True, capture_output=True, text=True).stdout


def test_later_turns_are_what_the_first_leaves(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec = importlib.util.spec_from_file_location("session_cost", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.later(9000.0, (9000.0 + 40 * 1500.0) / 41, 41) == 1500.0


def test_it_compares_with_the_cheapest_peer(tmp_path):
    first = result(tmp_path / "first.json", 1, **{"infera:tokens": [8000, 9000, 7000], "smg:cache_aware": [4000], "sglang-router:cache_aware": [3000]})
    sessions = result(tmp_path / "sessions.json", 2, **{"infera:tokens": [4500, 5000, 4000], "smg:cache_aware": [4000], "sglang-router:cache_aware": [2500]})
    said = say(first, sessions)
    assert "over the best PD peer without: 0.50 (wanted 0.55); first turn 8.0 ms" in said, said
    assert "3 of 3  " in said and "full core speed" not in said, said


def test_the_rounds_at_full_core_speed_say_what_a_first_turn_costs(tmp_path):
    probes = [FULL, FULL, SHARED, FULL, SHARED]
    first = result(tmp_path / "first.json", 1, probes, **{"infera:tokens": [5000, 6000, 20000, 4000, 30000], "smg:cache_aware": [3000] * 5})
    sessions = result(tmp_path / "sessions.json", 2, **{"infera:tokens": [4000], "smg:cache_aware": [4000]})
    said = say(first, sessions)
    assert "3 of 5 at full core speed" in said and "first turn 5.0 ms" in said, said
