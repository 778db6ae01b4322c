"""An answer after its first byte: from the engine to the client as it comes. Every token of every stream takes this way.

What is kept of a stream would drive the next streams' bytes out of the processor's cache, so that is as little as its end needs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from time import monotonic

from infera_router.http.upstream import Leg
from infera_router.observe.metrics import Histogram

TAIL = 2048  # last bytes of an answer that are kept: the end mark of a stream, and its usage
READS = 16  # in so many reads at most: joining them is left to the end
DONE_CHUNK = b"data: [DONE]\n\n\r\n"
UNCOUNTED = Histogram(())  # takes the gaps of what is no stream


class Stream:
    """`write` takes the bytes to the client; `gaps` gets the seconds between two reads; `begun` is the monotonic time of the first one."""

    __slots__ = ("write", "gaps", "last", "reads")

    def __init__(self, write: Callable[[bytes], None], gaps: Histogram, begun: float, first: bytes) -> None:
        self.write, self.gaps, self.last = write, gaps, begun
        self.reads = deque((first[-TAIL:],), READS)

    def more(self, leg: Leg | None, data: bytes) -> None:
        self.write(data)
        self.reads.append(data if len(data) < TAIL else data[-TAIL:])
        now = monotonic()
        self.gaps.observe(now - self.last)
        self.last = now

    def kept(self, data: bytes) -> None:
        """The same for a whole chunk."""
        self.more(None, data)

    def token(self, data: bytes) -> None:
        """The same for a whole chunk of a stream whose usage nobody will read: of those only an end mark is kept."""
        self.write(data)
        if data.endswith(DONE_CHUNK):
            self.reads.append(data)
        elif self.reads:
            self.reads.clear()
        now = monotonic()
        gap = now - self.last
        self.last = now
        gaps = self.gaps
        gaps.counts[bisect_left(gaps.buckets, gap)] += 1
        gaps.sum += gap

    def tail(self) -> bytes:
        """The last bytes of the answer that were kept, in one piece."""
        return b"".join(self.reads)[-TAIL:]
