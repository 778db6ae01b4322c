"""What the benchmark says of a session's turns is computed from two runs."""

import importlib.util
import json
import pathlib
import subprocess
import sys

TOOL = pathlib.Path(__file__).resolve().parents[3] / "bench" / "session_cost.py"


def test_later_turns_are_what_the_first_leaves():
    spec = importlib.util.spec_from_file_location("session_cost", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.later(9000.0, (9000.0 + 40 * 1500.0) / 41, 41) == 1500.0


def test_it_compares_with_the_cheapest_peer(tmp_path):
    def result(name, turns, **costs):
        runs = [{"router": router, "scenarios": {"long_c1": {"cpu_us_per_req": cost}}} for router, given in costs.items() for cost in given]
        path = tmp_path / name
        path.write_text(json.dumps({"args": {"turns": turns}, "results": runs}))
        return str(path)

    first = result("first.json", 1, **{"infera:tokens": [8000, 9000, 7000], "smg:cache_aware": [4000], "sglang-router:cache_aware": [3000]})
    sessions = result("sessions.json", 2, **{"infera:tokens": [4500, 5000, 4000], "smg:cache_aware": [4000], "sglang-router:cache_aware": [2500]})
    said = subprocess.run([sys.executable, str(TOOL), first, sessions], check=True, capture_output=True, text=True).stdout
    assert "over the best PD peer without: 0.50 (wanted 0.55); first turn 8.0 ms" in said, said
