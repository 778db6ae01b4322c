"""What is no proper HTTP is answered 400 and closed, and never reaches an engine."""

import asyncio

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rig import Client, Rig, run

BODY = b'{"model":"fake","messages":[],"max_tokens":3}'
HOST = b"Host: x\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\n"


def post(headers: bytes, body: bytes = BODY) -> bytes:
    return POST + headers + b"\r\n" + body


CL = b"Content-Length: %d\r\n" % len(BODY)
MALFORMED = {
    "both length and chunked": post(HOST + CL + b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
    "chunked then length": post(HOST + b"Transfer-Encoding: chunked\r\n" + CL, b"0\r\n\r\n"),
    "two lengths": post(HOST + CL + b"Content-Length: 3\r\n"),
    "the same length twice": post(HOST + CL + CL),
    "length list": post(HOST + b"Content-Length: 5, 5\r\n"),
    "signed length": post(HOST + b"Content-Length: +5\r\n"),
    "negative length": post(HOST + b"Content-Length: -5\r\n"),
    "hex length": post(HOST + b"Content-Length: 0x5\r\n"),
    "huge length": post(HOST + b"Content-Length: 99999999999999999999999\r\n"),
    "odd coding": post(HOST + b"Transfer-Encoding: gzip\r\n", b""),
    "chunked not last": post(HOST + b"Transfer-Encoding: chunked, gzip\r\n", b"0\r\n\r\n"),
    "two codings": post(HOST + b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"),
    "chunked in 1.0": post(HOST + b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "bad chunk size": post(HOST + b"Transfer-Encoding: chunked\r\n", b"zz\r\nabc\r\n0\r\n\r\n"),
    "chunk without end": post(HOST + b"Transfer-Encoding: chunked\r\n", b"3\r\nabcd\r\n0\r\n\r\n"),
    "overlong chunk size": post(HOST + b"Transfer-Encoding: chunked\r\n", b"f" * 40 + b"\r\n"),
    "bare LF": b"POST /v1/chat/completions HTTP/1.1\nHost: x\n\n",
    "bare CR in value": post(HOST + b"X: a\rb\r\n" + CL),
    "nul in value": post(HOST + b"X: a\0b\r\n" + CL),
    "nul in name": post(HOST + b"X\0: a\r\n" + CL),
    "space before colon": post(HOST + b"Content-Length : 5\r\n"),
    "folded header": post(HOST + b"X: a\r\n  b\r\n" + CL),
    "no colon": post(HOST + b"nonsense\r\n" + CL),
    "empty name": post(HOST + b": x\r\n" + CL),
    "no host": post(CL),
    "two hosts": post(HOST + b"Host: y\r\n" + CL),
    "unknown method": b"FROB / HTTP/1.1\r\n" + HOST + b"\r\n",
    "unknown version": b"GET / HTTP/3.7\r\n" + HOST + b"\r\n",
    "http 0.9": b"GET /health\r\n\r\n",
    "no http at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "http2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


@pytest.fixture(scope="module")
def rig():
    runner = asyncio.Runner()
    made = runner.run(Rig(0, 0, 1, settings={"max_header_bytes": 8192, "max_body_bytes": 65536}).__aenter__())
    made.runner = runner
    yield made
    runner.run(made.__aexit__())
    runner.close()


async def exchange(rig, data: bytes, timeout: float = 2.0) -> bytes:
    """Everything the router answers to these bytes until it closes, or b'' for nothing in time."""
    client = await Client.open(rig.port)
    client.writer.write(data)
    out = b""
    try:
        while part := await asyncio.wait_for(client.reader.read(65536), timeout):
            out += part
    except asyncio.TimeoutError:
        out += b"<open>"
    except ConnectionError:
        pass
    client.close()
    return out


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_is_400_and_closed(rig, name):
    before = rig.engines["mixed"][0].requests
    out = rig.runner.run(exchange(rig, MALFORMED[name] + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"))
    assert out.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 ")), out
    assert out.count(b"HTTP/1.1 ") == 1 and b"connection: close" in out and not out.endswith(b"<open>")
    assert rig.engines["mixed"][0].requests == before


@pytest.mark.parametrize(("data", "status"), [
    (post(HOST + b"X: " + b"a" * 9000 + b"\r\n" + CL), 431),
    (POST + HOST + b"X: " + b"a" * 300_000, 431),
    (post(HOST + b"".join(b"X-%d: 1\r\n" % i for i in range(200)) + CL), 431),
    (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 431),
    (post(HOST + b"Content-Length: 70000\r\n", b""), 413),
    (post(HOST + b"Transfer-Encoding: chunked\r\n", b"".join(b"4000\r\n" + b"a" * 16384 + b"\r\n" for _ in range(5))), 413),
    (post(HOST + CL + b"Content-Encoding: gzip\r\n"), 415),
    (post(HOST + CL + b"Expect: magic\r\n"), 417),
    (b"CONNECT x:1 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
])
def test_limits_have_their_status(rig, data, status):
    out = rig.runner.run(exchange(rig, data))
    if status == 400:
        assert out[9:12] in (b"400", b"404", b"405")
    else:
        assert out[9:12] == b"%d" % status, out[:200]
    assert not out.endswith(b"<open>")


def test_pipelined_requests_are_answered_in_order(rig):
    async def body():
        client = await rig.client()
        for number in range(30):
            if number % 3 == 2:
                client.send("/v1/models", None, "GET")
            else:
                client.send(body=rig.chat(bool(number % 2), max_tokens=number + 1))
        for number in range(30):
            answer = await asyncio.wait_for(client.answer(), 2)
            assert answer.status == 200
            if number % 3 == 2:
                assert answer.json()["object"] == "list"
            elif not number % 2:
                assert answer.json()["usage"]["completion_tokens"] == number + 1
        client.close()
        await rig.settle()

    rig.runner.run(body())


def test_good_requests_before_a_bad_one_are_answered(rig):
    async def body():
        client = await rig.client()
        client.send(body=rig.chat())
        client.send(body=rig.chat(True))
        client.writer.write(b"GET / HTTP/1.1\r\nbroken\r\n\r\n")
        assert [(await client.answer()).status for _ in range(3)] == [200, 200, 400]
        assert await client.closed()

    rig.runner.run(body())


def test_expect_100_continue(rig):
    async def body():
        client = await rig.client()
        client.writer.write(POST + HOST + CL + b"Expect: 100-continue\r\n\r\n")
        assert (await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), 1)).startswith(b"HTTP/1.1 100 ")
        client.writer.write(BODY)
        assert (await client.answer()).status == 200
        client.close()

    rig.runner.run(body())


def test_an_upgrade_offer_is_declined_and_the_request_answered(rig):
    out = rig.runner.run(exchange(rig, post(HOST + CL + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n")))
    assert out.startswith(b"HTTP/1.1 200 ") and out.count(b"HTTP/1.1 ") == 1 and not out.endswith(b"<open>")


def test_a_request_that_comes_byte_by_byte_is_one_request(rig):
    async def body():
        client = await rig.client()
        for byte in post(HOST + CL):
            client.writer.write(bytes([byte]))
            await client.writer.drain()
        assert (await asyncio.wait_for(client.answer(), 2)).status == 200
        client.close()

    rig.runner.run(body())


def test_chunked_requests_and_split_heads(rig):
    async def body():
        chunks = b"5;x=y\r\n" + BODY[:5] + b"\r\n%x\r\n" % len(BODY[5:]) + BODY[5:] + b"\r\n0\r\nX: 1\r\n\r\n"
        data = post(HOST + b"Transfer-Encoding: chunked\r\nTrailer: X\r\n", chunks)
        for cut in range(1, len(data) - 1, 7):
            client = await rig.client()
            client.writer.write(data[:cut])
            await asyncio.sleep(0)
            client.writer.write(data[cut:])
            assert (await asyncio.wait_for(client.answer(), 2)).status == 200
            client.close()
        await rig.settle()

    rig.runner.run(body())


def test_silent_clients_are_let_go():
    async def body():
        async with Rig(0, 0, 1, settings={"client_read_timeout": 0.5, "client_keepalive_timeout": 1.0}) as rig:
            half, idle = await rig.client(), await rig.client()
            half.writer.write(POST + HOST + CL + b"\r\n{")
            assert (await asyncio.wait_for(half.answer(), 3)).status == 408
            assert await half.closed()
            assert await idle.closed(4)
            assert not rig.app.connections

    run(body())


# Shrinking is slow against a live server, and the failing example is short as it is.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
fragments = st.sampled_from([
    POST, HOST, CL, b"\r\n", b"\n", b"\r", b"\0", BODY, b"Transfer-Encoding: chunked\r\n", b"Content-Length: 3\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n",
    b"GET /health HTTP/1.1\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\nConnection: upgrade\r\n", b"HTTP/1.0\r\n",
    b"ffffffffffffffffff\r\n", b": ", b" ", b"X-A: \xff\xfe\r\n", b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
])


@pytest.mark.slow
@settings(max_examples=250, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(fragments, st.binary(max_size=12)), min_size=1, max_size=14))
def test_any_bytes_leave_the_router_whole(rig, parts):
    """Whatever comes in: only well-formed answers go out, nothing is left running, and the next client is served."""
    async def body():
        client = await rig.client()
        for part in parts:
            client.writer.write(part)
        client.writer.write_eof()
        out = b""
        try:
            while part := await asyncio.wait_for(client.reader.read(65536), 2):
                out += part
        except ConnectionError:
            pass
        client.close()
        assert not out or out.startswith(b"HTTP/1.1 ")
        assert b"Traceback" not in out and b"127.0.0.1" not in out
        assert (await rig.ask(None, "/health", "GET")).status == 200
        await rig.settle()

    rig.runner.run(body())


json_text = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8),
                         lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=4), max_leaves=12)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=60), st.dictionaries(
    st.sampled_from(["model", "stream", "rid", "n", "_x", "bootstrap_room", "routed_dp_rank", "messages", "\u00e9", "a\"b"]), json_text, max_size=6)))
def test_any_body_is_forwarded_unharmed_or_refused(rig, value):
    """A body that passes reaches the engine as the same JSON, less private members; anything else is a 4xx."""
    async def body():
        import json

        raw = value if isinstance(value, bytes) else json.dumps(value).encode()
        engine = rig.engines["mixed"][0]
        engine.seen.clear()
        answer = await rig.ask(raw)
        assert answer.status in (200, 400, 404, 503)
        if engine.seen:
            got, sent = dict(engine.seen[-1][1]), json.loads(raw)
            if "rid" not in sent or sent["rid"] is None:
                got.pop("rid", None)
            want = {k: v for k, v in sent.items() if not k.startswith("_") and not (k == "rid" and v is None)}
            assert got == want
        else:
            assert answer.status != 200

    rig.runner.run(body())
