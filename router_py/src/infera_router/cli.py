"""The command `infera-router`."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

from infera_router.fleet.options import UsageError
from infera_router.settings import Settings, option_set, read

log = logging.getLogger("infera_router")


def main(argv: Sequence[str] | None = None) -> int:
    options = option_set()
    try:
        settings = read(argv)
    except UsageError as error:
        options.fail(str(error))
    from infera_router.observe import logs

    logs.setup(settings.log_format, settings.log_level)
    try:
        return run(settings)
    except UsageError as error:
        options.fail(str(error))


def run(settings: Settings) -> int:
    from infera_router import listen
    from infera_router.app import raise_file_limit

    limit = raise_file_limit()
    sockets = listen.bind(settings)
    log.info("listening on %s port %d, at most %d open files", settings.host, sockets[0].getsockname()[1], limit)
    serve(settings, sockets)
    return 0


def serve(settings: Settings, sockets: list) -> None:
    """Run one process until a signal ends it."""
    import gc

    import uvloop

    from infera_router import listen
    from infera_router.app import App

    context = listen.tls(settings)
    # Requests leave few cycles behind; collecting less often keeps pauses out of the streams.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)

    async def body() -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        app = App(settings, preparer(settings))
        loop.add_signal_handler(signal.SIGHUP, app.reload)
        await app.start(sockets, context)
        log.info("serving; %s", "ready" if app.ready else "not ready: no servable pool yet")
        await stop.wait()
        log.info("stopping")
        await app.drain()
        await app.stop()

    uvloop.install()
    asyncio.run(body())


def preparer(settings: Settings):
    """The constructor of what sizes and hashes prompts, or None where nothing needs it."""
    if not settings.router_tokenizer_path:
        return None
    try:
        from infera_router.kv.prepare import Preparer
    except ImportError:
        log.error("this build has no tokenizer; requests are routed on load")
        return None
    return Preparer


if __name__ == "__main__":
    sys.exit(main())
