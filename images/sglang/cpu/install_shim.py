#!/usr/bin/env python3
# Copyright (c) 2026 The infera.serving maintainers
# SPDX-License-Identifier: Apache-2.0
"""Copy the CPU shim into a site-packages folder, with the metadata that makes its SGLang plugin discoverable.

usage: install_shim.py [--site-packages DIR]      (default: that of the running interpreter)
"""
from __future__ import annotations

import argparse
import pathlib
import shutil
import sys
import sysconfig

NAME, VERSION = "infera_cpu_shim", "0.1.0"
SOURCE = pathlib.Path(__file__).resolve().parent / "shim"
METADATA = f"Metadata-Version: 2.1\nName: {NAME.replace('_', '-')}\nVersion: {VERSION}\nSummary: Lets SGLang's wheel run on a CPU\nLicense: Apache-2.0\n"
ENTRY_POINTS = f"[sglang.srt.plugins]\n{NAME} = {NAME}.plugin:activate\n"


def install(site_packages: pathlib.Path) -> list[str]:
    """Write the shim below site_packages. Returns the relative paths written."""
    written = []
    for source in sorted(SOURCE.rglob("*")):
        if source.is_dir() or source.suffix == ".pyc":
            continue
        relative = source.relative_to(SOURCE)
        target = site_packages / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        written.append(relative.as_posix())
    info = site_packages / f"{NAME}-{VERSION}.dist-info"
    info.mkdir(exist_ok=True)
    for name, text in (("METADATA", METADATA), ("entry_points.txt", ENTRY_POINTS), ("INSTALLER", "infera\n")):
        (info / name).write_text(text, encoding="utf-8")
        written.append(f"{info.name}/{name}")
    written.append(f"{info.name}/RECORD")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in written), encoding="utf-8")
    return written


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--site-packages", default=sysconfig.get_paths()["purelib"], type=pathlib.Path)
    site_packages = parser.parse_args(argv).site_packages
    if not site_packages.is_dir():
        print(f"--site-packages {site_packages}: no such folder", file=sys.stderr)
        return 2
    print(f"{len(install(site_packages))} files of the CPU shim -> {site_packages}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
