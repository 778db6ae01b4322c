"""Compiled modules: which names and strings they carry, and how to make them equal to their sources.

A marker is looked for in the bytecode because that is what the engine runs: Python trusts a cached .pyc whose recorded
time and size match the source, so an edited file with a stale cache runs unpatched.
"""
from __future__ import annotations

import importlib.util
import marshal
import pathlib
import py_compile
import types
from typing import List, Set


class BytecodeError(Exception):
    """The compiled module is missing, unreadable or stale."""


def names(code: types.CodeType) -> Set[str]:
    """Every name and string constant of a code object and of those inside it."""
    found: Set[str] = set()
    stack = [code]
    while stack:
        one = stack.pop()
        found.update(one.co_names, one.co_varnames, one.co_cellvars, one.co_freevars, (one.co_name,))
        for constant in one.co_consts:
            if isinstance(constant, types.CodeType):
                stack.append(constant)
            elif isinstance(constant, str):
                found.add(constant)
            elif isinstance(constant, (tuple, frozenset)):
                found.update(item for item in constant if isinstance(item, str))
    return found


def caches(source: pathlib.Path) -> List[pathlib.Path]:
    """Cached modules of a source, of every interpreter and optimisation level."""
    stem = source.name[:-3]
    folders = {source.parent / "__pycache__", pathlib.Path(importlib.util.cache_from_source(str(source))).parent}
    return sorted(path for folder in folders for path in folder.glob(f"{stem}.*.pyc"))


def load(cache: pathlib.Path) -> types.CodeType:
    """The code object of a .pyc of the running interpreter."""
    data = cache.read_bytes()
    if data[:4] != importlib.util.MAGIC_NUMBER:
        raise BytecodeError(f"{cache.name}: made by another Python")
    try:
        return marshal.loads(data[16:])
    except (ValueError, EOFError, TypeError) as err:
        raise BytecodeError(f"{cache.name}: unreadable ({err})") from None


def refresh(source: pathlib.Path) -> pathlib.Path:
    """Delete every cached module of a source and compile it for the running interpreter."""
    for cache in caches(source):
        cache.unlink()
    try:
        cache = py_compile.compile(str(source), doraise=True)
    except py_compile.PyCompileError as err:
        raise BytecodeError(f"{source.name}: {err.msg}") from None
    if cache is None:
        raise BytecodeError(f"{source.name}: not compiled")
    return pathlib.Path(cache)


def refreshed(source: pathlib.Path, marker: str) -> List[str]:
    """Compile anew and read the result back; names the cached module where it lacks the marker."""
    cache = refresh(source)
    return [] if marker in names(load(cache)) else [cache.name]


def trusted(source: pathlib.Path, cache: pathlib.Path) -> bool:
    """Whether this interpreter would run the cached module in place of the source: by its time and size, or by its hash (PEP 552)."""
    data = cache.read_bytes()[:16]
    if len(data) < 16 or data[:4] != importlib.util.MAGIC_NUMBER:
        return False
    flags = int.from_bytes(data[4:8], "little")
    if flags & 0b1:
        return not flags & 0b10 or data[8:16] == importlib.util.source_hash(source.read_bytes())
    stat = source.stat()
    recorded = int.from_bytes(data[8:12], "little"), int.from_bytes(data[12:16], "little")
    return recorded == (int(stat.st_mtime) & 0xFFFFFFFF, stat.st_size & 0xFFFFFFFF)


def stale(source: pathlib.Path, marker: str) -> List[str]:
    """Names of cached modules that the running interpreter would run, but which lack the marker."""
    return [cache.name for cache in caches(source) if trusted(source, cache) and marker not in names(load(cache))]
