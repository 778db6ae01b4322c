#!/usr/bin/env python3
"""Write the README's table of published points, each with the one command that reproduces it, from the report's reference data.

usage: ci/published_table.py [--check]     (exit 1 when the README is stale)
"""
import argparse
import csv
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CSV = ROOT / "roles" / "report" / "files" / "published.csv"
README = ROOT / "README.md"
BEGIN, END = "<!-- published points: ci/published_table.py -->\n", "<!-- end of published points -->\n"


def table() -> str:
    rows = [r for r in csv.DictReader(CSV.read_text().splitlines()) if r["series"].startswith("infera published")]
    lines = ["| shape | GPUs | weight | point | published tok/s/GPU | published interactivity p90 | the command |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        weight = f"{int(row['decode_request_weight']):,}" if row["decode_request_weight"] else "none"
        command = f"ansible-playbook playbooks/agentx.yml -i inventories/{row['shape']} -l mi355x -e agentx_concurrency={row['conc']}"
        lines.append(f"| {row['shape']} | {row['gpus']} | {weight} | C{row['conc']} | {float(row['tok_s_gpu']):,.0f} | {row['intvty_p90']} | `{command}` |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether the README is current")
    args = parser.parse_args()
    text = README.read_text()
    head, rest = text.split(BEGIN)
    new = head + BEGIN + table() + END + rest.split(END)[1]
    if new == text:
        return 0
    if args.check:
        print("README.md: the table of published points is stale; run ci/published_table.py", file=sys.stderr)
        return 1
    README.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
