#!/usr/bin/env python3
"""Write the emulator's figures into docs/routing.md, from parameters.json as it is committed. Takes some minutes.

usage: bench/balance/docs_table.py
"""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "router_py" / "src"))

from infera_emulator.balance import figures, parameters, virtual  # noqa: E402

PAGE = ROOT / "docs" / "routing.md"
BEGIN, END = "<!-- emulated figures: bench/balance/docs_table.py -->\n", "<!-- end of emulated figures -->\n"
HEAD = "| case | " + " | ".join(figures.COMPARED) + " |\n" + "| --- " * (len(figures.COMPARED) + 1) + "|\n"


def rows(case: parameters.Case, made: list) -> str:
    """One case's lines of the table."""
    return "".join(f"| {case.name} | {' | '.join(line)} |\n" for line in figures.compared(made, case.published))


def main() -> int:
    given = parameters.load(HERE / "parameters.json")
    body = "".join(rows(case, virtual.run_all(given, case, case.weights, given.seeds)) for case in given.cases.values())
    head, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(head + BEGIN + HEAD + body + END + rest.split(END)[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
