#!/usr/bin/env python3
"""Print our figures beside the targets of the router's issue, each computed from the peers of the same run.

bench/targets.py RESULT.json...: a line is taken from the first of these runs that measured both sides of it.
"""

import collections
import dataclasses
import importlib.machinery
import importlib.util
import json
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
PD_PEERS = ("sglang-router:cache_aware", "sglang-router:power_of_two", "smg:cache_aware", "smg:power_of_two")


def driver():
    loader = importlib.machinery.SourceFileLoader("run_router_bench", str(HERE / "run_router_bench"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


@dataclasses.dataclass(frozen=True)
class Target:
    """One line of the issue's table: `ours` is to stay within `factor` times what `beside` reached, or within `factor` itself."""

    measure: str
    words: str
    key: str                                # of run_router_bench's summary
    factor: float
    beside: tuple[str, ...] = ()            # the best of these is what counts
    ours: str = "infera"
    more: bool = False                      # more is better

    def best(self, summary: dict) -> str | None:
        """Which of `beside` did best in the medians."""
        found = {name: summary[name][self.key] for name in self.beside if summary.get(name, {}).get(self.key) is not None}
        return (max if self.more else min)(found, key=found.__getitem__) if found else None

    def pair(self, summary: dict, best: str | None) -> tuple[float | None, float | None]:
        """(the target's value, ours) in this summary."""
        value = summary.get(self.ours, {}).get(self.key)
        if not self.beside:
            return self.factor, value
        other = summary.get(best, {}).get(self.key) if best else None
        return None if other is None else self.factor * other, value


STREAM_CPU = ("256 streams, CPU s per million chunks", "stream_256.cpu_s_per_1m_chunks")
TARGETS = (
    Target("small chat c32, CPU per request, us", "0.5 x best PD peer", "small_c32.cpu_us_per_req", 0.5, PD_PEERS),
    Target("small chat c1, req/s", "1.3 x best PD peer", "small_c1.rps", 1.3, PD_PEERS, more=True),
    Target("small chat c32, req/s", "2 x best PD peer", "small_c32.rps", 2, PD_PEERS, more=True),
    Target("added latency at 100/s, p50, ms", "0.85 x best PD peer", "small_r100.added_p50_ms", 0.85, PD_PEERS),
    Target("added latency at 100/s, p99, ms", "0.85 x best PD peer", "small_r100.added_p99_ms", 0.85, PD_PEERS),
    Target(STREAM_CPU[0], "0.85 x best PD peer", STREAM_CPU[1], 0.85, PD_PEERS),
    Target(STREAM_CPU[0], "1.15 x nginx", STREAM_CPU[1], 1.15, ("nginx",)),
    Target(STREAM_CPU[0], "the floor, for comparison", STREAM_CPU[1], 1, ("reference:pd-relay",)),
    Target("256 streams, chunk p99, ms", "0.95 x best PD peer", "stream_256.chunk_p99_ms", 0.95, PD_PEERS),
    Target("saturated, chunks/s", "1.2 x best PD peer", "stream_sat.chunks_per_s", 1.2, PD_PEERS, more=True),
    Target("start to first answer, demand off, s", "0.45 (smg's is not beaten)", "startup_s", 0.45, ours="infera:off"),
    Target("RSS idle, demand off, MB", "50", "rss_idle_mb", 50, ours="infera:off"),
    Target("two processes: small chat c32, CPU per request, us", "1.15 x one process", "small_c32.cpu_us_per_req", 1.15, ("infera",), "infera:workers-2"),
    Target("two processes: small chat c64, CPU per request, us", "1.15 x one process", "small_c64.cpu_us_per_req", 1.15, ("infera",), "infera:workers-2"),
)


def load(path: str) -> tuple[dict, list[dict]]:
    """The summary of a run, and one of each of its rounds."""
    results = json.loads(pathlib.Path(path).read_text())["results"]
    summarize = driver().summarize
    by_round = collections.defaultdict(list)
    for result in results:
        by_round[result["round"]].append(result)
    return summarize(results), [summarize(part) for part in by_round.values()]


def line(target: Target, runs: list[tuple[dict, list[dict]]]) -> tuple[str, ...]:
    """The medians of the first run that has both sides, which decide; beside them the median and the spread of ours / wanted round by round: the speed
    of a shared machine changes within minutes, and the figures of one round lie closest together."""
    for whole, rounds in runs:
        best = target.best(whole)
        value, ours = target.pair(whole, best)
        if value is not None and ours is not None:
            pairs = [(wanted, had) for wanted, had in (target.pair(summary, best) for summary in rounds) if wanted and wanted > 0 and had is not None]
            ratios = [had / wanted for wanted, had in pairs]
            paired = [f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f}-{max(ratios):.2f}"] if ratios else ["-", "-"]
            met = "-" if target.words.endswith("for comparison") else "yes" if (ours >= value if target.more else ours <= value) else "no"
            row, scenario = whole[target.ours], target.key.partition(".")[0]
            counted = f"{row[f'{scenario}.rounds']} of {len(rounds)}" if row.get(f"{scenario}.steady") else str(len(rounds))
            return target.measure, target.words, f"{value:.2f}", f"{ours:.2f}", met, *paired, counted
    return target.measure, target.words, *["-"] * 6


def main() -> int:
    runs = [load(path) for path in sys.argv[1:]]
    table = [("measure", "target", "wanted", "ours", "met", "by round", "from-to", "rounds"), *(line(target, runs) for target in TARGETS)]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    print("\nour targets by the medians; by round: ours / wanted, its median and range; rounds: how many counted, where only those at full core speed did")
    for row in table:
        print("  ".join(cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
