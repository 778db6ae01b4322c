"""Memory that the processes of `--workers N` share: who holds what on which target, and where sessions are bound.

Every process writes only its own column, so a killed process leaves a column that its parent can clear and nothing half-added. A selection with
its booking is made under one lock (see mutex.py): the kernel takes it back from a process that dies holding it.

Layout, in 64-bit cells: header | directory: slots × 2 (digest of target and generation) | per process: slots × (tokens, requests, unknown, claim)
| sessions: capacity × (digest, digest, target id, last use in ns, one cell of active requests per process).
"""
from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import time

from .mutex import Mutex

MAGIC = 0x1FE7A002
HEADER = 16             # cells: magic, processes, slots, session buckets, sessions bound by role (3), one free, the mutex (8)
MUTEX = 8               # its first cell
CELLS = 4               # of a target in a process's column: tokens, requests, unknown, claim
SLOTS = 1024            # targets that can be known at one time
LOCK_WAIT_S = 0.05      # a holder that is stopped, not dead, must not stop the others


def digest(*parts: str) -> tuple[int, int]:
    """128 bits of a text as two signed cells; never (0, 0), which marks a free place."""
    raw = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).digest()
    low, high = int.from_bytes(raw[:8], "little", signed=True), int.from_bytes(raw[8:], "little", signed=True)
    return (low or 1), high


class Region:
    """One process's hold on the shared memory. The parent makes it and hands the descriptor down (`pass_fds`, or fork)."""

    def __init__(self, fd: int, fresh: tuple[int, int, int] | None = None):
        self.map = mmap.mmap(fd, os.fstat(fd).st_size)
        self.cells = memoryview(self.map).cast("q")
        self._mutex = Mutex(ctypes.addressof(ctypes.c_char.from_buffer(self.map, 8 * MUTEX)))
        self._at, self._trylock, self._unlock = self._mutex.at, self._mutex.trylock, self._mutex.unlock
        if fresh is not None:
            self._mutex.make()
            self.cells[0], self.cells[1], self.cells[2], self.cells[3] = (MAGIC, *fresh)
        if self.cells[0] != MAGIC:
            raise ValueError("not a shared region of this router")
        _, self.processes, self.slots, self.buckets = self.cells[:4].tolist()
        self.directory = HEADER
        self._columns = HEADER + 2 * self.slots
        self.sessions = self._columns + CELLS * self.slots * self.processes
        self.stride = 4 + self.processes
        self._depth = 0
        self._locked = False
        self.timeouts = 0           # selections made without the lock because nobody gave it up in time
        self.waits = 0              # selections that found the lock taken

    @classmethod
    def create(cls, processes: int, slots: int = SLOTS, sessions: int = 0) -> Region:
        """A new region for so many processes; sessions: how many can be bound, 0 for none. Its `fd` is inheritable."""
        buckets = 1 << max(sessions * 2 - 1, 1).bit_length() if sessions else 0
        cells = HEADER + 2 * slots + CELLS * slots * processes + buckets * (4 + processes)
        fd = os.memfd_create("infera-router", 0)
        try:
            os.ftruncate(fd, cells * 8)
            region = cls(fd, (processes, slots, buckets))
        except BaseException:
            os.close(fd)
            raise
        region.fd = fd
        return region

    def column(self, process: int) -> int:
        """First cell of a process's column: CELLS of each slot."""
        return self._columns + CELLS * self.slots * process

    def lock(self) -> None:
        """Take the lock (again, if this process has it), or go on without it after 50 ms: one herded pick is better than a router that
        stands still."""
        self._depth += 1
        if self._depth == 1:
            code = self._trylock(self._at)
            self._locked = not code or self._mutex.taken(code) or self._wait()

    def _wait(self) -> bool:
        self.waits += 1
        deadline = time.monotonic() + LOCK_WAIT_S
        pause = 0.0
        while time.monotonic() < deadline:
            time.sleep(pause)       # the first one only yields: the lock is held for microseconds
            if self._mutex.taken(self._trylock(self._at)):
                return True
            pause = min(pause + 5e-6, 2e-4)
        self.timeouts += 1
        return False

    def unlock(self) -> None:
        self._depth -= 1
        if not self._depth and self._locked:
            self._locked = False
            self._unlock(self._at)

    def clear(self, process: int) -> None:
        """Forget all that a process held. For its parent, once it has ended."""
        self.clear_ledger(process)
        if self.buckets:
            # Nobody else writes these cells, so the lock is not needed for the many of them.
            first, stride = self.sessions + 4 + process, self.stride
            for bucket, active in enumerate(self.cells[first::stride].tolist()):
                if active:
                    self.cells[first + bucket * stride] = 0

    def clear_ledger(self, process: int) -> None:
        start, size = self.column(process), CELLS * self.slots
        self.lock()
        try:
            self.cells[start:start + size] = memoryview(bytes(8 * size)).cast("q")
        finally:
            self.unlock()

    def held(self) -> tuple[int, int, int]:
        """Tokens, requests and unknown requests held by all processes together."""
        sums = [0, 0, 0]
        for process in range(self.processes):
            start = self.column(process)
            column = self.cells[start:start + CELLS * self.slots].tolist()
            for what in range(3):
                sums[what] += sum(column[what::CELLS])
        return sums[0], sums[1], sums[2]

    def close(self) -> None:
        self.cells.release()
        self.map.close()
