"""The supervisor's life with a fake child and the real etcd."""

import asyncio
import signal
import time

import pytest
from engine.engine_rig import DECODE, PREFILL, alive
from fleet.etcd_server import eventually, run
from infera_router.fleet.etcd import EtcdClient, EtcdSettings

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("code, expected", [(3, 3), (0, 1)])
def test_the_supervisor_ends_with_the_child_and_never_with_0(engine, code, expected):
    async def main():
        one = engine()
        await one.status("active")
        one.say(die=code)
        assert await one.ended() == expected
        assert await one.record() is None

    run(main())


def test_a_child_that_dies_while_starting(engine):
    async def main():
        one = engine(exit=7)
        assert await one.ended() == 7
        assert await one.record() is None

    run(main())


def test_the_supervisor_is_killed(engine):
    async def main():
        one = engine()
        await one.status("active")
        child = one.pids[0]
        one.signal(signal.SIGKILL)
        await one.ended()
        assert await one.status(None, timeout=3 + 2) > 1, "the lease, not the supervisor, takes the record away"
        await eventually(lambda: not alive(child), timeout=3)

    run(main())


@pytest.mark.parametrize("args, name", [
    ((), "num_running_reqs"), ((), "num_queue_reqs"), (PREFILL, "num_prefill_bootstrap_queue_reqs"), (PREFILL, "num_prefill_inflight_queue_reqs"),
    (DECODE, "num_decode_prealloc_queue_reqs"), (DECODE, "num_decode_transfer_queue_reqs")])
def test_a_stop_waits_for_every_queue_of_every_rank(engine, args, name):
    async def main():
        one = engine(*args, held={name: [0, 1]})
        await one.status("active")
        one.signal()
        await one.status("draining")
        await asyncio.sleep(0.8)
        assert alive(one.pids[0]) and (await one.record())["status"] == "draining"
        one.say()
        assert await one.ended() == 0
        assert await one.record() is None and not alive(one.pids[0])
        assert "the engine is empty" in one.log

    run(main())


def test_a_drain_ends_at_its_timeout(engine):
    async def main():
        one = engine(own=("--drain-timeout", "1"), held={"num_running_reqs": [1, 0]})
        await one.status("active")
        one.signal()
        begin = time.monotonic()
        assert await one.ended() == 0
        assert 1 <= time.monotonic() - begin < 4 and "still holds requests" in one.log

    run(main())


def test_a_zero_drain_timeout_waits_for_nothing(engine):
    async def main():
        one = engine(own=("--drain-timeout", "0"), held={"num_running_reqs": [1, 0]})
        await one.status("active")
        one.signal()
        begin = time.monotonic()
        assert await one.ended() == 0 and time.monotonic() - begin < 1.5
        assert await one.record() is None

    run(main())


def test_a_missing_metric_is_told_loudly_and_not_waited_for(engine):
    async def main():
        one = engine(*DECODE, hide_metrics=["num_decode_transfer_queue_reqs"], held={"num_running_reqs": [1, 0]})
        await one.status("active")
        one.signal()
        assert await one.ended(5) == 0
        assert "DRAIN WITHOUT WAITING" in one.log and "num_decode_transfer_queue_reqs" in one.log

    run(main())


def test_without_metrics_the_load_report_is_asked(engine):
    """A decode that has served nothing yet has no gauges; its load report counts all the same."""

    async def main():
        load = {"num_running_reqs": 0, "num_waiting_reqs": 0, "disaggregation": {"decode_transfer_queue_reqs": 1}}
        one = engine(*DECODE, hide_metrics=["num_running_reqs"], loads=[load])
        await one.status("active")
        one.signal()
        await one.status("draining")
        await asyncio.sleep(1)
        assert alive(one.pids[0])
        one.say(hide_metrics=["num_running_reqs"], loads=[{"num_running_reqs": 0, "num_waiting_reqs": 0}])
        assert await one.ended(5) == 0 and "WITHOUT WAITING" not in one.log

    run(main())


def test_a_second_sigterm_hurries(engine):
    async def main():
        one = engine(held={"num_running_reqs": [1, 0]})
        await one.status("active")
        one.signal()
        await one.status("draining")
        one.signal()
        assert await one.ended(3) == 0

    run(main())


def test_a_child_that_ignores_sigterm_is_killed(engine):
    async def main():
        one = engine(own=("--drain-timeout", "0"), ignore_term=True, orphan=True)
        await one.status("active")
        one.signal()
        assert await one.ended(5) == 0
        assert not any(map(alive, one.pids)) and "killing its process group" in one.log

    run(main())


def test_a_port_that_another_holds_is_refused_before_the_start(engine):
    """Its /health would pass for ours, and its record would be overwritten."""

    async def main():
        first = engine()
        await first.status("active")
        generation = (await first.record())["generation"]
        first.process, kept = None, first.process
        second = first.start()
        try:
            assert await second.ended() == 1
            assert f"--port {first.port} on 127.0.0.1: Address already in use" in second.log
            assert (await first.record())["generation"] == generation
        finally:
            kept.kill()
            kept.wait()

    run(main())


def test_a_stop_while_the_model_loads(engine):
    async def main():
        one = engine(ready=False)
        await one.status("starting")
        one.signal()
        begin = time.monotonic()
        assert await one.ended() == 0 and time.monotonic() - begin < 2
        assert await one.record() is None

    run(main())


def test_not_ready_in_time(engine):
    async def main():
        one = engine(own=("--ready-timeout", "1"), ready=False)
        assert await one.ended() == 1
        assert await one.record() is None and "not ready within 1 s (--ready-timeout)" in one.log

    run(main())


def test_drain_and_back_by_signal_without_stopping(engine):
    async def main():
        one = engine()
        await one.status("active")
        one.signal(signal.SIGUSR1)
        await one.status("draining")
        await asyncio.sleep(1.5)
        assert (await one.record())["status"] == "draining" and alive(one.pids[0]), "no heartbeat makes it active again"
        one.signal(signal.SIGUSR2)
        await one.status("active")

    run(main())


def test_a_node_that_follows_is_not_registered(engine):
    async def main():
        one = engine("--node-rank", "1", own=("--kv-events", "on"))
        await eventually(lambda: "node rank 1" in one.log)
        await asyncio.sleep(0.3)
        assert await one.record() is None and "--kv-events-config" not in one.log
        one.signal()
        assert await one.ended() == 0

    run(main())


# ---- etcd's troubles

def test_an_etcd_that_is_away_at_the_start(own_etcd, engine):
    async def main():
        own_etcd.stop()
        one = engine(at=own_etcd)
        await eventually(lambda: "SGLang is healthy" in one.log)
        await asyncio.to_thread(own_etcd.start)
        assert await one.status("active", timeout=3) < 3

    run(main())


def test_an_outage_longer_than_the_lease(own_etcd, engine):
    """The record is back within two seconds of etcd, with the same generation."""

    async def main():
        one = engine(at=own_etcd)
        await one.status("active")
        generation = (await one.record())["generation"]
        own_etcd.freeze()
        await asyncio.sleep(4)
        own_etcd.thaw()
        await asyncio.sleep(2)
        record = await one.record()
        assert record is not None and (record["generation"], record["status"]) == (generation, "active")
        await asyncio.sleep(3.5)
        assert await one.record() is not None, "its heartbeat goes on"

    run(main())


def test_a_wiped_store_gets_the_record_again_and_a_draining_one_stays_draining(own_etcd, engine):
    async def main():
        one = engine(at=own_etcd)
        await one.status("active")
        one.signal(signal.SIGUSR1)
        await one.status("draining")
        await asyncio.to_thread(own_etcd.kill)
        own_etcd.wipe()
        await asyncio.to_thread(own_etcd.start)
        await one.status("draining", timeout=4)

    run(main())


def test_a_draining_that_another_hand_wrote_survives_heartbeats_and_re_registration(engine, etcd):
    async def main():
        one = engine()
        await one.status("active")
        client = EtcdClient(EtcdSettings((etcd.url,)))
        item = await client.get(f"{one.prefix}127.0.0.1:{one.port}")
        await client.put(item.key, item.value.replace(b'"active"', b'"draining"'), item.lease)
        await eventually(lambda: "set to draining from outside" in one.log)
        await client.revoke(item.lease)
        await one.status("draining")
        await client.close()

    run(main())


def test_a_record_deleted_by_hand_comes_back(engine, etcd):
    async def main():
        one = engine()
        await one.status("active")
        client = EtcdClient(EtcdSettings((etcd.url,)))
        await client.delete(f"{one.prefix}127.0.0.1:{one.port}")
        await one.status("active", timeout=3)
        await client.close()

    run(main())


def test_the_record_of_a_successor_is_left_alone(engine, etcd):
    """A supervisor that lost its address to another deletes nothing and overwrites nothing."""

    async def main():
        one = engine()
        await one.status("active")
        client = EtcdClient(EtcdSettings((etcd.url,)))
        item = await client.get(f"{one.prefix}127.0.0.1:{one.port}")
        other = item.value.replace((await one.record())["generation"].encode(), b"successor")
        await client.put(item.key, other)
        await eventually(lambda: "two engines must not share an address" in one.log)
        one.signal()
        assert await one.ended() == 0
        assert (await one.record())["generation"] == "successor"
        await client.close()

    run(main())
