"""A client that leaves frees its booking at once and both engines soon, before the first byte as well as after."""

import asyncio

import pytest
from infera_emulator.faults import Fault
from infera_router.pd.orphans import RIPE_S
from rig import Rig, run


async def until(condition, timeout=3.0):
    end = asyncio.get_running_loop().time() + timeout
    while not condition():
        assert asyncio.get_running_loop().time() < end, "did not happen in time"
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", [{"prefill": "hang"}, {"decode": "hang"}, {"decode": "slow:5000"}])
def test_leaving_before_the_first_byte_stops_both_engines(fault, stream, reset):
    async def body():
        async with Rig() as rig:
            client = await rig.client()
            client.send(body=rig.chat(stream, fault))
            await until(lambda: rig.engines["prefill"][0].requests and rig.engines["decode"][0].requests)
            assert rig.app.core.policy.demand()[0].requests == 1
            client.close(reset)
            await until(lambda: rig.app.core.policy.demand()[0].requests == 0, 0.5)
            await until(lambda: not any(engine.running for engine in rig.all()), 1)
            rid = rig.engines["decode"][0].seen[0][1]["rid"]
            await until(lambda: rid in rig.engines["decode"][0].aborted)
            if "slow" not in str(fault):
                await until(lambda: rid in rig.engines["prefill"][0].aborted)
            await rig.settle()
            assert rig.metric("infera_request_cancellations_total", "waiting") == 1

    run(body())


def test_leaving_mid_stream_stops_the_decode():
    async def body():
        async with Rig(engine={"step": 0.02}) as rig:
            client = await rig.client()
            client.send(body=rig.chat(True, max_tokens=1000))
            await client.head()
            await client.reader.readexactly(50)
            client.close()
            await until(lambda: not any(engine.running for engine in rig.all()), 1)
            await until(lambda: rig.engines["decode"][0].aborts)
            await rig.settle()
            assert rig.metric("infera_request_cancellations_total", "stream") == 1

    run(body())


def test_routes_without_a_rid_are_stopped_by_closing():
    async def body():
        async with Rig() as rig:
            client = await rig.client()
            client.send("/v1/responses", {"model": "fake", "input": "x", "fault": {"prefill": "hang"}})
            await until(lambda: rig.engines["prefill"][0].requests and rig.engines["decode"][0].requests)
            client.close()
            await until(lambda: not any(engine.running for engine in rig.all()), 1)
            assert not any(engine.aborts for engine in rig.all())
            await rig.settle()

    run(body())


@pytest.mark.parametrize(("mode", "pp", "aborted"), [
    ("auto", 1, True), ("auto", 4, False), ("always", 4, True), ("never", 1, False)])
def test_the_prefill_abort_policy(mode, pp, aborted):
    async def body():
        async with Rig(settings={"prefill_abort": mode}, records={"prefill": {"pp_size": pp}}) as rig:
            prefill, decode = rig.engines["prefill"][0], rig.engines["decode"][0]
            client = await rig.client()
            client.send(body=rig.chat(True, {"prefill": "slow:300", "decode": "slow:300"}))
            await until(lambda: prefill.requests and decode.requests)
            client.close()
            await until(lambda: not rig.app.core.policy.open_leases, 0.5)
            await asyncio.sleep(0.1)
            if aborted:
                assert not prefill.running and not decode.running
                assert prefill.abandoned == 1
            else:
                assert prefill.running and decode.running
                assert rig.app.core.orphaned == 1
            await rig.settle()
            assert prefill.abandoned == (1 if aborted else 0)
            await until(lambda: decode.aborts == 1 and prefill.aborts >= aborted)
            assert prefill.aborts == aborted

    run(body())


@pytest.mark.parametrize("after, named_at", [(0.0, RIPE_S), (RIPE_S + 0.2, RIPE_S + 0.2)])
def test_a_young_request_is_named_when_its_engine_surely_has_it(after, named_at):
    """SGLang loses an abort that comes before the request has reached its scheduler, and sends no second one."""
    async def body():
        async with Rig() as rig:
            loop, decode = asyncio.get_running_loop(), rig.engines["decode"][0]
            client = await rig.client()
            began = loop.time()
            client.send(body=rig.chat(True, {"decode": "hang"}))
            await until(lambda: decode.requests)
            await asyncio.sleep(after)
            client.close()
            await until(lambda: not decode.running, 0.5)
            await until(lambda: decode.aborts == 1)
            assert named_at - 0.05 < loop.time() - began < named_at + 0.5
            await asyncio.sleep(RIPE_S)
            assert decode.aborts == 1

    run(body())


def test_an_id_of_the_callers_own_is_not_named_while_it_is_in_use_again():
    async def body():
        async with Rig() as rig:
            decode = rig.engines["decode"][0]
            client = await rig.client()
            client.send(body=rig.chat(True, {"decode": "hang"}, rid="mine"))
            await until(lambda: decode.requests)
            client.close()
            await until(lambda: not decode.running, 0.5)
            answer = await rig.ask(rig.chat(False, {"decode": f"slow:{int(1500 * RIPE_S)}"}, rid="mine"))
            assert answer.status == 200 and decode.aborts == 0

    run(body())


def test_orphans_are_bounded_in_time():
    async def body():
        async with Rig(settings={"prefill_abort": "never", "prefill_drain_timeout": 0.2}) as rig:
            client = await rig.client()
            client.send(body=rig.chat(True, {"prefill": "hang"}))
            await until(lambda: rig.engines["prefill"][0].requests and rig.engines["decode"][0].requests)
            client.close()
            await asyncio.sleep(0.1)
            assert rig.app.core.orphaned == 1
            await rig.settle(2)
            assert rig.app.core.orphaned == 0

    run(body())


def test_a_prefill_answer_that_comes_late_does_not_hold_the_request():
    async def body():
        async with Rig() as rig:
            answer = await asyncio.wait_for(rig.ask(rig.chat(True, {"prefill": "slow:2000"})), 1.5)
            assert answer.complete
            assert not rig.app.core.live and rig.app.core.orphaned == 1
            await rig.settle()

    run(body())


def test_failure_of_one_leg_stops_the_other():
    async def body():
        async with Rig(settings={"request_max_retries": 0}) as rig:
            assert (await rig.ask(rig.chat())).status == 200  # with open connections both legs are sent before either answers
            answer = await rig.ask(rig.chat(True, {"prefill": "status:500", "decode": "hang"}))
            assert answer.status == 500
            await until(lambda: rig.engines["decode"][0].aborts)
            answer = await rig.ask(rig.chat(True, {"prefill": "hang", "decode": "status:500"}))
            assert answer.status == 500
            await until(lambda: rig.engines["prefill"][0].aborts)
            await rig.settle()

    run(body())


def test_leaving_after_the_last_event_is_no_cancellation():
    """Clients stop reading at [DONE], some before the framing has ended."""
    async def body():
        async with Rig() as rig:
            rig.engines["decode"][0].script = lambda path, request: Fault.parse("stall:7")  # everything but [DONE]'s terminator
            client = await rig.client()
            client.send(body=rig.chat(True, max_tokens=4))
            await client.reader.readuntil(b"[DONE]\n\n")
            client.close()
            await rig.settle()
            assert not rig.app.core.store.numbers.get("infera_request_cancellations_total")
            assert rig.app.core.store.table("infera_requests_total") == {("pd", "ok"): 1}
            assert not rig.engines["decode"][0].aborts

    run(body())


@pytest.mark.parametrize("late", ["prefill", "decode"])
def test_a_prefill_that_is_left_to_finish_never_loses_its_decode(late, monkeypatch):
    """The client goes while one leg is still connecting: an unsent prefill is not sent, a sent one gets its decode."""
    from infera_router.http.upstream import EnginePool

    async def body():
        async with Rig(records={"prefill": {"pp_size": 4}}) as rig:
            slow = rig.engines[late][0].port
            real = EnginePool._open

            async def open_late(pool):
                if pool.port == slow:
                    await asyncio.sleep(0.2)
                return await real(pool)

            monkeypatch.setattr(EnginePool, "_open", open_late)
            client = await rig.client()
            client.send(body=rig.chat(True))
            await until(lambda: any(engine.requests for engine in rig.all()), 1)
            client.close()
            await rig.settle(2)
            prefill, decode = rig.engines["prefill"][0], rig.engines["decode"][0]
            assert prefill.abandoned == 0 and prefill.aborts == 0
            assert (prefill.requests, decode.requests) == ((0, 1) if late == "prefill" else (1, 1))

    run(body())


def test_a_pipeline_prefill_whose_decode_failed_is_stopped():
    async def body():
        async with Rig(settings={"request_max_retries": 0}, records={"prefill": {"pp_size": 4}}) as rig:
            assert (await rig.ask(rig.chat())).status == 200
            answer = await rig.ask(rig.chat(True, {"prefill": "hang", "decode": "status:500"}))
            assert answer.status == 500
            await rig.settle(2)
            assert rig.engines["prefill"][0].abandoned == 1

    run(body())


def test_a_decode_that_is_left_with_its_prefill_is_stopped_at_its_first_token():
    """That token says that the prefill has delivered, even if the prefill's own answer takes its time."""
    async def body():
        async with Rig(records={"prefill": {"pp_size": 4}}, engine={"step": 0.05}) as rig:
            prefill, decode = rig.engines["prefill"][0], rig.engines["decode"][0]
            client = await rig.client()
            client.send(body=rig.chat(True, {"prefill": "slow:1500", "decode": "slow:200"}, max_tokens=60))
            await until(lambda: prefill.requests and decode.requests)
            client.close()
            await until(lambda: rig.app.core.orphaned == 1, 0.15)
            assert decode.running
            await until(lambda: not decode.running, 0.6)
            assert prefill.running and rig.app.core.orphaned == 1
            await rig.settle()
            assert prefill.abandoned == 0 and decode.abandoned == 1

    run(body())


def test_legs_that_are_left_may_still_answer_with_an_error(caplog):
    async def body():
        async with Rig(records={"prefill": {"pp_size": 4}}) as rig:
            prefill, decode = rig.engines["prefill"][0], rig.engines["decode"][0]
            client = await rig.client()
            client.send(body=rig.chat(False, {"prefill": "slow:200", "decode": "slow:200"}, messages=5))
            await until(lambda: prefill.requests and decode.requests)
            client.close()
            await until(lambda: rig.app.core.orphaned == 1, 0.15)
            await rig.settle()
            assert prefill.abandoned == 0, "it had ended"

    run(body())
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")], caplog.text
