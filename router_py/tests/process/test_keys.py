"""Keys and TLS as an operator sets them up: files, a signal, several processes."""

import asyncio
import ssl
import subprocess
import tempfile
from pathlib import Path

import pytest
from fleet.etcd_server import free_ports
from process_rig import HUP, RouterProcess, Stack
from rig import Client, run

pytestmark = pytest.mark.slow


def test_keys_are_read_again_on_sighup_by_every_process():
    async def body():
        with tempfile.TemporaryDirectory() as folder:
            keys = Path(folder) / "keys"
            keys.write_text("sk-one-0123456789\n")
            keys.chmod(0o600)
            async with Stack(flags=("--workers", "2", "--api-key-file", str(keys))) as stack:
                async def statuses(key):
                    return {(await stack.ask(stack.chat(), headers={"Authorization": f"Bearer {key}"})).status for _ in range(8)}

                assert await statuses("sk-one-0123456789") == {200}
                assert await statuses("sk-two-0123456789") == {401}
                keys.write_text("sk-two-0123456789\n")
                stack.router.signal(HUP)
                for _ in range(50):
                    if await statuses("sk-two-0123456789") == {200}:
                        break
                    await asyncio.sleep(0.1)
                assert await statuses("sk-two-0123456789") == {200} and await statuses("sk-one-0123456789") == {401}
                assert "sk-" not in stack.router.text()

    run(body())


@pytest.mark.parametrize("workers", ["1", "2"])
def test_tls_is_spoken_by_every_process_and_bad_handshakes_leave_no_connection_behind(workers):
    async def body():
        with tempfile.TemporaryDirectory() as folder:
            cert, key = Path(folder) / "cert.pem", Path(folder) / "key.pem"
            await asyncio.to_thread(subprocess.run, [
                "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key), "-out", str(cert),
                "-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
            trust = ssl.create_default_context(cafile=str(cert))
            async with Stack() as stack:
                (port,) = free_ports(1)
                router = RouterProcess(stack.folder, port, "--etcd-endpoint", stack.etcd.url, "--workers", workers, "--tls-cert-file", str(cert),
                                       "--tls-key-file", str(key))
                stack.routers.append(router)
                router.start()
                while "serving; ready" not in router.text():
                    await asyncio.sleep(0.1)
                    assert router.process.poll() is None, router.text()
                for _ in range(20):
                    plain = await Client.open(port)
                    plain.writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                    try:
                        assert not (await plain.reader.read()).startswith(b"HTTP/1.1 200")
                    except ConnectionError:
                        pass
                    plain.close()
                clients = [await Client.open(port, ssl=trust) for _ in range(12)]
                for client in clients:
                    client.send(body=stack.chat(True))
                    answer = await asyncio.wait_for(client.answer(), 5)
                    assert answer.status == 200 and answer.complete
                clients[0].send("/metrics", None, "GET")
                assert "infera_client_connections 12.0" in (await clients[0].answer()).body.decode()
                for client in clients:
                    client.close()

    run(body())
