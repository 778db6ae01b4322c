#!/usr/bin/env python3
"""Print our figures beside the targets of the router's issue, each computed from the peers of the same run: bench/targets.py RESULT.json"""

import importlib.machinery
import importlib.util
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
PD_PEERS = ("sglang-router:cache_aware", "sglang-router:power_of_two", "smg:cache_aware", "smg:power_of_two")


def driver():
    loader = importlib.machinery.SourceFileLoader("run_router_bench", str(HERE / "run_router_bench"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def rows(summary: dict) -> list:
    """(measure, target in words, the target's value, ours, better is "less" or "more")"""
    ours, nginx, floor = summary.get("infera", {}), summary.get("nginx", {}), summary.get("reference:pd-relay", {})

    def best(key, pick=min):
        found = [summary[name][key] for name in PD_PEERS if summary.get(name, {}).get(key) is not None]
        return pick(found) if found else None

    def times(factor, value):
        return None if value is None else factor * value

    out = []

    def row(measure, words, target, value, better="less"):
        out.append((measure, words, target, value, better))

    key = "small_c32.cpu_us_per_req"
    row("small chat c32, CPU per request, us", "0.5 x best PD peer", times(0.5, best(key)), ours.get(key))
    row("small chat c1, req/s", "1.3 x best PD peer", times(1.3, best("small_c1.rps", max)), ours.get("small_c1.rps"), "more")
    row("small chat c32, req/s", "2 x best PD peer", times(2, best("small_c32.rps", max)), ours.get("small_c32.rps"), "more")
    for quantile in ("p50", "p99"):
        key = f"small_r100.added_{quantile}_ms"
        row(f"added latency at 100/s, {quantile}, ms", "0.85 x best PD peer", times(0.85, best(key)), ours.get(key))
    key = "stream_256.cpu_s_per_1m_chunks"
    row("256 streams, CPU s per million chunks", "0.85 x best PD peer", times(0.85, best(key)), ours.get(key))
    row("256 streams, CPU s per million chunks", "1.15 x nginx", times(1.15, nginx.get(key)), ours.get(key))
    row("256 streams, CPU s per million chunks", "the floor, for comparison", floor.get(key), ours.get(key))
    key = "stream_256.chunk_p99_ms"
    row("256 streams, chunk p99, ms", "0.95 x best PD peer", times(0.95, best(key)), ours.get(key))
    row("saturated, chunks/s", "1.2 x best PD peer", times(1.2, best("stream_sat.chunks_per_s", max)), ours.get("stream_sat.chunks_per_s"), "more")
    off = summary.get("infera:off", {})
    row("start to first answer, demand off, s", "0.45 (smg's is not beaten)", 0.45, off.get("startup_s"))
    row("RSS idle, demand off, MB", "50", 50, off.get("rss_idle_mb"))
    key = "small_c32.cpu_us_per_req"
    two = summary.get("infera:workers-2", {})
    row("two processes: small chat c32, CPU per request, us", "1.15 x one process", times(1.15, ours.get(key)), two.get(key))
    return out


def main() -> int:
    results = json.loads(pathlib.Path(sys.argv[1]).read_text())["results"]
    table = [("measure", "target", "", "ours", "")]
    for measure, words, target, value, better in rows(driver().summarize(results)):
        met = "-" if target is None or value is None else "yes" if (value <= target if better == "less" else value >= target) else "no"
        table.append((measure, words, "-" if target is None else f"{target:.2f}", "-" if value is None else f"{value:.2f}", met))
    widths = [max(len(line[i]) for line in table) for i in range(5)]
    print("\nour targets, in this run")
    for line in table:
        print("  ".join(cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths, strict=True))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
