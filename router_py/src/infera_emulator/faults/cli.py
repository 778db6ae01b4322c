"""`infera-emulator faults`: fault engines in one process, registered in etcd if asked to."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import Sequence

from infera_emulator.faults.engine import KINDS, FaultEngine, Rooms


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="infera-emulator faults", formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description="Engines that compute nothing and fail as a request's `fault` member says.",
                                     epilog="faults:" + KINDS)
    parser.add_argument("workers", nargs="+", metavar="ROLE:PORT[:RANKS]", help="mixed, prefill or decode; port 0 takes a free one")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--model", default="fake")
    parser.add_argument("--step", type=float, default=0.0, help="seconds between chunks of a stream")
    parser.add_argument("--idle-close", type=float, help="close a connection that was idle for so many seconds; 0: after each answer")
    parser.add_argument("--etcd-endpoint", metavar="URL", help="put the worker records there, without a lease")
    parser.add_argument("--etcd-prefix", default="/infera/workers/")
    args = parser.parse_args(argv)
    asyncio.run(_run(args))
    return 0


async def _run(args: argparse.Namespace) -> None:
    rooms = Rooms()
    engines = []
    for text in args.workers:
        role, port, ranks = (text.split(":") + ["0", "1"][text.count(":"):])[:3]
        engines.append(await FaultEngine(role, rooms, int(ranks), args.step, args.idle_close).start(args.host, int(port)))
    records = [engine.record(args.model) for engine in engines]
    if args.etcd_endpoint:
        from infera_router.fleet.etcd import EtcdClient, EtcdSettings

        client = EtcdClient(EtcdSettings((args.etcd_endpoint,)))
        for record in records:
            await client.put(args.etcd_prefix + record["worker_id"], json.dumps(record).encode())
        await client.close()
    for record in records:
        print(json.dumps(record), flush=True)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
