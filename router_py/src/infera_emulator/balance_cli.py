"""`infera-emulator balance`: replay one trace at several request weights; `balance serve` and `balance replay` do it in real time over HTTP."""
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from infera_emulator.balance import figures, parameters, virtual


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="infera-emulator balance", description="Emulated decode ranks in lock-step, driven by the router's own policy "
                                "on a virtual clock. Shows what the request weight changes; measures no engine. `balance serve` and "
                                "`balance replay` do the same in real time over HTTP.")
    p.add_argument("--parameters", required=True, metavar="FILE", help="the run's parameters (JSON)")
    p.add_argument("--case", action="append", metavar="NAME", help="a case of the file (repeatable; default: all)")
    p.add_argument("--weight", action="append", type=float, metavar="W", help="request weight in tokens (repeatable; default: the case's)")
    p.add_argument("--seed", action="append", type=int, metavar="N", help="seed of the trace (repeatable; default: the file's)")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv and argv[0] in ("serve", "replay"):
        from infera_emulator.balance import live  # needs the router's own dependencies, the virtual clock does not

        try:
            return live.main(argv)
        except parameters.ParameterError as error:
            print(f"infera-emulator balance {argv[0]}: {error}", file=sys.stderr)
            return 2
    args = parser().parse_args(argv)
    try:
        given = parameters.load(args.parameters)
        cases = [given.case(name) for name in args.case or given.cases]
        for case in cases:
            limit = f"{case.kv_capacity_tokens:,} tokens of KV per rank" if case.kv_capacity_tokens else "KV unlimited"
            print(f"\n{case.name}: {case.ranks} decode ranks, {case.lanes} lanes, {limit}, {given.duration_s:g} s (emulated)")
            rows = virtual.run_all(given, case, args.weight or case.weights, args.seed or given.seeds)
            print(figures.table(rows))
            print("\nmedian over the seeds, and the change seed by seed" + ("; published: the real deployment, one run each" if case.published else ""))
            print(figures.aligned([figures.COMPARED, *figures.compared(rows, case.published)]), flush=True)
    except ValueError as error:
        print(f"infera-emulator balance: {error}", file=sys.stderr)
        return 2
    return 0
