"""TLS, API keys, request ids, and what clients never see."""

import asyncio
import json
import logging
import os
import shutil
import ssl
import subprocess

import pytest
from infera_router.fleet.options import UsageError
from infera_router.http.keys import ApiKeys, KeyFileError
from infera_router.process import listen
from infera_router.settings import Settings
from rig import Client, Rig, run

KEY, OTHER = "sk-first-0123456789", "sk-second-9876543210"


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"# the team's\n{KEY}\n\n{OTHER}\n")
    path.chmod(0o600)
    return path


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def test_keys_guard_all_but_health_and_ready(keys):
    async def body():
        async with Rig(settings={"api_key_file": str(keys)}) as rig:
            for headers in ({}, bearer("sk-first-012345678"), bearer(""), {"Authorization": f"Basic {KEY}"}, {"X-API-Key": "x"}):
                for path, method, value in (("/v1/chat/completions", "POST", rig.chat()), ("/v1/models", "GET", None), ("/v1/workers", "GET", None),
                                            ("/v1/admin/demand", "GET", None), ("/nothing", "GET", None)):
                    answer = await rig.ask(value, path, method, headers)
                    assert answer.status == 401 and answer.headers["www-authenticate"] == "Bearer", (path, headers)
                    assert KEY not in answer.body.decode()
            assert not rig.engines["decode"][0].requests
            for path in ("/health", "/ready", "/metrics"):
                assert (await rig.ask(None, path, "GET")).status == 200
            for headers in (bearer(KEY), bearer(OTHER), {"X-API-Key": OTHER}, {"authorization": f"bearer {KEY}"}):
                assert (await rig.ask(rig.chat(), headers=headers)).status == 200
            answer = await rig.ask({"model": "fake"}, "/v1/messages", headers={"x-api-key": "wrong-key-000"})
            assert answer.status == 401 and answer.json()["error"]["type"] == "authentication_error" and answer.json()["type"] == "error"
            # a large body is refused before it is sent
            client = await rig.client()
            client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
            assert (await asyncio.wait_for(client.answer(), 2)).status == 401

    run(body())


def test_metrics_may_need_a_key_and_keys_are_read_again(keys):
    async def body():
        async with Rig(settings={"api_key_file": str(keys), "metrics_auth": True}) as rig:
            assert (await rig.ask(None, "/metrics", "GET")).status == 401
            assert (await rig.ask(None, "/metrics", "GET", bearer(KEY))).status == 200
            keys.write_text("sk-third-abcdefgh\n")
            rig.app.reload()
            assert (await rig.ask(rig.chat(), headers=bearer(KEY))).status == 401
            assert (await rig.ask(rig.chat(), headers=bearer("sk-third-abcdefgh"))).status == 200
            keys.write_text("")
            rig.app.reload()  # unusable: the old ones stay
            assert (await rig.ask(rig.chat(), headers=bearer("sk-third-abcdefgh"))).status == 200

    run(body())


@pytest.mark.parametrize(("text", "why"), [("", "holds no key"), ("short\n", "shorter than 8"), ("has blanks inside\n", "blanks")])
def test_a_bad_key_file_is_named(tmp_path, text, why):
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(KeyFileError, match=f"--api-key-file: .*keys.*{why}"):
        ApiKeys(str(path))


def test_every_key_is_compared_in_full(keys, monkeypatch):
    """Neither the first match nor the first difference ends the comparison early."""
    import hmac

    calls = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: calls.append(len(a)) or real(a, b))
    found = ApiKeys(str(keys))
    assert found.allows(f"Bearer {KEY}".encode(), None) and not found.allows(b"Bearer no", None)
    assert calls == [32] * 4


def certificate(folder):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command to make a certificate with")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key), "-out",
                    str(cert), "-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return cert, key


def test_tls_serves_and_plain_text_is_turned_away(tmp_path):
    cert, key = certificate(tmp_path)
    context = listen.tls(Settings(tls_cert_file=str(cert), tls_key_file=str(key)))

    async def body():
        async with Rig() as rig:
            import socket

            sock = socket.create_server(("127.0.0.1", 0))
            sock.setblocking(False)
            port = sock.getsockname()[1]
            await rig.app.listen(sock, context)
            trust = ssl.create_default_context(cafile=str(cert))
            for stream in (False, True):
                client = await Client.open(port, ssl=trust)
                client.send(body=rig.chat(stream))
                answer = await asyncio.wait_for(client.answer(), 5)
                assert answer.status == 200 and answer.complete
                client.close()
            plain = await Client.open(port)
            plain.writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert not (await plain.reader.read()).startswith(b"HTTP/1.1 200")
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
            old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await Client.open(port, ssl=old)
            await rig.settle()

    run(body())


def test_a_certificate_that_is_none_is_a_usage_error(tmp_path):
    path = tmp_path / "cert.pem"
    path.write_text("nothing")
    with pytest.raises(UsageError, match="--tls-cert-file: .*cert.pem"):
        listen.tls(Settings(tls_cert_file=str(path), tls_key_file=str(path)))


def test_request_ids_in_out_and_in_every_line(caplog):
    async def body():
        async with Rig(settings={"request_max_retries": 0}) as rig:
            answer = await rig.ask(rig.chat(), headers={"X-Infera-Request-Id": "mine-42"})
            assert answer.headers["x-infera-request-id"] == "mine-42"
            assert rig.engines["decode"][0].seen[-1][2]["x-infera-request-id"] == "mine-42"
            made = {(await rig.ask(rig.chat())).headers["x-infera-request-id"] for _ in range(5)}
            assert len(made) == 5
            for odd in ("a" * 200, "a b", "\xe9", "{x}"):
                answer = await rig.ask(rig.chat(), headers={"X-Infera-Request-Id": odd})
                assert answer.headers["x-infera-request-id"] != odd
            with caplog.at_level(logging.INFO):
                answer = await rig.ask(rig.chat(fault={"decode": "status:500"}), headers={"X-Infera-Request-Id": "find-me"})
            assert answer.status == 500 and answer.headers["x-infera-request-id"] == "find-me"
            lines = [record for record in caplog.records if record.name.startswith("infera_router.pd")]
            assert lines and all(record.request_id == "find-me" for record in lines)
            for path in ("/health", "/v1/models", "/nothing"):
                answer = await rig.ask(None, path, "GET", {"X-Infera-Request-Id": "mine-43"})
                assert answer.headers["x-infera-request-id"] == "mine-43"

    run(body())


def test_clients_see_no_address_no_path_and_no_exception():
    async def body():
        async with Rig(settings={"request_max_retries": 0}) as rig:
            for leg in ("prefill", "decode"):
                for fault in ("status:500", "reset", "close", "halfhead", "garbage", "event:500"):
                    for stream in (False, True):
                        answer = await rig.ask(rig.chat(stream, {leg: fault, "prefill" if leg == "decode" else "decode": "ok"}))
                        text = (str(answer.headers) + answer.body.decode()).lower()
                        assert "127.0.0.1" not in text and "traceback" not in text and ".py" not in text, (leg, fault, text)
                        assert answer.status >= 500 or answer.complete
                        assert "made-up" not in answer.headers.get("server", "")
            await rig.engines["prefill"][0].stop()
            answer = await rig.ask(rig.chat())
            assert answer.status == 502 and "127.0.0.1" not in answer.body.decode() and "refused" not in answer.body.decode().lower()

    run(body())


def test_sockets_have_no_delay():
    async def body():
        import socket

        async with Rig() as rig:
            client = await rig.client()
            client.send(body=rig.chat())
            await client.answer()
            (connection,) = rig.app.connections
            sockets = [connection.transport.get_extra_info("socket")]
            sockets += [engine.transport.get_extra_info("socket") for pool in rig.app.core.engines._pools.values() for engine in pool.idle]
            assert len(sockets) == 3
            assert all(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for sock in sockets)

    run(body())


def test_the_file_limit_is_raised():
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        assert listen.raise_file_limit() == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_json_log_lines_are_json(capsys):
    from infera_router.observe import logs

    root = logging.getLogger()
    kept, level = root.handlers[:], root.level
    try:
        logs.setup("json", "info")
        logging.getLogger("x").info("two\nlines \"quoted\"", extra=logs.extra("id-1"))
        logs.setup("text", "info")
        logging.getLogger("x").warning("two\nlines", extra=logs.extra("id-2"))
    finally:
        root.handlers[:], root.level = kept, level
    first, second = capsys.readouterr().err.strip().split("\n")
    assert json.loads(first)["request_id"] == "id-1" and json.loads(first)["message"] == "two\nlines \"quoted\""
    assert second.endswith("warning x: two\\nlines request_id=id-2")
    assert os.linesep not in second
