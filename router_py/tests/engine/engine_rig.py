"""Runs the real ``infera-engine`` over the fake sglang, and looks at etcd."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from fleet.etcd_server import EtcdServer, free_ports
from infera_router.fleet.etcd import EtcdClient, EtcdSettings

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "src"
DECODE = ("--disaggregation-mode", "decode", "--disaggregation-transfer-backend", "mooncake_tcp")
PREFILL = ("--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", "mooncake_tcp", "--disaggregation-bootstrap-port", "8111")


class Engine:
    """One supervisor with its fake child. *own* are flags before the ``--``, *args* SGLang's."""

    def __init__(self, folder: Path, etcd: EtcdServer | str, *args: str, own: tuple[str, ...] = (), **state) -> None:
        self.folder = folder
        self.port = free_ports(1)[0]
        self.prefix = f"/e{self.port}/"
        self.url = etcd if isinstance(etcd, str) else etcd.url
        self.state_file = folder / f"state-{self.port}.json"
        self.say(**state)
        self.own, self.args = own, args
        self.log_file = folder / f"log-{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def say(self, **state) -> None:
        """Tell the fake what to do from now on."""
        temporary = self.state_file.with_suffix(".new")
        temporary.write_text(json.dumps(state))
        temporary.rename(self.state_file)

    def start(self) -> Engine:
        env = {**os.environ, "PYTHONPATH": f"{HERE / 'fake_sglang'}:{SOURCE}", "FAKE_STATE": str(self.state_file),
               "XDG_CACHE_HOME": str(self.folder), "INFERA_ETCD_ENDPOINT": self.url}
        command = [sys.executable, "-m", "infera_engine.cli", "--etcd-prefix", self.prefix, "--lease-ttl", "3", "--drain-settle", "0.3",
                   "--stop-timeout", "1", "--allow-loopback", *self.own, "--", "--model-path", "m", "--port", str(self.port), *self.args]
        with open(self.log_file, "ab") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        return self

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def pids(self) -> list[int]:
        """The fake's pid, then its helper's."""
        return [int(word) for word in Path(f"{self.state_file}.pids").read_text().split()]

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    async def ended(self, timeout: float = 10) -> int:
        return await asyncio.wait_for(asyncio.to_thread(self.process.wait), timeout)

    async def record(self) -> dict | None:
        client = EtcdClient(EtcdSettings((self.url,)))
        try:
            item = await client.get(f"{self.prefix}127.0.0.1:{self.port}")
        finally:
            await client.close()
        return None if item is None else json.loads(item.value)

    async def status(self, status: str | None, timeout: float = 8) -> float:
        """Wait until the record says *status* (None: there is no record); returns the seconds it took."""
        begin = time.monotonic()
        while True:
            found = await self.record()
            if (found or {}).get("status") == status:
                return time.monotonic() - begin
            assert time.monotonic() - begin < timeout, f"record is {found}, not {status}\n{self.log}"
            await asyncio.sleep(0.03)

    def clean(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        try:
            for pid in self.pids:
                os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError):
            pass


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
