#!/usr/bin/env python3
"""Write docs/reference/engine-cli.md, the table of infera-engine's options, from the options themselves.

usage: ci/engine_reference.py [--check]     (exit 1 when the page is stale)
"""
import argparse
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "engine-cli.md"
HEAD = """# infera-engine: options

Written by `ci/engine_reference.py`; [engine.md](../engine.md) says how it is used. A flag beats its variable, a variable the default; an empty variable is
unset. What follows `--` goes to `sglang.launch_server`.

"""


def page() -> str:
    sys.path.insert(0, str(ROOT / "router_py" / "src"))
    from infera_engine.settings import OPTIONS
    from infera_router.fleet.options import reference

    return HEAD + reference(OPTIONS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether the page is current")
    args = parser.parse_args()
    new = page()
    if PAGE.exists() and PAGE.read_text() == new:
        return 0
    if args.check:
        print(f"{PAGE.relative_to(ROOT)} is stale; run ci/engine_reference.py", file=sys.stderr)
        return 1
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
