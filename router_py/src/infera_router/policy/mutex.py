"""A mutex in memory that processes share, taken without a system call while nobody else has it.

POSIX threads' robust mutex (pthread_mutexattr_setrobust(3)): the kernel takes it back from a process that dies holding it.
"""
from __future__ import annotations

import ctypes
import errno

SIZE = 64               # bytes; pthread_mutex_t takes 40 on x86-64 and 48 on arm64
_PROCESS_SHARED = _ROBUST = 1       # pthread.h

# These calls neither wait nor call back, so the interpreter's lock stays with the caller.
_libc = ctypes.PyDLL(None)
for _call in (_libc.pthread_mutex_trylock, _libc.pthread_mutex_unlock, _libc.pthread_mutex_consistent):
    _call.argtypes = [ctypes.c_void_p]


class Mutex:
    """The mutex at `address`, SIZE bytes of it. `make` it once, before another process looks; it is given back by the thread that took it.

    `trylock(at)` and `unlock(at)` are the library's own; what `trylock` returned, `taken` understands.
    """

    __slots__ = ("at", "trylock", "unlock")

    def __init__(self, address: int):
        self.at = ctypes.c_void_p(address)
        self.trylock, self.unlock = _libc.pthread_mutex_trylock, _libc.pthread_mutex_unlock

    def make(self) -> None:
        attributes = ctypes.create_string_buffer(SIZE)
        for step in (_libc.pthread_mutexattr_init(attributes), _libc.pthread_mutexattr_setpshared(attributes, _PROCESS_SHARED),
                     _libc.pthread_mutexattr_setrobust(attributes, _ROBUST), _libc.pthread_mutex_init(self.at, attributes)):
            if step:
                raise OSError(step, "a mutex for several processes cannot be made")

    def taken(self, code: int) -> bool:
        """Whether the mutex is ours now. What its last holder left may be half done if that died."""
        if code == errno.EOWNERDEAD:
            _libc.pthread_mutex_consistent(self.at)
            return True
        return not code
