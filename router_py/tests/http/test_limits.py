"""Bodies, admission, time limits, and connections that are kept."""

import asyncio

import pytest
from rig import Client, Rig, run


def test_a_body_beyond_the_limit_is_413_and_one_at_it_is_served():
    async def body():
        async with Rig(settings={"max_body_bytes": 100_000}) as rig:
            base = len(str(rig.chat(pad="")).replace("False", "false")) + 20
            fits = rig.chat(pad="x" * (100_000 - base - 100))
            assert (await rig.ask(fits)).status == 200
            answer = await rig.ask(rig.chat(pad="x" * 100_000))
            assert answer.status == 413 and "100000" in answer.json()["error"]["message"] and answer.headers["connection"] == "close"
            answer = await rig.ask({"pad": "x" * 100_000}, "/v1/messages")
            assert answer.status == 413
            await rig.settle()

    run(body())


def test_the_admission_limit_answers_429():
    async def body():
        async with Rig(settings={"max_concurrent_requests": 3}) as rig:
            busy = []
            for _ in range(3):
                client = await rig.client()
                client.send(body=rig.chat(fault={"decode": "hang"}))
                busy.append(client)
            while len(rig.app.core.live) < 3:
                await asyncio.sleep(0.01)
            answer = await rig.ask(rig.chat())
            assert answer.status == 429 and answer.headers["retry-after"] == "1" and answer.json()["error"]["type"] == "rate_limit_error"
            answer = await rig.ask({"model": "fake"}, "/v1/messages")
            assert answer.status == 429 and answer.json()["error"]["type"] == "rate_limit_error"
            assert (await rig.ask(None, "/health", "GET")).status == 200
            assert rig.metric("infera_request_errors_total", "admission_limit") == 2
            busy[0].close()
            while len(rig.app.core.live) > 2:
                await asyncio.sleep(0.01)
            assert (await rig.ask(rig.chat())).status == 200
            for client in busy:
                client.close()
            await rig.settle()

    run(body())


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["request_timeout", "request_idle_timeout"])
def test_time_limits_answer_504_before_the_first_byte_and_one_event_after(limit):
    async def body():
        async with Rig(settings={limit: 0.3}) as rig:
            for fault in ({"prefill": "hang"}, {"decode": "hang"}):
                waiting = await rig.client()
                waiting.send(body=rig.chat(fault=fault))
                answer = await asyncio.wait_for(waiting.answer(), 4)
                assert answer.status == 504 and answer.json()["error"]["code"] == "timeout"
            streaming = await rig.client()
            streaming.send(body=rig.chat(True, {"decode": "stall:2"}))
            answer = await asyncio.wait_for(streaming.answer(), 4)
            assert answer.status == 200 and answer.complete and answer.body.count(b'data: {"error"') == 1
            assert await streaming.closed()
            assert rig.metric("infera_stream_breaks_total", "timeout") == 1
            assert rig.metric("infera_request_errors_total", "timeout") == 3
            await rig.settle()

    run(body())


@pytest.mark.slow
def test_the_idle_limit_spares_a_slow_but_moving_stream():
    async def body():
        async with Rig(settings={"request_idle_timeout": 0.5}, engine={"step": 0.15}) as rig:
            answer = await asyncio.wait_for(rig.ask(rig.chat(True, max_tokens=14)), 10)
            assert answer.complete and b"error" not in answer.body and answer.body.endswith(b"data: [DONE]\n\n")

    run(body())


def test_connecting_is_bounded():
    """A port whose accept queue is full never answers a SYN, as a vanished host does."""
    async def body():
        import socket
        from dataclasses import replace

        full = socket.socket()
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        plugs = [socket.socket() for _ in range(3)]
        for plug in plugs:
            plug.setblocking(False)
            plug.connect_ex(("127.0.0.1", port))
        async with Rig(0, 0, 1, settings={"connect_timeout": 0.3, "request_max_retries": 0}) as rig:
            ((worker_id, record),) = rig.app.fleet.snapshot.workers.items()
            rig.app.fleet.apply({worker_id: replace(record, url=f"http://127.0.0.1:{port}")})
            if rig.app.fleet.snapshot.workers[worker_id].port != port:
                rig.app.fleet.apply({f"127.0.0.1:{port}": replace(record, worker_id=f"127.0.0.1:{port}", url=f"http://127.0.0.1:{port}")})
            answer = await asyncio.wait_for(rig.ask(rig.chat()), 3)
            assert answer.status == 502
            await rig.settle()
        for sock in (full, *plugs):
            sock.close()

    run(body())


def test_connections_are_kept_above_300_seconds_by_default():
    from infera_router.http.client import ClientLimits
    from infera_router.settings import Settings, read

    assert Settings().client_keepalive_timeout > 300 and ClientLimits().keepalive_timeout > 300
    assert read([], {}).client_keepalive_timeout > 300 and read([], {}).max_body_bytes == 64 << 20


def test_one_connection_serves_many_requests():
    async def body():
        async with Rig() as rig:
            client = await Client.open(rig.port)
            for number in range(200):
                client.send(body=rig.chat(bool(number % 3)))
                answer = await client.answer()
                assert answer.status == 200 and answer.headers.get("connection") != "close"
            stats = rig.app.core.engines.stats
            assert stats.opened <= 6 and stats.reused >= 390
            await rig.settle()

    run(body())
