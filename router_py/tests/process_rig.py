"""A real `infera-router` process over a real etcd, with fault engines in the test's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.etcd_server import EtcdServer, eventually, free_ports
from infera_emulator.faults import FaultEngine, Rooms
from infera_router.fleet.etcd import EtcdClient, EtcdSettings
from rig import Answer, Client

SOURCES = Path(__file__).resolve().parents[1] / "src"


class RouterProcess:
    """One `infera-router`; its log is read back from a file."""

    def __init__(self, folder: Path, port: int, *flags: str, env: dict[str, str] | None = None) -> None:
        self.folder, self.port, self.flags, self.env = folder, port, flags, env or {}
        self.log = folder / f"router-{len(list(folder.glob('router-*.log')))}.log"
        self.process: subprocess.Popen | None = None

    def start(self) -> RouterProcess:
        env = {**{k: v for k, v in os.environ.items() if not k.startswith("INFERA_")}, "PYTHONPATH": str(SOURCES), **self.env}
        argv = [sys.executable, "-m", "infera_router", "--host", "127.0.0.1", "--port", str(self.port), *self.flags]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, env=env)
        return self

    async def ready(self, timeout: float = 15.0) -> RouterProcess:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                client = await Client.open(self.port)
                client.send("/ready", None, "GET")
                status = (await client.answer()).status
                client.close()
                if status == 200:
                    return self
            assert self.process.poll() is None, self.text()
            assert loop.time() < end, self.text()
            await asyncio.sleep(0.05)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def children(self) -> list[int]:
        """Pids of the processes of --workers N, by their index."""
        pids = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return sorted(map(int, pids))

    async def ended(self, timeout: float = 10.0) -> int:
        await eventually(lambda: self.process.poll() is not None, timeout)
        return self.process.returncode

    async def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                await self.ended(8)
            except AssertionError:
                self.process.kill()
                self.process.wait()


@dataclass
class Stack:
    """`async with Stack(...)`: `router` serves `engines` found in `etcd`; flags are the router's own."""

    prefills: int = 1
    decodes: int = 1
    mixed: int = 0
    flags: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    ranks: int = 1
    engine: dict[str, Any] = field(default_factory=dict)

    async def __aenter__(self) -> Stack:
        self._folder = tempfile.TemporaryDirectory(prefix="router-stack-")
        self.folder = Path(self._folder.name)
        self.etcd = EtcdServer(self.folder)
        await asyncio.to_thread(self.etcd.start)
        self.store = EtcdClient(EtcdSettings((self.etcd.url,)))
        self.rooms = Rooms()
        self.engines: dict[str, list[FaultEngine]] = {"prefill": [], "decode": [], "mixed": []}
        self.leases: dict[str, int] = {}
        for role, count in (("prefill", self.prefills), ("decode", self.decodes), ("mixed", self.mixed)):
            for _ in range(count):
                engine = await FaultEngine(role, self.rooms, self.ranks if role == "decode" else 1, **self.engine).start()
                self.engines[role].append(engine)
                await self.put(engine)
        self.port = free_ports(1)[0]
        self.routers: list[RouterProcess] = []
        try:
            self.router = await self.start_router()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def start_router(self, *flags: str, wait: bool = True, port: int | None = None) -> RouterProcess:
        router = RouterProcess(self.folder, port or self.port, "--etcd-endpoint", self.etcd.url, *self.flags, *flags, env=self.env)
        self.routers.append(router)
        router.start()
        if wait:
            await router.ready()
        return router

    async def __aexit__(self, *exc: Any) -> None:
        for router in self.routers:
            await router.stop()
        for engine in self.all():
            await engine.stop()
        await self.store.close()
        self.etcd.kill()
        self._folder.cleanup()

    def all(self) -> list[FaultEngine]:
        return [engine for engines in self.engines.values() for engine in engines]

    async def put(self, engine: FaultEngine, lease: int = 0, **more: Any) -> None:
        value = json.dumps({**engine.record(), "generation": f"g-{engine.port}", **more}).encode()
        await self.store.put("/infera/workers/" + engine.worker_id, value, *([lease] if lease else []))

    async def remove(self, engine: FaultEngine) -> None:
        await self.store.delete("/infera/workers/" + engine.worker_id)

    async def ask(self, body: Any = None, path: str = "/v1/chat/completions", method: str = "POST", headers: dict[str, str] | None = None,
                  port: int | None = None) -> Answer:
        client = await Client.open(port or self.port)
        client.send(path, body, method, headers)
        try:
            return await asyncio.wait_for(client.answer(), 20)
        finally:
            client.close()

    async def get(self, path: str, **more: Any) -> Answer:
        return await self.ask(None, path, "GET", **more)

    async def metrics(self) -> dict[str, float]:
        """Every sample of the router's page, by its name with labels."""
        text = (await self.get("/metrics")).body.decode()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line and not line.startswith("#")}

    def chat(self, stream: bool = False, fault: Any = None, **more: Any) -> dict[str, Any]:
        body: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "stream": stream, **more}
        return body if fault is None else {**body, "fault": fault}


TERM, KILL, HUP = signal.SIGTERM, signal.SIGKILL, signal.SIGHUP
