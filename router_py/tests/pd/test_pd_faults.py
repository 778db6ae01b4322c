"""Before the first byte a fault is retried elsewhere or answered truly; afterwards it is said once inside the stream."""

import asyncio
import json
import re

import pytest
from infera_emulator.faults import Fault
from rig import Rig, run


def once(kind: str):
    """A script that makes the first request of an engine fail."""
    left = [kind]
    return lambda path, body: Fault.parse(left.pop()) if left else None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["reset", "close", "halfhead", "garbage", "status:500", "status:503"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_fault_before_the_first_byte_is_retried_without_the_worker(role, fault, stream):
    async def body():
        async with Rig(2, 2) as rig:
            for engine in rig.engines[role]:
                engine.script = None
            rig.engines[role][0].script = lambda path, request: Fault.parse(fault)
            for _ in range(2):  # round-robin: one of the two meets the bad worker first
                answer = await rig.ask(rig.chat(stream))
                assert answer.status == 200 and answer.complete
            failed = rig.engines[role][0].requests
            assert failed >= 1 and rig.engines[role][1].requests == 2
            rooms = [s[1]["bootstrap_room"] for e in rig.engines[role] for s in e.seen]
            assert len(set(rooms)) == len(rooms) == 2 + failed
            assert not rig.rooms.mismatches
            await rig.settle()

    run(body())


@pytest.mark.parametrize(("role", "fault", "status"), [
    ("prefill", "reset", 502), ("decode", "reset", 502), ("decode", "close", 502), ("prefill", "status:503", 503), ("decode", "status:500", 500)])
def test_without_another_worker_the_answer_names_the_leg(role, fault, status):
    async def body():
        async with Rig() as rig:
            answer = await asyncio.wait_for(rig.ask(rig.chat(True, {role: fault})), 3)
            assert answer.status == status
            assert "127.0.0.1" not in answer.body.decode()
            if status == 502:
                assert role in answer.json()["error"]["message"]
            await rig.settle()

    run(body())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_4xx_passes_verbatim_and_is_not_retried(role, stream):
    async def body():
        async with Rig(2, 2) as rig:
            answer = await rig.ask(rig.chat(stream, {role: "status:422"}))
            assert answer.status == 422
            assert answer.json()["error"]["type"] == "Made"
            assert sum(e.requests for e in rig.engines[role]) == 1
            assert rig.metric("infera_request_retries_total", f"{role}_reset") == 0
            assert all(rig.app.core.policy.breaker.state(e.worker_id) == 0 for e in rig.all())
            await rig.settle()

    run(body())


def test_an_error_as_first_event_counts_as_a_fault_and_blames_the_prefill():
    async def body():
        async with Rig(2, 1) as rig:
            rig.engines["decode"][0].script = once("event:500")
            answer = await rig.ask(rig.chat(True))
            assert answer.status == 200 and b"Lost connection" not in answer.body and answer.complete
            assert [e.requests for e in rig.engines["prefill"]] == [1, 1]
            assert rig.engines["decode"][0].requests == 2
            await rig.settle()

    run(body())


def test_an_error_as_first_event_without_another_worker_has_its_status():
    async def body():
        async with Rig() as rig:
            answer = await rig.ask(rig.chat(True, {"decode": "event:503"}))
            assert answer.status == 503 and "127.0.0.1" not in answer.body.decode()
            await rig.settle()

    run(body())


@pytest.mark.parametrize("fault", ["cut:3", "rst:3"])
def test_a_break_in_the_stream_gives_one_error_event_and_the_end(fault):
    async def body():
        async with Rig(2, 2) as rig:
            client = await rig.client()
            client.send(body=rig.chat(True, {"decode": fault}))
            answer = await client.answer()
            assert answer.status == 200 and answer.complete
            events = [part for part in re.split("\n{2,}", answer.body.decode()) if part.startswith("data: ")]
            errors = [e for e in events if e.startswith('data: {"error"')]
            assert len(errors) == 1 and json.loads(errors[0][6:])["error"]["code"] == "engine_error"
            assert sum(e.requests for e in rig.engines["decode"]) == 1
            assert await client.closed()
            await rig.settle()

    run(body())


def test_a_break_after_done_is_no_error():
    async def body():
        async with Rig() as rig:
            answer = await rig.ask(rig.chat(True, {"decode": "late"}))
            assert answer.complete and answer.body.endswith(b"data: [DONE]\n\n") and b"error" not in answer.body
            assert rig.metric("infera_requests_total", "pd", "ok") == 1
            await rig.settle()

    run(body())


def test_a_plain_answer_that_breaks_is_cut_short_not_completed():
    async def body():
        async with Rig() as rig:
            answer = await rig.ask(rig.chat(False, {"decode": "cut"}))
            assert answer.status == 200 and not answer.complete
            await rig.settle()

    run(body())


@pytest.mark.parametrize("fault", ["oneshot", "eof", "fin", "continue", "slow:20"])
@pytest.mark.parametrize("stream", [False, True])
def test_odd_but_right_answers_are_relayed(fault, stream):
    async def body():
        async with Rig() as rig:
            client = await rig.client()
            for _ in range(3):
                client.send(body=rig.chat(stream, fault))
                answer = await client.answer()
                assert answer.status == 200 and answer.complete
                assert (b"data: [DONE]" in answer.body) == stream
            await rig.settle()

    run(body())


@pytest.mark.parametrize("idle_close", [0, 0.05, 0.3])
def test_engines_that_close_idle_connections_fail_nothing(idle_close):
    async def body():
        async with Rig(engine={"idle_close": idle_close}, settings={"request_max_retries": 0}) as rig:
            client = await rig.client()
            for pause in (0, 0, 0.05, 0.051, 0.049, 0.1, 0.3, 0.2995, 0):
                await asyncio.sleep(pause)
                client.send(body=rig.chat(True))
                assert (await client.answer()).status == 200
            assert not rig.app.core.store.numbers.get("infera_leg_failures_total")
            await rig.settle()

    run(body())


@pytest.mark.slow
@pytest.mark.parametrize("idle_close", [1.0, 5.0])
def test_engines_that_close_at_one_and_at_five_seconds_fail_nothing(idle_close):
    """Pauses on both sides of the engine's limit and of our own three seconds."""
    async def body():
        async with Rig(engine={"idle_close": idle_close}, settings={"request_max_retries": 0}) as rig:
            async def client(offset):
                client = await rig.client()
                for pause in (0, idle_close - 0.002, idle_close, idle_close + 0.002, 2.999, 3.001):
                    await asyncio.sleep(pause + offset)
                    client.send(body=rig.chat(True))
                    assert (await client.answer()).status == 200
                client.close()

            await asyncio.gather(*(client(n * 0.001) for n in range(8)))
            assert not rig.app.core.store.numbers.get("infera_leg_failures_total")
            await rig.settle()

    run(body())


def test_a_reused_connection_that_breaks_is_repeated_once_with_the_same_room():
    async def body():
        async with Rig(settings={"request_max_retries": 0}) as rig:
            decode = rig.engines["decode"][0]
            assert (await rig.ask(rig.chat())).status == 200
            decode.script = once("reset")
            answer = await rig.ask(rig.chat())
            assert answer.status == 200
            rooms = [s[1]["bootstrap_room"] for s in decode.seen]
            rids = [s[1]["rid"] for s in decode.seen]
            assert decode.requests == 3 and rooms[1] == rooms[2] != rooms[0] and rids[1] == rids[2]
            assert rig.app.core.engines.stats.repeats == 1
            assert rig.app.core.policy.breaker.state(decode.worker_id) == 0
            assert not rig.app.core.store.numbers.get("infera_request_retries_total")
            # on a fresh connection the same break is a fault
            for engine in rig.all():
                engine.drop_connections()
            await asyncio.sleep(0.05)
            decode.script = once("reset")
            assert (await rig.ask(rig.chat())).status == 502
            await rig.settle()

    run(body())


def test_unreachable_workers_are_retried_then_502():
    async def body():
        async with Rig(2, 1) as rig:
            await rig.engines["prefill"][0].stop()
            for _ in range(3):
                assert (await rig.ask(rig.chat())).status == 200
            await rig.engines["prefill"][1].stop()
            answer = await rig.ask(rig.chat())
            assert answer.status == 502 and "prefill" in answer.json()["error"]["message"]
            await rig.settle()

    run(body())


def test_consecutive_faults_open_the_breaker_and_success_closes_it():
    async def body():
        from dataclasses import replace

        from rig import DEMAND
        async with Rig(0, 0, 2, policy=replace(DEMAND, breaker_cooldown_s=0.2)) as rig:
            bad = rig.engines["mixed"][0]
            bad.script = lambda path, request: Fault.parse("status:500")
            for _ in range(10):
                assert (await rig.ask(rig.chat())).status == 200
            assert bad.requests == 3 and rig.app.core.policy.breaker.state(bad.worker_id) == 1
            bad.script = None
            await asyncio.sleep(0.25)
            for _ in range(2):
                assert (await rig.ask(rig.chat())).status == 200
            assert bad.requests == 4 and rig.app.core.policy.breaker.state(bad.worker_id) == 0
            await rig.settle()

    run(body())


def test_a_worker_that_leaves_and_does_not_listen_fails_its_waiting_requests():
    async def body():
        async with Rig(1, 1) as rig:
            client = await rig.client()
            client.send(body=rig.chat(True, {"prefill": "hang"}))
            await asyncio.sleep(0.05)
            prefill = rig.engines["prefill"][0]
            await prefill.stop(reset=False)  # as a host that lost its power: no RST, nothing listens
            rig.register(without=prefill)
            answer = await asyncio.wait_for(client.answer(), 2)
            assert answer.status in (502, 503)
            prefill.drop_connections()
            await rig.settle()

    run(body())


def test_a_worker_that_leaves_while_it_listens_keeps_its_requests():
    async def body():
        async with Rig(1, 1) as rig:
            client = await rig.client()
            client.send(body=rig.chat(True, {"decode": "slow:300"}))
            await asyncio.sleep(0.05)
            rig.register(without=rig.engines["decode"][0])
            answer = await asyncio.wait_for(client.answer(), 2)
            assert answer.status == 200 and answer.complete
            await rig.settle()

    run(body())
