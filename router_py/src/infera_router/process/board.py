"""Who holds how many client connections, in memory that the processes share, and the way a connection goes from one to another.

The processes accept from one listening socket, and whoever is quickest gets a connection. One that has more than another hands it over, so that
all serve alike whatever the kernel does; a connection costs that at most once. Every cell has one writer.
"""

from __future__ import annotations

import array
import mmap
import os
import socket

SLACK = 1  # connections that a process may have more than the least busy one
MAX_PROCESSES = 64


class Board:
    """Cells of 64 bits: open connections per process | given i→j | received i→j."""

    def __init__(self, fd: int, processes: int, index: int = -1) -> None:
        self.fd, self.processes, self.index = fd, processes, index
        self._map = mmap.mmap(fd, 8 * (processes + 2 * processes * processes))
        self._cells = memoryview(self._map).cast("q")

    @classmethod
    def create(cls, processes: int) -> Board:
        fd = os.memfd_create("infera-connections", 0)
        os.ftruncate(fd, 8 * (processes + 2 * processes * processes))
        return cls(fd, processes)

    def count(self, delta: int) -> None:
        """This process's connections changed."""
        self._cells[self.index] += delta

    def loads(self) -> list[int]:
        """Connections of every process, those on their way to it included."""
        n, cells = self.processes, self._cells
        given, received = n, n + n * n
        return [cells[j] + sum(cells[given + i * n + j] - cells[received + i * n + j] for i in range(n)) for j in range(n)]

    def better(self) -> int:
        """The process that should have the next connection; this one unless another has fewer by more than the slack."""
        loads = self.loads()
        least = min(loads)
        return self.index if loads[self.index] < least + SLACK else loads.index(least)

    def given(self, to: int, delta: int) -> None:
        self._cells[self.processes * (1 + self.index) + to] += delta

    def received(self, origin: int) -> None:
        n = self.processes
        self._cells[n + n * n + origin * n + self.index] += 1

    def clear(self, index: int) -> None:
        """The process has ended; what waits in its inbox is its successor's. For the parent."""
        self._cells[index] = 0

    def close(self) -> None:
        self._cells.release()
        self._map.close()


def inboxes(count: int) -> list[tuple[socket.socket, socket.socket]]:
    """One (reading, writing) pair per process; they outlive it, so that nothing handed to a dead process is lost."""
    pairs = []
    for _ in range(count):
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for end in pair:
            end.setblocking(False)
        pairs.append(pair)
    return pairs


def hand(inbox: socket.socket, origin: int, fd: int) -> bool:
    """Send a connection; False when the inbox is full."""
    try:
        inbox.sendmsg([bytes([origin])], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]).tobytes())])
    except OSError:
        return False
    return True


def fetch(inbox: socket.socket) -> tuple[int, socket.socket] | None:
    """A connection with the process it came from; None when none waits."""
    try:
        data, ancillary, _, _ = inbox.recvmsg(1, socket.CMSG_SPACE(4))
    except OSError:
        return None
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds = array.array("i")
            fds.frombytes(payload[:4])
            return data[0], socket.socket(fileno=fds[0])
    return None
