#!/usr/bin/env python3
"""How our router's CPU grows: 1 to 64 decode targets, 1 to 2,000 open streams, bodies of 1 KB to 4 MB. Prints tables, asserts nothing."""

import argparse
import json
import sys

import adapters as A
import workload
from targets import driver

B = driver()


class Growth(B.Bench):
    """The benchmark's fake workers and load, with a free choice of both."""

    def __init__(self, args, decodes: int) -> None:
        super().__init__(args)
        base = args.base_port + 200
        self.decodes = [base + i for i in range(decodes)]
        self.mixed = [base + 100]

    def setup(self) -> None:
        super().setup()
        for size in (1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20):
            body = json.dumps({"model": B.MODEL, "messages": [{"role": "user", "content": "x" * size}], "max_tokens": 4}).encode()
            workload.write_records(f"{self.work}/body{size}.bin", [(0, body)])

    def measure(self, *scenarios: tuple) -> list:
        """Results of (name, settings) with one router."""
        self.start_etcd()
        adapter = A.Infera()
        context = self.ctx()
        adapter.prepare(context)
        process = self.spawn(adapter.command(context), "infera.log", self.cpu_router)
        try:
            for _ in range(200):
                if B.chat(context.port):
                    break
                B.time.sleep(0.05)
            out = []
            for name, settings in scenarios:
                B.SCENARIOS[name] = settings
                out.append(self.scenario(name, context.port, process.pid, adapter))
            return out
        finally:
            self.stop(process)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rt", action="store_true", help="real-time scheduling")
    args = parser.parse_args()
    defaults = argparse.Namespace(
        rt=args.rt,
        nice=0,
        no_pin=False,
        keep=False,
        quick=False,
        base_port=24000,
        prefills=2,
        decodes=4,
        dp=1,
        chunks=200,
        turns=1,
        sessions=1,
        tokenizer=None,
        peers="",
        timeout=60.0,
        scenario_timeout=120,
        start_timeout=60,
    )
    tables = []
    for decodes in (1, 4, 16, 64):
        bench = Growth(defaults, decodes)
        try:
            bench.setup()
            (small,) = bench.measure(("small_c32", {"body": "small", "conns": 32, "duration": 2.0, "warmup": 0.5}))
            tables.append((f"{decodes} decode targets, small chat c32", f"{small['cpu_us_per_req']:.0f} us a request", small["errors"]))
            if decodes == 4:
                streams = (1, 64, 256, 1000, 2000)
                # the same number of chunks a second in all of them
                runs = bench.measure(
                    *((f"streams{n}", {"body": "stream", "conns": n, "requests": n, "interval_us": 100 * max(n, 10)}) for n in streams)
                )
                tables += [
                    (f"{n} open streams", f"{r['cpu_s_per_1m_chunks']:.1f} s per million chunks", r["errors"])
                    for n, r in zip(streams, runs, strict=True)
                ]
                sizes = (1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20)
                runs = bench.measure(*((f"body{size}", {"body": f"body{size}", "conns": 4, "duration": 2.0, "warmup": 0.3}) for size in sizes))
                tables += [
                    (f"body of {size >> 10} KiB", f"{r['cpu_us_per_req']:.0f} us a request", r["errors"]) for size, r in zip(sizes, runs, strict=True)
                ]
        finally:
            bench.close()
    width = max(len(row[0]) for row in tables)
    for name, figure, errors in tables:
        print(f"{name.ljust(width)}  {figure}{f'  ({errors} errors)' if errors else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
