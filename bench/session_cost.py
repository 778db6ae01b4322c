#!/usr/bin/env python3
"""CPU per request of a session's first turn and of its later ones: bench/session_cost.py FIRST.json SESSIONS.json

FIRST.json: long_c1 with `--turns 1`; SESSIONS.json: the same with more turns. A session's cost less that of its first turn is what the later ones took.
Medians in microseconds, of the rounds that run_router_bench's summary counts.
"""

import json
import pathlib
import sys

import targets

OURS = "infera:tokens"
WARM, COLD = 0.55, 7.0  # wanted: of the best PD peer without tokens; ms (issue "Router, part 2")


def later(first: float, mean: float, turns: int) -> float:
    """Of a session of `turns` requests that took `mean` each, the first of them `first`."""
    return (mean * turns - first) / (turns - 1)


def costs(summary: dict) -> dict[str, float]:
    return {name: row["long_c1.cpu_us_per_req"] for name, row in summary.items() if row.get("long_c1.cpu_us_per_req")}


def main() -> int:
    first, sessions = sys.argv[1:3]
    summary, rounds = targets.load(first)
    cold, mean = costs(summary), costs(targets.load(sessions)[0])
    turns = json.loads(pathlib.Path(sessions).read_text())["args"]["turns"]
    warm = {name: later(cold[name], mean[name], turns) for name in cold if name in mean}
    print(f"\nCPU per request, us: first turn, the rounds of it that count, and the mean of the {turns - 1} later ones")
    for name in warm:
        row = summary[name]
        counted = f"{row['long_c1.rounds']} of {len(rounds)}{' at full core speed' if row['long_c1.steady'] else ''}"
        print(f"{name:30} {cold[name]:8.0f}  {counted:28} {warm[name]:8.0f}")
    peers = [warm[name] for name in targets.PD_PEERS if name in warm]
    if peers and OURS in warm:
        print(f"ours, with exact tokens, over the best PD peer without: {warm[OURS] / min(peers):.2f} (wanted {WARM}); "
              f"first turn {cold[OURS] / 1000:.1f} ms (wanted {COLD:.0f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
