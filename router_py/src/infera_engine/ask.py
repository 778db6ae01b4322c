"""Asks the engine's Python what the installed SGLang makes of the arguments (probe.py), and remembers the answer."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

TIMEOUT = 300.0
_FINGERPRINT = (
    "import importlib.util as u, os, sys\n"
    "s = u.find_spec('sglang')\n"
    "d = os.path.dirname(s.origin) if s and s.origin else ''\n"
    "print(sys.executable, d, *(f'{os.stat(p).st_mtime_ns}:{os.stat(p).st_size}' for p in (os.path.join(d, 'srt', n) for n in "
    "('server_args.py', 'arg_groups', 'arg_groups/fields', 'disaggregation/kv_events.py')) if os.path.exists(p)))\n"
)


class AskError(Exception):
    """The arguments are wrong or SGLang cannot be asked; one line."""


@dataclass(frozen=True, slots=True)
class EngineArgs:
    """*argv* for ``sglang.launch_server``, complete and translated; *values* are SGLang's own reading of it, by field name."""

    version: str
    argv: tuple[str, ...]
    notes: tuple[str, ...]
    values: dict[str, Any]

    @property
    def mode(self) -> str:
        """mixed, prefill or decode."""
        mode = self.values.get("disaggregation_mode") or "null"
        return mode if mode in ("prefill", "decode") else "mixed"

    @property
    def follower(self) -> bool:
        """A node of a multi-node engine that serves no HTTP."""
        return bool(self.values.get("node_rank"))


async def ask(python: str, argv: Sequence[str], own: dict[str, Any]) -> EngineArgs:
    """Raises AskError. Takes as long as importing SGLang (seconds), or next to nothing when the answer is remembered."""
    request = json.dumps({"argv": list(argv), "own": own}, sort_keys=True)
    path = _cache_path(await _fingerprint(python), request)
    answer = _remembered(path)
    if answer is None:
        log.info("asking the installed SGLang about its arguments (imports SGLang, at most %g s)", TIMEOUT)
        probe = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe.py")
        code, out = await _run(TIMEOUT, python, probe, input=request.encode())
        try:
            answer = json.loads(out)
        except ValueError:
            raise AskError(f"asking SGLang with {python} failed (exit status {code}); its output is above") from None
        if answer.get("cacheable"):
            _remember(path, answer)
    if "error" in answer:
        raise AskError(answer["error"])
    return EngineArgs(answer["version"], tuple(answer["argv"]), tuple(answer["notes"]), answer["values"])


async def _run(timeout: float, *command: str, input: bytes = b"") -> tuple[int, bytes]:
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True)
    except OSError as error:
        raise AskError(f"--python: {command[0]!r} cannot be run: {error.strerror}") from None
    try:
        out, _ = await asyncio.wait_for(process.communicate(input), timeout)
    except asyncio.TimeoutError:
        raise AskError(f"SGLang gave no answer about its arguments within {timeout:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return process.returncode or 0, out


async def _fingerprint(python: str) -> str:
    _, out = await _run(30.0, python, "-c", _FINGERPRINT)
    return out.decode("utf-8", "replace").strip()


def _cache_path(fingerprint: str, request: str) -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    own = "".join(sorted(str(os.stat(entry).st_mtime_ns) for entry in os.scandir(os.path.dirname(os.path.abspath(__file__)))
                         if entry.name.endswith(".py")))
    name = hashlib.sha256("\0".join((fingerprint, request, own)).encode()).hexdigest()[:32]
    return os.path.join(base, "infera", f"engine-args-{name}.json")


def _remembered(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as stream:
            answer = json.load(stream)
        return answer if isinstance(answer.get("argv"), list) and isinstance(answer.get("values"), dict) else None
    except (OSError, ValueError, AttributeError):
        return None


def _remember(path: str, answer: dict[str, Any]) -> None:
    """0600 and by rename; the arguments may hold an API key."""
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        temporary = f"{path}.{os.getpid()}"
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
            json.dump(answer, stream)
        os.replace(temporary, path)
