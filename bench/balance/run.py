#!/usr/bin/env python3
"""Replay one trace at several request weights on emulated decode ranks, and print what changes. Prints figures, asserts nothing.

Runs from a checkout with the standard library alone: the router's policy picks on a virtual clock. `--help` lists the options; without any it
runs every case of parameters.json beside this file.
"""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "router_py" / "src"))

from infera_emulator.balance_cli import main  # noqa: E402

if __name__ == "__main__":
    given = sys.argv[1:]
    if not any(a == "--parameters" or a.startswith("--parameters=") for a in given):
        given = ["--parameters", str(HERE / "parameters.json"), *given]
    sys.exit(main(given))
