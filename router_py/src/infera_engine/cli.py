"""The command ``infera-engine``."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from collections.abc import Sequence

from infera_router.fleet.options import OptionSet, UsageError

from infera_engine import settings as flags
from infera_engine.ask import AskError, EngineArgs, ask
from infera_engine.settings import EngineSettings
from infera_engine.supervisor import Supervisor

log = logging.getLogger("infera_engine")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        data = {"time": record.created, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            data["exception"] = self.formatException(record.exc_info)
        return json.dumps(data)


def main(argv: Sequence[str] | None = None) -> None:
    """Exit status: 2 for a wrong command line, the child's when it ended by itself (never 0), 0 after an orderly stop, else 1."""
    options = flags.option_set(_version())
    try:
        settings = flags.read(options, list(sys.argv[1:] if argv is None else argv))
    except UsageError as error:
        options.fail(str(error))
    _set_up_log(settings)
    sys.exit(asyncio.run(_run(settings, options)))


async def _run(settings: EngineSettings, options: OptionSet) -> int:
    asking = asyncio.ensure_future(ask(settings.python, settings.argv, settings.own()))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asking.cancel)
    try:
        args = await asking
        _check_transport(args)
        host = flags.resolve_host(settings, args.values["host"], args.mode)
    except asyncio.CancelledError:
        log.info("stopped before SGLang was started")
        return 0
    except (AskError, UsageError) as error:
        options.fail(str(error))
    for note in args.notes:
        log.info("%s", note)
    if settings.check:
        print("\n".join([settings.python, "-m", "sglang.launch_server", *args.argv]))
        return 0
    return await Supervisor(settings, args, host).run()


def _check_transport(args: EngineArgs) -> None:
    given = any(token.split("=")[0] == "--disaggregation-transfer-backend" for token in args.argv)
    if args.mode != "mixed" and not given:
        raise UsageError(f"--disaggregation-transfer-backend: a {args.mode} needs it given after --, for example mooncake (RDMA) "
                         "or mooncake_tcp; SGLang's default is not taken silently")


def _set_up_log(settings: EngineSettings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if settings.log_format == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        formatter = logging.Formatter("%(asctime)s infera-engine %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("infera-router")
    except PackageNotFoundError:
        return "0 (not installed)"


if __name__ == "__main__":
    main()
