"""Bytes as they came, when they came, in bounded memory."""

import asyncio
import socket
import time
import types

import pytest
from infera_emulator.faults.replies import Reply
from infera_router.http.client import ClientConnection, ClientLimits
from rig import Client, Rig, run


def test_chunk_framing_is_the_engines_own():
    async def body():
        async with Rig() as rig:
            answer = await rig.ask(rig.chat(True))
            sent = rig.engines["decode"][0].seen[0][1]
            events = Reply("/v1/chat/completions", sent, sent["rid"]).events()
            assert answer.raw == b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in events) + b"0\r\n\r\n"

    run(body())


def test_chunks_are_not_held_back():
    async def body():
        async with Rig(engine={"step": 0.05}) as rig:
            client = await rig.client()
            client.send(body=rig.chat(True, max_tokens=10))
            await client.head()
            times = []
            while True:
                size = int(await client.reader.readuntil(b"\r\n"), 16)
                await client.reader.readexactly(size + 2)
                times.append(time.monotonic())
                if not size:
                    break
            gaps = [b - a for a, b in zip(times[1:10], times[2:11])]
            assert min(gaps) > 0.02 and max(gaps) < 0.15

    run(body())


def test_a_slow_client_stops_its_engine_and_no_other():
    async def body():
        async with Rig(0, 0, 1) as rig:
            engine = rig.engines["mixed"][0]
            slow = await Client.open(rig.port)
            slow.writer.transport.pause_reading()
            slow.send(body=rig.chat(True, "big:2000"))  # 32 MB that nobody reads
            await asyncio.sleep(0.3)
            (connection,) = [c for c in rig.app.connections if c.busy]
            held = connection.transport.get_write_buffer_size()
            assert connection.paused and held < 600_000
            for _ in range(20):
                assert (await asyncio.wait_for(rig.ask(rig.chat(True)), 1)).complete
            assert connection.transport.get_write_buffer_size() == held
            assert engine.running  # it waits for its socket, too
            slow.writer.transport.resume_reading()
            answer = await asyncio.wait_for(slow.answer(), 10)
            assert answer.complete and len(answer.body) == 2000 * 16384 + 14
            slow.close()
            await rig.settle()

    run(body())


@pytest.mark.parametrize("waiting, direct", [(0, b"ab"), (7, b"")])
def test_a_token_never_overtakes_what_waits_before_it(waiting, direct):
    """A fake transport: real ones hold an unread answer for a client that asked ahead, and the token must queue behind it."""
    near, far = socket.socketpair()
    with near, far:
        far.setblocking(False)
        written = []
        transport = types.SimpleNamespace(get_write_buffer_size=lambda: waiting, write=written.append)
        connection = ClientConnection(None, ClientLimits(), set())
        connection.transport, connection._fd = transport, near.fileno()
        connection.send(b"a")
        waiting = 0  # once the transport has had a token, the next ones follow there
        connection.send(b"b")
        assert (far.recv(9) if direct else b"") == direct
        assert b"".join(written) == (b"" if direct else b"ab")


def test_http_1_0_gets_plain_bytes_and_a_close():
    async def body():
        async with Rig() as rig:
            for stream in (False, True):
                client = await rig.client()
                client.send(body=rig.chat(stream), version="1.0")
                answer = await client.answer()
                assert answer.status == 200 and "transfer-encoding" not in answer.headers
                sent = rig.engines["decode"][0].seen[-1][1]
                reply = Reply("/v1/chat/completions", sent, sent["rid"])
                assert answer.body == (b"".join(reply.events()) if stream else reply.whole())
                assert await client.closed()

    run(body())


def test_large_bodies_arrive_whole_at_both_legs():
    async def body():
        async with Rig() as rig:
            text = "wörter und mehr " * 100_000
            for size in (10_000, 400_000, len(text)):
                answer = await rig.ask(rig.chat(messages=[{"role": "user", "content": text[:size]}]))
                assert answer.status == 200
                for role in ("prefill", "decode"):
                    assert rig.engines[role][0].seen[-1][1]["messages"][0]["content"] == text[:size]

    run(body())
