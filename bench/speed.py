"""How fast a core is at the moment. A rented core has two speeds, apart by up to 1.9: a neighbour on the other thread of it comes and goes."""

import os
import threading
import time

# A probe this much slower than the run's quickest one has met a neighbour: between the two speeds, which are 1.5 to 1.9 apart, lies next to nothing.
SLOWER = 1.25


def probe(cpu: int, real_time: bool = False) -> float:
    """Microseconds of CPU time that a fixed piece of work takes on a core, the least of three."""
    took: list[float] = []

    def work() -> None:
        os.sched_setaffinity(0, {cpu})  # 0: this thread only
        if real_time:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        for _ in range(3):
            began = time.thread_time()
            seen = {}
            for i in range(20_000):
                seen[i & 1023] = i
            took.append(1e6 * (time.thread_time() - began))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return min(took)


def mark(scenarios: list[dict]) -> None:
    """Set `steady` of each measured scenario: whether both cores had their full speed right before and right after it.

    `probe_us` of a scenario: {core: [before, after]}; the quickest of all is the full speed. One without probes stays without the mark.
    """
    fastest: dict[str, float] = {}
    probed = [out for out in scenarios if out.get("probe_us")]
    for out in probed:
        for core, took in out["probe_us"].items():
            fastest[core] = min(took + [fastest.get(core, took[0])])
    for out in probed:
        out["steady"] = all(max(took) <= SLOWER * fastest[core] for core, took in out["probe_us"].items())
