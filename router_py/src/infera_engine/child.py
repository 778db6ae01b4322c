"""The SGLang process and its group: start, end, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Child:
    """One child in a process group of its own; its output is ours."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    @classmethod
    async def start(cls, command: Sequence[str]) -> Child:
        """The child gets SIGTERM when the supervisor dies without a word. Raises OSError."""
        prctl = _prctl()
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
            preexec_fn=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM))
        return cls(process)

    async def wait(self) -> int:
        """The exit status; -n when signal n ended it."""
        return await self._process.wait()

    @property
    def status(self) -> int | None:
        return self._process.returncode

    async def stop(self, timeout: float) -> None:
        """SIGTERM to the group, *timeout* seconds for the child and everything in the group, then SIGKILL."""
        self.signal_group(signal.SIGTERM)
        if not await self._gone(timeout):
            log.warning("SGLang did not end within %g s of SIGTERM; killing its process group", timeout)
            self.signal_group(signal.SIGKILL)
            await self._gone(5.0)

    async def sweep(self, timeout: float) -> None:
        """The child is dead: end what it left in its group."""
        if not _group_alive(self.pid):
            return
        self.signal_group(signal.SIGTERM)
        if not await self._gone(timeout):
            self.signal_group(signal.SIGKILL)
            await self._gone(5.0)

    def signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def _gone(self, timeout: float) -> bool:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while self._process.returncode is None or _group_alive(self.pid):
            if loop.time() >= end:
                return False
            reap_orphans(self.pid)
            await asyncio.sleep(0.05)
        return True


def become_reaper() -> None:
    """Orphans of the child come to us, also where we are not PID 1, so that the group can be seen to end."""
    with contextlib.suppress(OSError):
        _prctl()(_PR_SET_CHILD_SUBREAPER, 1)


def reap_orphans(but: int) -> None:
    """Collect ended processes that were left to us, except the child *but*, which asyncio collects."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid == but:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(found.si_pid, os.WNOHANG)


def exit_code(status: int) -> int:
    """A child's status as an exit status: 128 + n for signal n."""
    return 128 - status if status < 0 else status


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _prctl() -> Callable[[int, int], int]:
    libc = ctypes.CDLL(None, use_errno=True)

    def call(option: int, value: int) -> int:
        return libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)

    return call
