"""etcd away for a minute under load, and back with a compacted history."""

import asyncio
import os

import pytest
from process_rig import Stack
from rig import run

pytestmark = pytest.mark.slow
OUTAGE_S = float(os.environ.get("INFERA_ETCD_OUTAGE_S", "60"))


def test_an_outage_of_a_minute_fails_no_request_and_the_view_is_right_within_two_seconds():
    async def body():
        async with Stack(1, 2, flags=("--decode-input-demand", "on")) as stack:
            gone, kept = stack.engines["decode"]
            loop = asyncio.get_running_loop()
            statuses, stop = [], asyncio.Event()

            async def load():
                while not stop.is_set():
                    answer = await stack.ask(stack.chat(bool(len(statuses) % 2)))
                    statuses.append((answer.status, answer.complete))
                    await asyncio.sleep(0.02)

            async def workers():
                return {worker["worker_id"] for worker in (await stack.get("/v1/workers")).json()["workers"]}

            everybody = {engine.worker_id for engine in stack.all()}
            crowd = [asyncio.ensure_future(load()) for _ in range(4)]
            await asyncio.sleep(0.5)
            await asyncio.to_thread(stack.etcd.kill)
            end = loop.time() + OUTAGE_S
            while loop.time() < end:
                assert await workers() == everybody
                assert (await stack.get("/ready")).status == 200
                await asyncio.sleep(1)
            await asyncio.to_thread(stack.etcd.start)
            # while the router was away a worker left, another came, and the history in between is gone
            await stack.remove(gone)
            late = type(gone)("decode", stack.rooms)
            stack.engines["decode"].append(await late.start())
            await stack.put(late)
            await asyncio.to_thread(stack.etcd.compact)
            began = loop.time()
            want = everybody - {gone.worker_id} | {late.worker_id}
            while await workers() != want:
                assert loop.time() - began < 2, (await workers(), want, stack.router.text()[-2000:])
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)
            stop.set()
            await asyncio.gather(*crowd)
            assert len(statuses) > OUTAGE_S and set(statuses) == {(200, True)}
            assert late.requests and kept.requests

    run(body())
