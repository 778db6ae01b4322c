"""The etcd client against the real etcd."""

import asyncio
import shutil
import subprocess
import time

import pytest
from fleet.etcd_server import MISSING, MISSING_REASON, EtcdServer, free_ports, run
from fleet.proxy import Proxy
from infera_router.fleet.etcd import Compacted, EtcdAuthError, EtcdClient, EtcdSettings, EtcdUnavailable, LeaseNotFound


async def first_batches(client, prefix, revision, count):
    events = []
    stream = client.watch(prefix, revision)
    async for batch in stream:
        events += batch.events
        if len(events) >= count:
            await stream.aclose()
            return events


def test_keys_leases_and_transactions(shared_etcd):
    async def main():
        client = EtcdClient(EtcdSettings((shared_etcd.url,)))
        assert (await client.range("/k/")).count == 0 and await client.get("/k/a") is None
        lease = await client.grant(60)
        revision = await client.put("/k/a", b"1", lease)
        await client.put("/k/b", b"\x00\xff")
        await client.put("/k0", b"not under the prefix")
        seen = await client.range("/k/")
        assert {item.key: (item.value, item.lease) for item in seen.items} == {"/k/a": (b"1", lease), "/k/b": (b"\x00\xff", 0)}
        newest = await client.range("/k/", limit=1, newest_first=True)
        assert (newest.count, newest.items[0].key) == (2, "/k/b")
        assert await client.keepalive(lease) == 60 and 0 < await client.time_to_live(lease) <= 60
        assert not await client.delete_unchanged("/k/a", revision + 1) and await client.delete_unchanged("/k/a", revision)
        assert await client.delete("/k/b") == 1 and await client.delete("/k/b") == 0
        await client.revoke(lease)
        await client.revoke(lease)
        assert await client.keepalive(lease) <= 0 and await client.time_to_live(lease) == -1
        with pytest.raises(LeaseNotFound):
            await client.put("/k/a", b"1", lease)
        await client.close()

    run(main())


def test_a_watch_starts_at_its_revision(shared_etcd):
    async def main():
        client = EtcdClient(EtcdSettings((shared_etcd.url,)))
        await client.put("/w/a", b"1")
        revision = await client.put("/w/a", b"2")
        await client.put("/w/b", b"3")
        await client.delete("/w/a")
        events = await first_batches(client, "/w/", revision, 3)
        assert [(event.item.key, event.item.value, event.deleted) for event in events] == [
            ("/w/a", b"2", False), ("/w/b", b"3", False), ("/w/a", b"", True)]
        await client.close()

    run(main())


def test_a_watch_into_compacted_history_says_so(shared_etcd):
    async def main():
        client = EtcdClient(EtcdSettings((shared_etcd.url,)))
        revision = await client.put("/c/a", b"1")
        await client.put("/c/a", b"2")
        shared_etcd.compact()
        with pytest.raises(Compacted) as caught:
            await first_batches(client, "/c/", revision, 1)
        assert caught.value.revision > revision
        await client.close()

    run(main())


def test_one_of_three_endpoints_dead(shared_etcd):
    async def main():
        async with Proxy(shared_etcd.port) as second, Proxy(shared_etcd.port) as third:
            client = EtcdClient(EtcdSettings((f"http://127.0.0.1:{free_ports(1)[0]}", second.url, third.url)))
            await client.put("/f/a", b"1")
            assert client.endpoint == second.url, "the endpoint that answered is asked first from now on"
            await second.cut()
            await client.put("/f/a", b"2")
            assert client.endpoint == third.url
            await client.close()

    run(main())


def test_an_endpoint_that_accepts_and_stays_silent_is_left(shared_etcd):
    async def main():
        async with Proxy(shared_etcd.port) as silent:
            silent.silence()
            client = EtcdClient(EtcdSettings((silent.url, shared_etcd.url)), call_timeout=0.4)
            begin = time.monotonic()
            assert await client.put("/f/b", b"1") > 0
            assert time.monotonic() - begin < 2 and client.endpoint == shared_etcd.url
            await client.close()

    run(main())


def test_no_endpoint_answers():
    async def main():
        ports = free_ports(2)
        client = EtcdClient(EtcdSettings(tuple(f"http://127.0.0.1:{port}" for port in ports)))
        with pytest.raises(EtcdUnavailable) as caught:
            await client.range("/x/")
        assert all(str(port) in str(caught.value) for port in ports)
        with pytest.raises(EtcdUnavailable):
            await first_batches(client, "/x/", 1, 1)

    run(main())


def test_a_restart_between_two_calls_goes_unnoticed(etcd):
    """Kept connections are dead after a restart; the next call opens a new one."""

    async def main():
        client = EtcdClient(EtcdSettings((etcd.url,)))
        await client.put("/r/a", b"1")
        await asyncio.to_thread(etcd.stop)
        await asyncio.to_thread(etcd.start)
        assert (await client.get("/r/a")).value == b"1"
        await client.close()

    run(main())


def test_a_port_that_is_no_etcd_is_named(shared_etcd):
    async def main():
        async def answer(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        client = EtcdClient(EtcdSettings((f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",)))
        with pytest.raises(EtcdUnavailable, match="client port"):
            await client.range("/x/")
        server.close()

    run(main())


# ---- users

@pytest.fixture
def guarded(etcd):
    """Authentication is on: root/rootpw, and fleet/secret who may use /infera/ only."""
    for command in ("user add root:rootpw", "role add fleet", "role grant-permission fleet readwrite /infera/ --prefix=true",
                    "user add fleet:secret", "user grant-role fleet fleet", "user grant-role root root", "auth enable"):
        etcd.ctl(*command.split())
    return etcd


def test_user_and_password_and_a_token_that_is_refused(guarded, tmp_path):
    async def main():
        secret = tmp_path / "password"
        secret.write_text("secret\n")
        secret.chmod(0o600)
        client = EtcdClient(EtcdSettings((guarded.url,), user="fleet", password_file=str(secret)))
        lease = await client.grant(30)
        revision = await client.put("/infera/a", b"1", lease)
        assert await client.keepalive(lease) == 30
        assert len(await first_batches(client, "/infera/", revision, 1)) == 1
        with pytest.raises(EtcdAuthError, match="permission denied"):
            await client.put("/other/a", b"1")
        def forget_tokens():
            guarded.ctl("auth", "disable", user="root:rootpw")
            guarded.ctl("auth", "enable")

        before = client._token
        forget_tokens()
        assert (await client.get("/infera/a")).value == b"1"
        assert client._token != before
        forget_tokens()
        with pytest.raises(EtcdUnavailable, match="token"):
            await first_batches(client, "/infera/", revision, 1)
        assert len(await first_batches(client, "/infera/", revision, 1)) == 1, "the watch after that logs in anew"
        await client.close()

    run(main())


def test_a_wrong_password_and_no_user_are_told_apart(guarded, tmp_path):
    async def main():
        secret = tmp_path / "password"
        secret.write_text("wrong")
        client = EtcdClient(EtcdSettings((guarded.url,), user="fleet", password_file=str(secret)))
        with pytest.raises(EtcdAuthError, match="'fleet' was refused"):
            await client.range("/infera/")
        secret.write_text("secret")
        assert (await client.range("/infera/")).count == 0, "the file is read at every login"
        with pytest.raises(EtcdAuthError, match="user name is empty"):
            await EtcdClient(EtcdSettings((guarded.url,))).range("/infera/")
        with pytest.raises(EtcdAuthError, match="password file"):
            await EtcdClient(EtcdSettings((guarded.url,), user="fleet", password_file=str(tmp_path / "no"))).range("/infera/")

    run(main())


def test_a_user_where_authentication_is_off(shared_etcd, tmp_path):
    async def main():
        secret = tmp_path / "password"
        secret.write_text("secret")
        client = EtcdClient(EtcdSettings((shared_etcd.url,), user="fleet", password_file=str(secret)))
        assert await client.put("/infera/z", b"1") > 0

    run(main())


# ---- TLS

@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """(folder) with ca.pem, another-ca.pem, and server and client pairs signed by the first."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command to make certificates with")
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*args):
        subprocess.run(["openssl", *args], check=True, capture_output=True, cwd=folder)

    for name in ("ca", "another-ca"):
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}",
                "-days", "2")
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("server", "client"):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", f"{name}.pem", "-days", "2",
                "-extfile", "ext")
    return folder


def test_tls_with_a_client_certificate(authority, tmp_path):
    if MISSING:
        pytest.skip(MISSING_REASON)

    def path(name):
        return str(authority / name)

    async def main():
        good = EtcdClient(EtcdSettings((server.url,), path("ca.pem"), path("client.pem"), path("client.key")))
        revision = await good.put("/t/a", b"1")
        assert len(await first_batches(good, "/t/", revision, 1)) == 1
        with pytest.raises(EtcdUnavailable, match="(?i)certificate"):
            await EtcdClient(EtcdSettings((server.url,), path("another-ca.pem"), path("client.pem"), path("client.key"))).range("/t/")
        with pytest.raises(EtcdUnavailable):
            await EtcdClient(EtcdSettings((server.url,), path("ca.pem"))).range("/t/")
        await good.close()

    server = EtcdServer(tmp_path, tls=(path("ca.pem"), path("server.pem"), path("server.key"))).start()
    try:
        run(main())
    finally:
        server.kill()
