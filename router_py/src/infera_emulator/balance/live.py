"""Commands of the real-time emulator: `balance serve` (engines that register in etcd) and `balance replay` (the trace's lanes)."""
from __future__ import annotations

import argparse
import asyncio
import signal
import uuid
from typing import Any, Callable

from infera_router.fleet.etcd import EtcdClient, EtcdError, EtcdSettings
from infera_router.fleet.record import DEFAULT_PREFIX, PROTOCOL, WorkerRecord, dump

from . import figures, parameters
from .deployment import PAGE, Deployment
from .prefix_cache import PrefixCache, Publisher
from .replay import Replay, wait_ready

TTL_S = 10


def add_common(p: argparse.ArgumentParser) -> None:
    p.add_argument("--parameters", required=True, metavar="FILE", help="the run's parameters (JSON)")
    p.add_argument("--case", required=True, metavar="NAME", help="a case of the file")
    p.add_argument("--model", default="emulated", help="served model name (default: %(default)s)")
    p.add_argument("--speed", type=float, default=1.0, metavar="S", help="run S times faster than the parameters say (default: 1)")
    p.add_argument("--scale", type=float, default=1.0, metavar="F", help="prompt tokens on the wire per token of the trace (default: 1)")


def serve_parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="infera-emulator balance serve", description="Emulated prefills and one decode in real time, with SGLang's HTTP "
                                "and PD surface for chats and text completions. They register in etcd. No model runs.")
    add_common(p)
    p.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    p.add_argument("--port", type=int, default=31000, metavar="P", help="engine n listens on P + 400n, prefills first (default: %(default)s)")
    p.add_argument("--etcd-endpoint", action="append", required=True, metavar="URL", help="where to register (repeatable)")
    p.add_argument("--etcd-prefix", default=DEFAULT_PREFIX, help="key prefix (default: %(default)s)")
    p.add_argument("--tokenizer", metavar="DIR", help="the model's tokenizer: prompts are counted and cached by page, and the prefills publish KV events")
    p.add_argument("--cache-tokens", type=int, default=4_000_000, metavar="N", help="prefix cache of a prefill, in tokens on the wire (default: %(default)s)")
    p.add_argument("--stream-interval", type=int, default=1, metavar="N", help="tokens between two frames of a stream (default: %(default)s)")
    return p


def replay_parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="infera-emulator balance replay", description="Send a trace's lanes through a router to `balance serve`, print its row.")
    add_common(p)
    p.add_argument("--router", required=True, metavar="URL")
    p.add_argument("--decode", required=True, metavar="URL", help="the emulated decode, for its record of steps")
    p.add_argument("--weight", type=float, required=True, metavar="W", help="the router's weight / scale; only printed")
    p.add_argument("--seed", type=int, default=1, metavar="N")
    return p


def token_ids(folder: str) -> Callable[[str, dict], Any]:
    from infera_router.kv.renderer import Renderer
    from infera_router.kv.tokenizer import Tokenizer

    renderer = Renderer(Tokenizer(folder))

    def ids(path: str, body: dict) -> Any:
        return renderer.prompts(body, path)[0]

    return ids


async def serve(args: argparse.Namespace) -> int:
    given = parameters.load(args.parameters)
    case = given.case(args.case)
    ports = [args.port + 400 * n for n in range(case.prefills + 1)]
    caches = None
    if args.tokenizer:
        caches = [PrefixCache(args.cache_tokens // PAGE, PAGE, Publisher(args.host, port + 310, port + 340, "kv-events")) for port in ports[:-1]]
    made = Deployment(given, case, args.model, args.speed, args.scale, token_ids(args.tokenizer) if args.tokenizer else None, caches,
                      args.stream_interval)
    await made.start(args.host, ports)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    etcd = EtcdClient(EtcdSettings(endpoints=tuple(args.etcd_endpoint)))
    try:
        lease = await etcd.grant(TTL_S)
        for record in records(args, case, ports):
            await etcd.put(args.etcd_prefix + record.worker_id, dump(record), lease)
        print(f"emulated: {case.prefills} prefill(s) and a decode with {case.ranks} ranks on {args.host}, ports {ports}", flush=True)
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), TTL_S / 3)
            except asyncio.TimeoutError:
                await etcd.keepalive(lease)
        await etcd.revoke(lease)
    except EtcdError as error:
        raise SystemExit(f"infera-emulator balance serve: --etcd-endpoint: {error}") from None
    finally:
        await etcd.close()
        await made.stop()
    return 0


def records(args: argparse.Namespace, case: parameters.Case, ports: list[int]) -> list[WorkerRecord]:
    out = []
    for index, port in enumerate(ports):
        prefill = index < case.prefills
        events = prefill and bool(args.tokenizer)
        out.append(WorkerRecord(
            f"{args.host}:{port}", f"http://{args.host}:{port}", args.model, disagg_mode="prefill" if prefill else "decode", protocol=PROTOCOL,
            bootstrap_host=args.host if prefill else None, bootstrap_port=port + 300 if prefill else None,
            dp_size=None if prefill or case.ranks == 1 else case.ranks, kv_events_endpoint=f"tcp://{args.host}:{port + 310}" if events else None,
            kv_replay_endpoint=f"tcp://{args.host}:{port + 340}" if events else None, kv_topic="kv-events" if events else None,
            kv_block_size=PAGE, page_size=PAGE, generation=uuid.uuid4().hex))
    return out


async def replay(args: argparse.Namespace) -> int:
    given = parameters.load(args.parameters)
    run = Replay(given, given.case(args.case), args.weight, args.seed, args.router, args.decode, args.model, args.speed, args.scale)
    await wait_ready(args.router, 30.0)
    result = await run.run()
    print(figures.table([result]))
    print(f"steps ended {1000 * run.late:.0f} ms late on average (time of the trace); errors: {len(run.errors)}")
    for error in run.errors[:10]:
        print(error)
    return 1 if run.errors else 0


def main(argv: list[str]) -> int:
    command, rest = argv[0], argv[1:]
    args = (serve_parser() if command == "serve" else replay_parser()).parse_args(rest)
    import uvloop

    return uvloop.run(serve(args) if command == "serve" else replay(args))
