#!/usr/bin/env python3
"""Write docs/reference/router-cli.md and router-metrics.md, the tables of infera-router's options and metrics, from their definitions.

usage: ci/router_reference.py [--check]     (exit 1 when a page is stale)
"""
import argparse
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLI = ROOT / "docs" / "reference" / "router-cli.md"
METRICS = ROOT / "docs" / "reference" / "router-metrics.md"
CLI_HEAD = """# infera-router: options

Written by `ci/router_reference.py`; [router.md](../router.md) says how it is used. A flag beats its variable, a variable the default; an empty variable is
unset. A wrong value ends the command with exit status 2 and one line that names the option.

"""
METRICS_HEAD = """# infera-router: metrics

Written by `ci/router_reference.py` from `infera_router/observe/metrics.py`. `GET /metrics` answers for all processes of `--workers N`, whichever is asked.

| metric | kind | labels | meaning | of several processes |
| --- | --- | --- | --- | --- |
"""


def pages() -> dict:
    sys.path.insert(0, str(ROOT / "router_py" / "src"))
    from infera_router.fleet.options import reference
    from infera_router.observe.metrics import FAMILIES
    from infera_router.settings import OPTIONS

    rows = "".join(f"| `{f.name}` | {f.kind} | {', '.join(f'`{name}`' for name in f.labels) or '–'} | {f.help} | {f.merge} |\n" for f in FAMILIES.values())
    return {CLI: CLI_HEAD + reference(OPTIONS), METRICS: METRICS_HEAD + rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether the pages are current")
    args = parser.parse_args()
    stale = [page for page, text in pages().items() if not page.exists() or page.read_text() != text]
    if args.check:
        for page in stale:
            print(f"{page.relative_to(ROOT)} is stale; run ci/router_reference.py", file=sys.stderr)
        return 1 if stale else 0
    for page in stale:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(pages()[page])
    return 0


if __name__ == "__main__":
    sys.exit(main())
