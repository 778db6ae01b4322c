#!/usr/bin/env python3
"""Pass a playbook's output through, and end with a table of what each play took and of the longest tasks.

usage: COMMAND | ci/step_times.py [--top N] [--first LABEL]
"""
from __future__ import annotations

import argparse
import re
import sys
import time

HEAD = re.compile(r"^(PLAY|TASK|RUNNING HANDLER) \[(.*)\] \**$")


def table(title: str, rows: list[tuple[str, float]]) -> str:
    width = max([len(name) for name, _seconds in rows] + [len(title)])
    return "\n".join([f"{title:<{width}}  seconds"] + [f"{name:<{width}}  {seconds:7.1f}" for name, seconds in rows])


def close(rows: list[tuple[str, float]], open_step: tuple[str, float] | None, now: float) -> None:
    if open_step is not None:
        rows.append((open_step[0], now - open_step[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--top", type=int, default=12, help="how many of the longest tasks to list")
    parser.add_argument("--first", default="before the first play", help="name of what comes before the first play")
    args = parser.parse_args()
    start = time.monotonic()
    plays, tasks = [], []
    play, task = (args.first, start), None
    for line in sys.stdin:
        sys.stdout.write(line)
        sys.stdout.flush()
        match = HEAD.match(line.rstrip())
        if not match:
            continue
        now = time.monotonic()
        close(tasks, task, now)
        task = None
        if match.group(1) == "PLAY":
            close(plays, play, now)
            play = (match.group(2), now)
        else:
            task = (match.group(2), now)
    now = time.monotonic()
    close(tasks, task, now)
    close(plays, play, now)
    tasks.sort(key=lambda row: -row[1])
    print()
    print(table("step", [*plays, ("in all", now - start)]))
    print()
    print(table("longest tasks", tasks[:args.top]))


if __name__ == "__main__":
    main()
