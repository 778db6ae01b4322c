"""The command `infera-router`."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from typing import Any

from infera_router.fleet.options import UsageError
from infera_router.settings import Settings, option_set, read

log = logging.getLogger("infera_router")


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    options = option_set()
    try:
        settings = read(argv)
    except UsageError as error:
        options.fail(str(error))
    from infera_router.observe import logs

    logs.setup(settings.log_format, settings.log_level)
    try:
        return run(settings, argv)
    except UsageError as error:
        options.fail(str(error))


def run(settings: Settings, argv: Sequence[str] = ()) -> int:
    """Serve until a signal: as one process, as the parent of several, or as one of them."""
    from infera_router.process import handover, listen
    from infera_router.process.siblings import Place

    limit = listen.raise_file_limit()
    context = listen.tls(settings)
    place = Place.from_environment()
    if place is not None:
        serve(settings, place.listener, context, None, place)
        return 0
    if settings.api_key_file:
        check_keys(settings.api_key_file)
    if preparer(settings) is not None:
        from infera_router.kv.tokenizer import check_folder

        check_folder(settings.router_tokenizer_path)
    taken = handover.take(settings)
    listener = taken.listener if taken is not None else listen.bind(settings)
    log.info("listening on %s port %d, at most %d open files%s", settings.host, listener.getsockname()[1], limit,
             "; a running router hands its socket over" if taken is not None else "")
    if settings.workers == 1:
        serve(settings, listener, context, taken, None)
        return 0
    from infera_router.process.parent import Parent

    asyncio.run(Parent(settings, listener, argv).run(taken))
    return 0


def check_keys(path: str) -> None:
    from infera_router.http.keys import ApiKeys, KeyFileError

    try:
        ApiKeys(path)
    except KeyFileError as error:
        raise UsageError(str(error)) from None


def serve(settings: Settings, listener: Any, context: Any, taken: Any, place: Any) -> None:
    """Run one process until a signal ends it."""
    import gc

    import uvloop

    from infera_router import heap
    from infera_router.app import App
    from infera_router.process import handover

    heap.keep()
    ledger = affinity = None
    if place is not None:
        from time import monotonic

        from infera_router.policy.shared import attach

        ledger, affinity = attach(place.region, place.index, settings.policy, monotonic)
    # Requests leave few cycles behind; collecting less often keeps pauses out of the streams.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)

    async def body() -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        app = App(settings, preparer(settings), ledger, affinity, place)
        loop.add_signal_handler(signal.SIGHUP, app.reload)
        loop.add_signal_handler(signal.SIGUSR1, app.retire)
        app.on_orphaned = stop.set
        await app.start()
        if taken is not None and taken.serving:
            await until_ready(app, stop)
        await app.listen(listener, context)
        if taken is not None:
            await loop.run_in_executor(None, taken.commit)
        offer = handover.Offer(settings, listener, lambda: app.ready, app.retire) if place is None else None
        if offer is not None:
            await offer.start()
        log.info("serving; %s", "ready" if app.ready else "not ready: no servable pool yet")
        await stop.wait()
        log.info("stopping")
        if offer is not None:
            offer.close()
        await app.drain()
        await app.stop()

    uvloop.install()
    asyncio.run(body())


async def until_ready(app: Any, stop: asyncio.Event) -> None:
    """Before a serving router is relieved its successor has to see the fleet; else the old one goes on and this one ends."""
    from infera_router.process.handover import SERVE_S

    for _ in range(int(SERVE_S / 0.05)):
        if app.ready or stop.is_set():
            return
        await asyncio.sleep(0.05)
    raise UsageError(f"--handover: the running router serves and this one found no servable pool within {SERVE_S:g} s; the old one goes on "
                     "(--handover off takes no socket over)")


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
