"""Memory that the processes of `--workers N` share: who holds what on which target, and where sessions are bound.

Every process writes only its own column, so a killed process leaves a column that its parent can clear and nothing half-added. A selection with
its booking is made under one lock, a file lock: the kernel takes it back from a process that dies holding it.

Layout, in 64-bit cells: header | directory: slots × 2 (digest of target and generation) | per process: slots × (tokens, requests, unknown, claim)
| sessions: capacity × (digest, digest, target id, last use in ns, one cell of active requests per process).
"""
from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import time

MAGIC = 0x1FE7A001
HEADER = 8              # cells: magic, processes, slots, session buckets, sessions bound by role (3)
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
        # A descriptor of its own: file locks belong to an open file, and an inherited one would be the parent's.
        self._fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        self._map = mmap.mmap(self._fd, os.fstat(self._fd).st_size)
        self.cells = memoryview(self._map).cast("q")
        if fresh is not None:
            self.cells[0], self.cells[1], self.cells[2], self.cells[3] = (MAGIC, *fresh)
        if self.cells[0] != MAGIC:
            raise ValueError("not a shared region of this router")
        _, self.processes, self.slots, self.buckets = self.cells[:4].tolist()
        self.directory = HEADER
        self._columns = HEADER + 2 * self.slots
        self.sessions = self._columns + 4 * self.slots * self.processes
        self.stride = 4 + self.processes
        self._depth = 0
        self._locked = False
        self.timeouts = 0           # selections made without the lock because nobody gave it up in time
        self.waits = 0              # selections that found the lock taken

    @classmethod
    def create(cls, processes: int, slots: int = SLOTS, sessions: int = 0) -> Region:
        """A new region for so many processes; sessions: how many can be bound, 0 for none. Its `fd` is inheritable."""
        buckets = 1 << max(sessions * 2 - 1, 1).bit_length() if sessions else 0
        cells = HEADER + 2 * slots + 4 * slots * processes + buckets * (4 + processes)
        fd = os.memfd_create("infera-router", 0)
        try:
            os.ftruncate(fd, cells * 8)
            region = cls(fd, (processes, slots, buckets))
        except BaseException:
            os.close(fd)
            raise
        region.fd = fd
        return region

    def column(self, process: int, what: int) -> int:
        """First cell of a process's tokens (0), requests (1), unknown (2) or claims (3), by slot."""
        return self._columns + self.slots * (4 * process + what)

    def lock(self) -> None:
        """Take the lock (again, if this process has it), or go on without it after 50 ms: one herded pick is better than a router that
        stands still."""
        self._depth += 1
        if self._depth > 1:
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._locked = True
            return
        except OSError:
            self.waits += 1
        deadline = time.monotonic() + LOCK_WAIT_S
        pause = 0.0
        while time.monotonic() < deadline:
            time.sleep(pause)       # the first one only yields: the lock is held for microseconds
            pause = min(pause + 5e-6, 2e-4)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._locked = True
                return
            except OSError:
                continue
        self.timeouts += 1

    def unlock(self) -> None:
        self._depth -= 1
        if not self._depth and self._locked:
            self._locked = False
            fcntl.flock(self._fd, fcntl.LOCK_UN)

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
        start, size = self.column(process, 0), 4 * self.slots
        self.lock()
        try:
            self.cells[start:start + size] = memoryview(bytes(8 * size)).cast("q")
        finally:
            self.unlock()

    def held(self) -> tuple[int, int, int]:
        """Tokens, requests and unknown requests held by all processes together."""
        sums = [0, 0, 0]
        for process in range(self.processes):
            for what in range(3):
                start = self.column(process, what)
                sums[what] += sum(self.cells[start:start + self.slots].tolist())
        return sums[0], sums[1], sums[2]

    def close(self) -> None:
        self.cells.release()
        self._map.close()
        os.close(self._fd)
