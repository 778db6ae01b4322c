"""The watch against the real etcd: what it must never lose, and whom it must not drop."""

import asyncio
import contextlib
import random
import time

import pytest
from fleet.etcd_server import eventually, free_ports, run
from fleet.proxy import Proxy
from infera_router.fleet.etcd import EtcdClient, EtcdSettings
from infera_router.fleet.holdover import Holdover
from infera_router.fleet.pool import Pool
from infera_router.fleet.record import WorkerRecord, dump
from infera_router.fleet.watch import FleetWatch

PREFIX = "/infera/workers/"


def record(port=1, **changes):
    return WorkerRecord(**{"worker_id": f"127.0.0.1:{port}", "url": f"http://127.0.0.1:{port}", "model_name": "m", **changes})


def test_the_log_says_who_came_went_and_which_role_has_nobody_left(caplog):
    caplog.set_level("INFO", "infera_router.fleet.pool")
    pool = Pool()

    def told(**workers):
        caplog.clear()
        pool.apply({worker.worker_id: worker for worker in workers.values()})
        return sorted(f"{line.levelname} {line.getMessage()}" for line in caplog.records)

    decode = record(1, disagg_mode="decode", generation="a")
    assert told(d=decode) == ["INFO worker 127.0.0.1:1 (decode) is known: active"]
    assert told(d=record(1, disagg_mode="decode", generation="a", status="draining")) == [
        "INFO worker 127.0.0.1:1 (decode): draining, before active", "WARNING no active worker of role decode is left"]
    assert told(d=record(1, disagg_mode="decode", generation="b")) == ["INFO worker 127.0.0.1:1 (decode) was started anew: active"]
    assert told(d=record(1, disagg_mode="decode", generation="b", tp_size=2)) == []
    assert told(d=decode, p=record(2, disagg_mode="prefill"))[0] == "INFO worker 127.0.0.1:1 (decode) was started anew: active"
    assert told(p=record(2, disagg_mode="prefill")) == ["INFO worker 127.0.0.1:1 (decode) has left", "WARNING no active worker of role decode is left"]


class Fleet:
    """A watch through *urls*, and a client beside it that writes straight into the store."""

    def __init__(self, etcd, *urls, check_every=0.3, call_timeout=0.5, settle=None, prefix=PREFIX):
        self.etcd = etcd
        self.pool = Pool()
        self.client = EtcdClient(EtcdSettings(urls or (etcd.url,)), call_timeout=call_timeout)
        self.direct = EtcdClient(EtcdSettings((etcd.url,)))
        self.watch = FleetWatch(self.client, self.pool, prefix, check_every=check_every)
        if settle is not None:
            self.watch._holdover = Holdover(self.client, self.watch._publish, settle=settle, outage_after=0.2)
        self.prefix = prefix

    @property
    def workers(self):
        return set(self.pool.snapshot.workers)

    async def put(self, rec, lease=0):
        await self.direct.put(self.prefix + rec.worker_id, dump(rec), lease)

    async def delete(self, rec):
        await self.direct.delete(self.prefix + rec.worker_id)

    async def __aenter__(self):
        self.task = asyncio.ensure_future(self.watch.run())
        await asyncio.wait_for(self.watch.synced.wait(), 10)
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        await self.client.close()
        await self.direct.close()

    async def until(self, workers, timeout=2.0):
        return await eventually(lambda: self.workers == {rec.worker_id for rec in workers}, timeout)


def test_puts_changes_and_deletes_arrive(shared_etcd):
    async def main():
        async with Fleet(shared_etcd, prefix="/1/") as fleet:
            seen = []
            fleet.pool.subscribe(lambda old, new: seen.append((old.version, new.version, set(new.workers))))
            await fleet.put(record())
            await fleet.until([record()])
            await fleet.put(record(status="draining"))
            await eventually(lambda: not fleet.pool.snapshot.workers["127.0.0.1:1"].routable)
            await fleet.delete(record())
            await fleet.until([])
            assert seen == [(0, 1, {"127.0.0.1:1"}), (1, 2, {"127.0.0.1:1"}), (2, 3, set())]

    run(main())


def test_a_bad_record_is_skipped_and_a_good_one_takes_its_place(shared_etcd, caplog):
    async def main():
        async with Fleet(shared_etcd, prefix="/2/") as fleet:
            await fleet.put(record(1))
            await fleet.direct.put("/2/127.0.0.1:2", b"{}")
            await eventually(lambda: fleet.watch.state.rejected_keys)
            assert fleet.workers == {"127.0.0.1:1"} and "/2/127.0.0.1:2" in caplog.text
            await fleet.put(record(2))
            await fleet.until([record(1), record(2)])
            # A known worker whose record turns bad is not routed to by what it once said.
            await fleet.direct.put("/2/127.0.0.1:1", b"{}")
            await fleet.until([record(2)])

    run(main())


def test_an_answer_that_nobody_foresaw_does_not_end_the_watch(shared_etcd, monkeypatch, caplog):
    """As from something that is no etcd: a list where an object belongs."""

    async def main():
        async with Fleet(shared_etcd, prefix="/odd/") as fleet:
            newest = fleet.watch._newest

            async def odd():
                monkeypatch.setattr(fleet.watch, "_newest", newest)
                return [].get

            monkeypatch.setattr(fleet.watch, "_newest", odd)
            await eventually(lambda: "etcd watch failed" in caplog.text)
            assert not fleet.watch.state.connected and "no attribute" in fleet.watch.state.last_error
            await fleet.put(record())
            await fleet.until([record()], timeout=3)

    run(main())


@pytest.mark.slow
def test_an_expired_lease_takes_the_worker_away(shared_etcd):
    async def main():
        async with Fleet(shared_etcd, prefix="/3/") as fleet:
            lease = await fleet.direct.grant(2)
            await fleet.put(record(), lease)
            await fleet.until([record()])
            await fleet.until([], timeout=2 + 2)

    run(main())


@pytest.mark.parametrize("compact", [False, True])
def test_a_delete_while_cut_off_is_not_lost(shared_etcd, compact):
    async def main():
        async with Proxy(shared_etcd.port) as proxy, Fleet(shared_etcd, proxy.url, prefix=f"/4{compact}/") as fleet:
            await fleet.put(record(1))
            await fleet.put(record(2))
            await fleet.until([record(1), record(2)])
            await proxy.cut()
            await fleet.delete(record(1))
            await fleet.put(record(3))
            if compact:
                await asyncio.to_thread(shared_etcd.compact)
            await asyncio.sleep(0.4)
            assert fleet.workers == {"127.0.0.1:1", "127.0.0.1:2"}, "while etcd is away the known workers stay"
            await proxy.open()
            assert await fleet.until([record(2), record(3)]) < 2

    run(main())


@pytest.mark.slow
def test_a_peer_that_fell_silent_is_noticed(shared_etcd):
    """The watch's connection stays open and says nothing: the check through the other endpoint finds the store ahead."""

    async def main():
        async with Proxy(shared_etcd.port) as proxy, Fleet(shared_etcd, proxy.url, shared_etcd.url, prefix="/5/") as fleet:
            await fleet.put(record(1))
            await fleet.until([record(1)])
            proxy.silence()
            await fleet.delete(record(1))
            await fleet.put(record(2))
            assert await fleet.until([record(2)], timeout=6) < 6
            assert fleet.watch.state.stalls == 1

    run(main())


def test_a_check_that_agrees_disturbs_nothing(shared_etcd):
    async def main():
        async with Fleet(shared_etcd, prefix="/6/", check_every=0.05) as fleet:
            for port in range(1, 30):
                await fleet.put(record(port))
                if port % 3 == 0:
                    await fleet.delete(record(port))
            await asyncio.sleep(0.5)
            assert (fleet.watch.state.stalls, fleet.watch.state.resyncs) == (0, 1)

    run(main())


# ---- etcd itself goes away

@pytest.mark.slow
def test_workers_stay_while_etcd_is_stopped_and_the_view_is_right_after(etcd):
    async def main():
        async with Fleet(etcd) as fleet:
            await fleet.put(record(1))
            await fleet.until([record(1)])
            await asyncio.to_thread(etcd.stop)
            await asyncio.sleep(1)
            assert fleet.workers == {"127.0.0.1:1"} and not fleet.watch.state.connected
            await asyncio.to_thread(etcd.start)
            await fleet.delete(record(1))
            await fleet.put(record(2))
            assert await fleet.until([record(2)]) < 2

    run(main())


@pytest.mark.slow
def test_sixty_seconds_without_etcd(etcd):
    async def main():
        async with Fleet(etcd, check_every=5, call_timeout=4) as fleet:
            lease = await fleet.direct.grant(30)
            await fleet.put(record(1), lease)
            await fleet.until([record(1)])
            losses = []
            fleet.pool.subscribe(lambda _, new: losses.append(set(new.workers)))
            await asyncio.to_thread(etcd.stop)
            await asyncio.sleep(60)
            await asyncio.to_thread(etcd.start)
            await asyncio.to_thread(etcd.compact)
            await fleet.direct.keepalive(lease)
            await fleet.put(record(2), lease)
            assert await fleet.until([record(1), record(2)]) < 2
            assert losses == [{"127.0.0.1:1", "127.0.0.1:2"}], "no snapshot in between lacked the worker"

    run(main(), timeout=110)


@contextlib.asynccontextmanager
async def healthy_worker():
    """A port that answers /health with *answer.status*."""

    class Answer:
        status = 200
        asked = 0

    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            Answer.asked += head.startswith(b"GET /health ")
            writer.write(f"HTTP/1.1 {Answer.status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    Answer.port = server.sockets[0].getsockname()[1]
    Answer.server = server
    try:
        yield Answer
    finally:
        server.close()


def test_a_wiped_store_does_not_take_healthy_workers(etcd):
    async def main():
        async with healthy_worker() as alive, Fleet(etcd, settle=1.5) as fleet:
            dead, starting = record(free_ports(1)[0]), record(alive.port + 1 if alive.port < 65535 else 1, status="starting")
            for rec in (record(alive.port), dead, starting):
                await fleet.put(rec)
            await fleet.until([record(alive.port), dead, starting])
            await asyncio.to_thread(etcd.kill)
            etcd.wipe()
            await asyncio.to_thread(etcd.start)
            await fleet.until([record(alive.port)])
            await eventually(lambda: alive.asked > 0)
            # Its supervisor puts it back: the new record counts, and nothing is held any longer.
            await fleet.put(record(alive.port, generation="new"))
            await eventually(lambda: fleet.pool.snapshot.workers[record(alive.port).worker_id].generation == "new")
            await asyncio.sleep(1.7)
            assert fleet.workers == {record(alive.port).worker_id}

    run(main())


def test_a_held_worker_is_dropped_when_its_supervisor_never_returns(etcd):
    async def main():
        async with healthy_worker() as alive, Fleet(etcd, settle=1) as fleet:
            await fleet.put(record(alive.port))
            await fleet.until([record(alive.port)])
            await asyncio.to_thread(etcd.kill)
            etcd.wipe()
            await asyncio.to_thread(etcd.start)
            begin = time.monotonic()
            await fleet.until([], timeout=6)
            assert time.monotonic() - begin > 0.5

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["expired", "deleted"])
def test_a_freeze_longer_than_the_lease(etcd, how):
    """etcd stands still, comes back and ends the leases at once: a healthy worker stays, one deleted on purpose goes."""

    async def main():
        async with healthy_worker() as alive, Fleet(etcd, settle=5) as fleet:
            lease = await fleet.direct.grant(1 if how == "expired" else 60)
            await fleet.put(record(alive.port), lease)
            await fleet.until([record(alive.port)])
            etcd.freeze()
            await asyncio.sleep(2.5 if how == "expired" else 0.8)
            etcd.thaw()
            if how == "deleted":
                await fleet.delete(record(alive.port))
                await fleet.until([], timeout=3)
                assert alive.asked == 0
                return
            await eventually(lambda: alive.asked > 0, timeout=5)
            assert fleet.workers == {record(alive.port).worker_id}
            assert (await fleet.direct.range(PREFIX)).count == 0
            alive.server.close()
            await fleet.until([], timeout=4)

    run(main())


# ---- anything may happen in any order

@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_the_view_becomes_the_store(shared_etcd, seed):
    rng = random.Random(seed)

    async def main():
        prefix = f"/p{seed}/"
        async with Proxy(shared_etcd.port) as proxy, Fleet(shared_etcd, proxy.url, prefix=prefix, check_every=0.2) as fleet:
            connected = True
            for _ in range(120):
                action = rng.choices(("put", "delete", "cut", "compact", "pause", "silence"), (40, 30, 6, 3, 10, 3))[0]
                rec = record(rng.randrange(1, 8), generation=str(rng.random()))
                if action == "put":
                    await fleet.put(rec, await fleet.direct.grant(60) if rng.random() < 0.3 else 0)
                elif action == "delete":
                    await fleet.delete(rec)
                elif action == "compact":
                    await asyncio.to_thread(shared_etcd.compact)
                elif action == "pause":
                    await asyncio.sleep(rng.random() * 0.05)
                elif action == "silence":
                    proxy.silence()
                elif connected:
                    await proxy.cut()
                    connected = False
                if not connected and rng.random() < 0.3:
                    await proxy.open()
                    connected = True
            proxy.speak()
            if not connected:
                await proxy.open()
            store = {item.key.removeprefix(prefix): item.value for item in (await fleet.direct.range(prefix)).items}
            await eventually(lambda: {key: dump(rec) for key, rec in fleet.pool.snapshot.workers.items()} == store, timeout=8)

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_restarts_and_wipes_of_the_store_too(etcd, seed):
    rng = random.Random(100 + seed)

    async def main():
        async with Fleet(etcd, check_every=0.2, settle=0.5) as fleet:
            for _ in range(12):
                for _ in range(rng.randrange(6)):
                    rec = record(rng.randrange(1, 8), generation=str(rng.random()))
                    await (fleet.put(rec) if rng.random() < 0.6 else fleet.delete(rec))
                action = rng.choice(("restart", "kill", "wipe", "freeze"))
                if action == "freeze":
                    etcd.freeze()
                    await asyncio.sleep(0.5)
                    etcd.thaw()
                    continue
                await asyncio.to_thread(etcd.stop if action == "restart" else etcd.kill)
                if action == "wipe":
                    etcd.wipe()
                await asyncio.to_thread(etcd.start)
            store = {item.key.removeprefix(PREFIX): item.value for item in (await fleet.direct.range(PREFIX)).items}
            await eventually(lambda: {key: dump(rec) for key, rec in fleet.pool.snapshot.workers.items()} == store, timeout=8)

    run(main(), timeout=110)
