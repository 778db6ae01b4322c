"""The parent of `--workers N`: starts the processes, starts a dead one anew, and keeps what must outlive one of them.

It holds the listening socket, the shared ledger and the counters of processes that have ended. It serves no request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from time import monotonic
from typing import Any

from infera_router.observe.metrics import Store, keep_counters, merge
from infera_router.policy.region import Region
from infera_router.process import handover
from infera_router.process.board import Board, inboxes
from infera_router.process.channel import Channel
from infera_router.settings import Settings

log = logging.getLogger(__name__)

VARIABLE = "_INFERA_ROUTER_PROCESS"  # how a process knows its place: JSON of the numbers below
POLL_S = 2.0  # a killed process takes at most this much of its counting along
QUICK_S = 5.0  # a process that ends sooner is started again with growing pauses
MAX_PAUSE_S = 5.0
GRACE_S = 5.0  # beyond the drain's time, before SIGKILL


class _Process:
    """One of the processes, through all its starts."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.child: asyncio.subprocess.Process | None = None
        self.channel: Channel | None = None
        self.last: dict | None = None  # its last dump
        self.serving = asyncio.Event()
        self.starts = 0


class Parent:
    def __init__(self, settings: Settings, listener: socket.socket, argv: Sequence[str]) -> None:
        self.settings, self.listener, self.argv = settings, listener, list(argv)
        policy = settings.policy
        self.region = Region.create(settings.workers, sessions=policy.session_affinity_capacity if policy.session_affinity != "off" else 0)
        self.board = Board.create(settings.workers)
        self.inboxes = inboxes(settings.workers)
        self.processes = [_Process(index) for index in range(settings.workers)]
        self.retired = Store()
        self.restarts = 0
        self.stopping = asyncio.Event()
        self._gone = False

    async def run(self, taken: handover.Taken | None) -> None:
        """Serve until a signal; returns when every process has ended."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        keepers = [loop.create_task(self._keep(process)) for process in self.processes]
        offer = handover.Offer(self.settings, self.listener, self._all_serve, self._handed_over)
        poll = loop.create_task(self._poll())
        for process in self.processes:
            await process.serving.wait()
        if taken is not None:
            await loop.run_in_executor(None, taken.commit)
        await offer.start()
        log.info("%d processes serve", len(self.processes))
        await self.stopping.wait()
        log.info("stopping")
        offer.close()
        self._signal(signal.SIGTERM)
        _, late = await asyncio.wait(keepers, timeout=self.settings.drain_timeout + GRACE_S)
        if late:
            log.error("%d processes did not end in time and are killed", len(late))
            self._signal(signal.SIGKILL)
            await asyncio.wait(keepers, timeout=GRACE_S)
        poll.cancel()
        held = self.region.held()
        if any(held):
            log.error("the ledger is not empty at the end: %d tokens, %d requests, %d of unknown size", *held)

    def _all_serve(self) -> bool:
        return all(process.serving.is_set() for process in self.processes)

    def _handed_over(self) -> None:
        self._gone = True
        self.listener.close()
        self._signal(signal.SIGUSR1)

    def _reload(self) -> None:
        self._signal(signal.SIGHUP)

    def _signal(self, number: int) -> None:
        for process in self.processes:
            if process.child is not None and process.child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.child.send_signal(number)

    async def _keep(self, process: _Process) -> None:
        """Start a process, and again when it dies, until the parent stops."""
        pause = 0.0
        while not self.stopping.is_set():
            began = monotonic()
            await self._start(process)
            code = await process.child.wait()
            process.serving.clear()
            self._bury(process)
            if self.stopping.is_set():
                return
            if self._gone:
                log.info("process %d has ended (%s) after the port was handed over", process.index, _how(code))
                return
            self.restarts += 1
            pause = min(max(2 * pause, 0.1), MAX_PAUSE_S) if monotonic() - began < QUICK_S else 0.0
            log.error("process %d ended (%s); it is started again%s", process.index, _how(code), f" in {pause:g} s" if pause else "")
            if pause:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.stopping.wait(), pause)

    async def _start(self, process: _Process) -> None:
        ours, theirs = socket.socketpair()
        place = {"index": process.index, "processes": len(self.processes), "listener": self.listener.fileno(), "region": self.region.fd,
                 "board": self.board.fd, "channel": theirs.fileno(), "inbox": self.inboxes[process.index][0].fileno(),
                 "others": [pair[1].fileno() for pair in self.inboxes]}
        fds = [place["listener"], place["region"], place["board"], place["channel"], place["inbox"], *place["others"]]
        process.starts += 1
        process.child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "infera_router", *self.argv, pass_fds=fds, env={**os.environ, VARIABLE: json.dumps(place)})
        theirs.close()
        process.channel = Channel(lambda question, data: self._answer(process, question, data), lambda: None)
        await process.channel.open(ours)

    def _bury(self, process: _Process) -> None:
        """What a dead process held is free again, what it counted stays counted."""
        self.region.clear(process.index)
        self.board.clear(process.index)
        process.channel.close()
        process.channel = None
        if process.last is not None:
            self.retired = merge([self.retired.dump(), keep_counters(process.last["store"])])
            process.last = None

    async def _answer(self, process: _Process, question: str, data: Any) -> Any:
        if question == "serving":
            process.serving.set()
            return None
        # "dumps": one process is asked by a client, and answers for all
        process.last = data
        await asyncio.gather(*(self._refresh(other) for other in self.processes if other is not process))
        return {"dumps": [other.last for other in self.processes if other.last is not None], "retired": self.retired.dump(),
                "restarts": self.restarts}

    async def _refresh(self, process: _Process) -> None:
        if process.channel is not None and process.serving.is_set():
            with contextlib.suppress(asyncio.TimeoutError, ConnectionError):
                process.last = await process.channel.ask("dump") or process.last

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            for process in self.processes:
                await self._refresh(process)


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"
