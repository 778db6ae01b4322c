#!/usr/bin/env python3
"""CPU per request of a session's first turn and of its later ones: bench/session_cost.py FIRST.json SESSIONS.json

FIRST.json: long_c1 with `--turns 1`; SESSIONS.json: the same with more turns. A session's cost less that of its first turn is what the later ones took.
Medians of the rounds, in microseconds.
"""

import json
import pathlib
import statistics
import sys

PD_PEERS = ("sglang-router:cache_aware", "sglang-router:power_of_two", "smg:cache_aware", "smg:power_of_two")


def medians(result: dict) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for run in result["results"]:
        cost = run["scenarios"].get("long_c1", {}).get("cpu_us_per_req")
        if cost:
            found.setdefault(run["router"], []).append(cost)
    return {name: statistics.median(costs) for name, costs in found.items()}


def later(first: float, mean: float, turns: int) -> float:
    """Of a session of `turns` requests that took `mean` each, the first of them `first`."""
    return (mean * turns - first) / (turns - 1)


def main() -> int:
    first, sessions = (json.loads(pathlib.Path(name).read_text()) for name in sys.argv[1:3])
    turns = sessions["args"]["turns"]
    cold, mean = medians(first), medians(sessions)
    warm = {name: later(cold[name], mean[name], turns) for name in cold if name in mean}
    print(f"\nCPU per request, us: first turn, and the mean of the {turns - 1} later ones")
    for name in warm:
        print(f"{name:30} {cold[name]:8.0f} {warm[name]:8.0f}")
    peers = [warm[name] for name in PD_PEERS if name in warm]
    if peers and "infera:tokens" in warm:
        print(f"ours, with exact tokens, over the best PD peer without: {warm['infera:tokens'] / min(peers):.2f} (wanted 0.55); "
              f"first turn {cold['infera:tokens'] / 1000:.1f} ms (wanted 7)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
