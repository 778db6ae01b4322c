"""How a router process ends, and how another one takes its place: nothing that was accepted is lost."""

import asyncio
import contextlib
import os

import pytest
from fleet.etcd_server import eventually
from process_rig import KILL, TERM, Stack
from rig import Client, run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_lets_running_requests_finish_and_refuses_new_ones(workers):
    async def body():
        async with Stack(engine={"step": 0.05}, flags=("--workers", workers, "--drain-timeout", "10")) as stack:
            streams = [await Client.open(stack.port) for _ in range(4)]
            for client in streams:
                client.send(body=stack.chat(True, max_tokens=30))
                await client.head()
            later = await Client.open(stack.port)
            later.send("/ready", None, "GET")
            assert (await later.answer()).status == 200
            stack.router.signal(TERM)
            await asyncio.sleep(0.2)
            answer = await stack.get("/ready")
            assert answer.status == 503 and answer.json()["draining"] is True
            answer = await stack.ask(stack.chat())
            assert answer.status == 503 and answer.headers["retry-after"] == "1" and answer.headers["connection"] == "close"
            for client in streams:
                rest = await asyncio.wait_for(client.reader.read(), 10)
                assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert await stack.router.ended() == 0
            assert "Traceback" not in stack.router.text() and "not empty" not in stack.router.text()
            assert not any(engine.running for engine in stack.all())

    run(body())


def test_what_outlives_the_drain_is_ended_with_an_error():
    async def body():
        async with Stack(flags=("--drain-timeout", "0.5")) as stack:
            waiting, streaming = await Client.open(stack.port), await Client.open(stack.port)
            waiting.send(body=stack.chat(False, {"decode": "hang"}))
            streaming.send(body=stack.chat(True, {"decode": "stall:2"}))
            await streaming.head()
            stack.router.signal(TERM)
            answer = await asyncio.wait_for(waiting.answer(), 5)
            assert answer.status == 503 and answer.json()["error"]["code"] == "draining"
            rest = await asyncio.wait_for(streaming.reader.read(), 5)
            assert rest.count(b'data: {"error"') == 1 and rest.endswith(b"0\r\n\r\n")
            assert await stack.router.ended() == 0
            await eventually(lambda: not any(engine.running for engine in stack.all()), 3)

    run(body())


@pytest.mark.parametrize(("before", "after"), [("1", "1"), ("2", "2"), ("1", "2")])
def test_a_successor_takes_the_port_without_a_failed_request(before, after):
    """200 new connections a second, keep-alive clients and open streams across the change of one router for another."""
    async def body():
        demand = ("--decode-input-demand", "on")
        async with Stack(2, 2, flags=demand, engine={"step": 0.01}) as stack:
            if before != "1":
                await stack.router.stop()
                stack.router = await stack.start_router("--workers", before, "--decode-request-weight", "1")
            stop, outcomes = asyncio.Event(), []

            async def one():
                try:
                    client = await Client.open(stack.port)
                    client.send(body=stack.chat(max_tokens=1))
                    outcomes.append((await asyncio.wait_for(client.answer(), 10)).status)
                    client.close()
                except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
                    outcomes.append(repr(error))

            async def newcomers():
                tasks = []
                while not stop.is_set():
                    tasks.append(asyncio.ensure_future(one()))
                    await asyncio.sleep(0.005)
                await asyncio.gather(*tasks)

            async def regular():
                """Keeps its connection as long as the router says so."""
                client = await Client.open(stack.port)
                while not stop.is_set():
                    client.send(body=stack.chat())
                    answer = await asyncio.wait_for(client.answer(), 10)
                    outcomes.append(answer.status)
                    if answer.headers.get("connection") == "close":
                        client.close()
                        client = await Client.open(stack.port)
                client.close()

            stream = await Client.open(stack.port)
            stream.send(body=stack.chat(True, max_tokens=600))
            await stream.head()
            crowd = [asyncio.ensure_future(task()) for task in (newcomers, regular, regular, regular)]
            await asyncio.sleep(0.5)
            old = stack.router
            stack.router = await stack.start_router("--workers", after, "--decode-request-weight", "7")
            await eventually(lambda: "another process serves this port" in old.text(), 15)
            assert old.process.poll() is None, "the old one waits for its SIGTERM"
            for _ in range(20):
                assert (await stack.metrics())["infera_router_decode_request_weight"] == 7
            old.signal(TERM)
            await asyncio.sleep(1)
            stop.set()
            await asyncio.gather(*crowd)
            rest = await asyncio.wait_for(stream.reader.read(1 << 24), 20)
            while part := await stream.reader.read(1 << 20):
                rest += part
            assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert await old.ended() == 0
            assert set(outcomes) == {200} and len(outcomes) > 300, {o: outcomes.count(o) for o in set(outcomes)}

    run(body())


def test_a_successor_that_sees_no_fleet_leaves_the_old_one_serving():
    async def body():
        async with Stack() as stack:
            other = await stack.start_router("--etcd-prefix", "/elsewhere/", wait=False)
            await eventually(lambda: "hands its socket over" in other.text(), 10)
            await asyncio.sleep(1)
            for _ in range(20):
                assert (await stack.ask(stack.chat())).status == 200
            other.process.kill()
            await eventually(lambda: "went away without serving" in stack.router.text(), 5)
            assert (await stack.ask(stack.chat())).status == 200

    run(body())


def test_without_handover_a_taken_port_is_a_usage_error():
    async def body():
        async with Stack() as stack:
            other = await stack.start_router("--handover", "off", wait=False)
            assert await other.ended() == 2
            assert f"--port: {stack.port} on 127.0.0.1 is in use" in other.text()

    run(body())


def test_processes_end_when_their_parent_is_killed():
    async def body():
        async with Stack(flags=("--workers", "2", "--drain-timeout", "1")) as stack:
            pids = stack.router.children()
            stack.router.signal(KILL)

            def gone():
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, 0)
                        return False
                return True

            await eventually(gone, 8)

    run(body())
