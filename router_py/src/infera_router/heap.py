"""How the C library keeps the memory that requests give back: for the next request, not for the system.

A prompt of 100k tokens is a body of 400 KB that is read, joined, parsed and rendered. By default glibc returns such blocks to the system as
soon as they are free, and the next request takes a page fault for every 4 KB of them again.
"""

from __future__ import annotations

import ctypes

# Free memory kept at most, bytes; it is had in steps of STEP. Blocks of more than LARGE are the system's business as before.
KEPT, STEP, LARGE = 64 << 20, 4 << 20, 32 << 20
# malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8


def keep() -> bool:
    """Call before threads start. False where the C library has no such settings (musl), which is no fault.

    One arena: threads and event loop pass blocks to each other, and take turns anyway.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all([mallopt(_ARENA_MAX, 1), mallopt(_MMAP_THRESHOLD, LARGE), mallopt(_TRIM_THRESHOLD, KEPT), mallopt(_TOP_PAD, STEP)])
