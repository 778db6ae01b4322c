"""A prefill that holds requests and does not move is taken out, its requests are served elsewhere or answered, and it may come back."""

import asyncio
from dataclasses import replace

import pytest
from rig import DEMAND, Rig, run

pytestmark = pytest.mark.slow
SOON = {"prefill_stall_timeout": 0.6, "request_max_retries": 1}


async def until(condition, timeout=5.0):
    end = asyncio.get_running_loop().time() + timeout
    while not condition():
        assert asyncio.get_running_loop().time() < end, "did not happen in time"
        await asyncio.sleep(0.01)


def states(rig):
    from infera_router import gauges

    return {labels[0]: value for labels, value in gauges.collect(rig.app).numbers.get("infera_prefill_stalled", {}).items()}


@pytest.mark.parametrize("silent", [False, True])
def test_its_requests_go_to_the_other_prefill(silent, monkeypatch):
    from infera_router.pd import stalls

    monkeypatch.setattr(stalls, "ASK_TIMEOUT_S", 0.1)
    monkeypatch.setattr(stalls, "PROBE_TIMEOUT_S", 0.1)

    async def body():
        async with Rig(2, 1, settings=SOON, policy=replace(DEMAND, breaker_failure_threshold=0)) as rig:
            stuck, other = rig.engines["prefill"]
            stuck.frozen, stuck.silent = True, silent
            answers = await asyncio.gather(*(rig.ask(rig.chat(bool(n % 2))) for n in range(6)))
            assert [answer.status for answer in answers] == [200] * 6
            assert stuck.requests == 3
            assert states(rig) == {stuck.worker_id: 1, other.worker_id: 0}
            held = (await rig.ask(None, "/v1/workers", "GET")).json()["workers"]
            assert {w["worker_id"]: w["held_out"] for w in held if w["disagg_mode"] == "prefill"} == {stuck.worker_id: "stalled", other.worker_id: None}
            for _ in range(4):
                assert (await rig.ask(rig.chat())).status == 200
            await asyncio.sleep(0.5)
            assert stuck.requests == 3 and states(rig)[stuck.worker_id], "it is empty now, yet still out and gets nothing"
            stuck.frozen = stuck.silent = False
            await until(lambda: not states(rig)[stuck.worker_id])
            for _ in range(4):
                assert (await rig.ask(rig.chat())).status == 200
            assert stuck.requests > 3
            await rig.settle()

    run(body())


def test_the_only_prefill_is_answered_for():
    async def body():
        async with Rig(1, 1, settings=SOON) as rig:
            stuck = rig.engines["prefill"][0]
            stuck.frozen = True
            answer = await rig.ask(rig.chat())
            assert answer.status == 502 and "prefill" in answer.json()["error"]["message"]
            answer = await asyncio.wait_for(rig.ask(rig.chat()), 0.5)
            assert answer.status == 503 and "progress" in answer.json()["error"]["message"] and answer.headers["retry-after"]
            rig.register(generation="started anew")
            stuck.frozen = False
            await until(lambda: not states(rig)[stuck.worker_id])
            assert (await rig.ask(rig.chat())).status == 200
            await rig.settle()

    run(body())


@pytest.mark.parametrize("why", ["it computes", "legs end", "its decodes are full", "it holds nothing"])
def test_what_is_no_stall(why):
    async def body():
        async with Rig(1, 1, settings=SOON) as rig:
            prefill, decode = rig.engines["prefill"][0], rig.engines["decode"][0]
            task = asyncio.ensure_future(rig.ask(rig.chat(fault={"prefill": "hang"})))
            await until(lambda: prefill.requests)
            end = asyncio.get_running_loop().time() + 2
            if why == "it computes":
                while asyncio.get_running_loop().time() < end:
                    prefill.queues["prefill_inflight_queue_reqs"] = prefill.queues.get("prefill_inflight_queue_reqs", 0) + 1
                    await asyncio.sleep(0.05)
            elif why == "legs end":
                while asyncio.get_running_loop().time() < end:
                    assert (await rig.ask(rig.chat())).status == 200
                    await asyncio.sleep(0.05)
            elif why == "its decodes are full":
                prefill.frozen = True
                busy = asyncio.ensure_future(rig.ask(rig.chat(True, {"prefill": "ok", "decode": "slow:2500"})))
                decode.queues = {"decode_prealloc_queue_reqs": 1}
                real = decode.loads

                def loads():
                    value = real()
                    value["loads"][0]["num_running_reqs"] = 3
                    return value

                decode.loads = loads
                await asyncio.sleep(2)
                busy.cancel()
            else:
                prefill.loads = lambda: {"loads": [{"dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0, "disaggregation": {}}]}
                await asyncio.sleep(2)
            assert states(rig) == {prefill.worker_id: 0} and not task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(body())
