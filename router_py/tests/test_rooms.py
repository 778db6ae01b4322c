"""The rooms of docs/architecture.md: which of them may import which."""

import ast
import pathlib

import pytest

SOURCES = pathlib.Path(__file__).resolve().parents[1] / "src"
ROOT = SOURCES.parents[1]
ROOMS = ("http", "pd", "policy", "kv", "fleet", "observe", "process")
# room -> the rooms that it may know beside itself
MAY = {
    "fleet": set(),
    "observe": set(),
    "policy": {"fleet", "kv"},
    "kv": {"fleet", "policy", "observe"},
    "http": {"observe"},
    "pd": {"http", "policy", "fleet", "observe", "kv"},
    "process": {"policy", "fleet", "observe"},
}
PURE = {"asyncio", "socket", "threading", "selectors", "uvloop", "zmq", "http", "urllib", "ssl", "subprocess"}


def imports(path):
    """Every module that a file names, but for those it only names for its types."""
    tree = ast.parse(path.read_text())
    typing_only = {id(node) for block in ast.walk(tree) if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
                   for node in ast.walk(block)}
    package = path.relative_to(SOURCES).parent.parts
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[:len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield module
            if module == "infera_router":
                yield from (f"infera_router.{alias.name}" for alias in node.names)


def files(package):
    return sorted((SOURCES / package).rglob("*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_knows_only_those_below_it(room):
    found = set()
    for path in files(f"infera_router/{room}"):
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "infera_router" and len(parts) > 1 and parts[1] in ROOMS and parts[1] != room and parts[1] not in MAY[room]:
                found.add(f"{path.relative_to(SOURCES)} imports {name}")
    assert not found, found


def test_policy_does_no_io():
    """But for the memory that processes share, which has a mutex in it."""
    found = {f"{path.name} imports {name}" for path in files("infera_router/policy") for name in imports(path) if name.split(".")[0] in PURE}
    assert not found, found


def test_the_supervisor_shares_only_the_fleet():
    found = {f"{path.name} imports {name}" for path in files("infera_engine") for name in imports(path)
             if name.startswith("infera_router.") and name.split(".")[1] != "fleet"}
    assert not found, found


def test_nobody_imports_the_emulator():
    for package in ("infera_router", "infera_engine"):
        assert not [path for path in files(package) for name in imports(path) if name.split(".")[0] == "infera_emulator"]


def test_the_collection_imports_nothing_of_the_router():
    found = [path for path in sorted((ROOT / "plugins").rglob("*.py")) if "import infera_" in path.read_text() or "from infera_" in path.read_text()]
    assert not found, found


def test_no_module_is_longer_than_500_lines():
    long = {str(path.relative_to(SOURCES)): count for path in SOURCES.rglob("*.py") if (count := len(path.read_text().splitlines())) > 500}
    assert not long, long
