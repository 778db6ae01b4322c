#!/usr/bin/env python3
"""Gates of the Mooncake build: each looks for one property and, where it is missing, names what would go wrong.

usage: gates.py source DIR        a checkout of Mooncake, before it is compiled
       gates.py binary FILE       an engine*.so, or a wheel that holds one
Prints one line a gate; exit status 1 when one fails. Standard library only.
"""
from __future__ import annotations

import pathlib
import re
import sys
import zipfile
from typing import List, NamedTuple, Tuple

ENGINE = "mooncake-transfer-engine/src"
RDMA = f"{ENGINE}/transport/rdma_transport/rdma_transport.cpp"


class Gate(NamedTuple):
    """One property: where and what to look for, and the consequence of its absence."""

    name: str
    places: Tuple[str, ...]
    pattern: str
    consequence: str


SOURCE = (
    Gate("dma-buf wiring", (f"{ENGINE}/CMakeLists.txt", f"{ENGINE}/transport/rdma_transport/CMakeLists.txt"),
         r"rdma_transport\s+(PRIVATE|PUBLIC)\s+USE_HIP_DMABUF",
         "USE_HIP_DMABUF would not reach the RDMA transport: GPU memory registers through a peer-memory module only, and hosts without one fail"),
    Gate("locality routing", (f"{ENGINE}/multi_transport.cpp",), r"\bis(Hip|GpuIpc)ReachableTarget\b",
         "KV for another host would be sent over the same-host HIP transport, and every transfer between hosts fails"),
    Gate("large-region splitting", (RDMA,), r"\bchunk_limit\b",
         "a KV pool above the NIC's largest memory region would not be split, and its registration fails"),
    Gate("dma-buf offset of each chunk", (RDMA,), r"chunk_dmabuf_exp\.offset\s*\+=",
         "every chunk after the first would be registered at the first one's address, and transfers move the wrong bytes"),
    Gate("yalantinglibs submodule", ("extern/yalantinglibs/CMakeLists.txt",), r"(?i)project\s*\(\s*yalantinglibs",
         "the submodule was not fetched: CMake stops at find_package(yalantinglibs), which the v0.5.22 base does not bring"),
)

BINARY = (
    Gate("large-region splitting", (), r"Auto-splitting buffer",
         "MC_MAX_MR_SIZE would cut a buffer off instead of splitting it: KV beyond it is never registered"),
    Gate("dma-buf", (), r"\0ibv_reg_dmabuf_mr\0",
         "GPU memory could be registered through a peer-memory module only, and hosts without one fail"),
    Gate("HIP", (), r"\0libamdhip64\.so", "the engine would not know GPU memory from host memory"),
    Gate("locality routing", (), r"(?<![A-Z_])MC_DISABLE_HIP(?![A-Z_])",
         "a build without ENABLE_MULTI_PROTOCOL: no transport routing by target, and no way to force RDMA between two engines of one host"),
)


def read(path: pathlib.Path) -> bytes:
    """The bytes of an engine library; of a wheel, the one that it holds."""
    if path.suffix != ".whl":
        return path.read_bytes()
    with zipfile.ZipFile(path) as wheel:
        names = [name for name in wheel.namelist() if re.fullmatch(r"mooncake/engine[^/]*\.so", name)]
        if len(names) != 1:
            raise SystemExit(f"gates.py: {path.name} holds {len(names)} files mooncake/engine*.so, expected one")
        return wheel.read(names[0])


def source(root: pathlib.Path) -> List[Tuple[Gate, bool]]:
    """Each source gate with its answer."""
    results = []
    for gate in SOURCE:
        texts = [(root / place).read_text(encoding="utf-8", errors="replace") for place in gate.places if (root / place).is_file()]
        results.append((gate, any(re.search(gate.pattern, text) for text in texts)))
    return results


def binary(data: bytes) -> List[Tuple[Gate, bool]]:
    """Each binary gate with its answer; anything but an ELF file is refused."""
    if data[:4] != b"\x7fELF":
        raise SystemExit("gates.py: not an ELF file")
    return [(gate, re.search(gate.pattern.encode(), data) is not None) for gate in BINARY]


def main(argv: List[str]) -> int:
    if len(argv) != 2 or argv[0] not in ("source", "binary"):
        print(__doc__, file=sys.stderr)
        return 2
    path = pathlib.Path(argv[1])
    if not path.exists():
        print(f"gates.py: {path}: no such file or directory", file=sys.stderr)
        return 2
    results = source(path) if argv[0] == "source" else binary(read(path))
    for gate, passed in results:
        print(f"{argv[0]} gate, {gate.name}: " + ("ok" if passed else f"MISSING: {gate.consequence}"))
    return 0 if all(passed for _, passed in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
