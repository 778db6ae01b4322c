"""A real etcd on loopback for tests: start, stop, freeze, wipe; the same ports and data all along."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
MISSING = shutil.which("etcd") is None
MISSING_REASON = "no etcd binary on this machine (Debian package etcd-server)"


def run(main: Coroutine[Any, Any, T], timeout: float = 60) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(main, timeout)

    return asyncio.run(bounded())


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


async def eventually(check, timeout: float = 5.0, every: float = 0.02) -> float:
    """Wait until *check()* is true; returns the seconds it took, fails after *timeout*."""
    begin = time.monotonic()
    while not check():
        assert time.monotonic() - begin < timeout, f"not within {timeout} s: {getattr(check, '__doc__', None) or check}"
        await asyncio.sleep(every)
    return time.monotonic() - begin


class EtcdServer:
    """One member. *extra* are further flags; *tls* is (ca, cert, key) of the client port."""

    def __init__(self, folder: Path, extra: tuple[str, ...] = (), tls: tuple[str, str, str] | None = None) -> None:
        self.folder, self.extra, self.tls = folder, extra, tls
        self.port, self.peer_port = free_ports(2)
        self.process: subprocess.Popen[bytes] | None = None
        self._data = 0

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def start(self, wait: bool = True) -> EtcdServer:
        flags = ["--data-dir", str(self.folder / f"data{self._data}"), "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
                 "--listen-peer-urls", f"http://127.0.0.1:{self.peer_port}", *self.extra]
        if self.tls:
            ca, cert, key = self.tls
            flags += ["--client-cert-auth", "--trusted-ca-file", ca, "--cert-file", cert, "--key-file", key]
        log = open(self.folder / "etcd.log", "ab")
        self.process = subprocess.Popen(["etcd", *flags], stdout=log, stderr=log)
        log.close()
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        end = time.monotonic() + 15
        while time.monotonic() < end:
            if self.tls:
                if b"serving client requests" in (self.folder / "etcd.log").read_bytes():
                    return
            else:
                try:
                    with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                        if b"true" in answer.read():
                            return
                except OSError:
                    pass
            assert self.process is not None and self.process.poll() is None, (self.folder / "etcd.log").read_text()[-2000:]
            time.sleep(0.02)
        raise AssertionError("etcd did not start: " + (self.folder / "etcd.log").read_text()[-2000:])

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
            self.process.wait(10)
            self.process = None

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def wipe(self) -> None:
        """The next start finds an empty store."""
        assert self.process is None
        self._data += 1

    def ctl(self, *args: str, user: str | None = None) -> str:
        command = ["etcdctl", "--endpoints", self.url, *(["--user", user] if user else []), *args]
        if self.tls:
            ca, cert, key = self.tls
            command += ["--cacert", ca, "--cert", cert, "--key", key]
        done = subprocess.run(command, env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def compact(self) -> None:
        """Drop the history before the newest revision."""
        self.ctl("put", "/compacted", "now")  # the same revision cannot be compacted twice
        revision = self.ctl("get", "x", "-w", "json").split('"revision":')[1].split(",")[0]
        self.ctl("compact", revision)
