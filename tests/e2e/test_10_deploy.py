"""`make deploy` on this machine, and again: an answer, then no change."""
import os
import stat
import time

from e2e import support


def test_deploy_answers(deployment):
    answer = deployment.chat()
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["usage"]["completion_tokens"] > 0 and body["choices"][0]["finish_reason"] in ("length", "stop")
    roles = sorted(w["disagg_mode"] for w in deployment.workers())
    assert roles == ["decode", "prefill"]


def test_record_is_private_and_complete(deployment):
    record = deployment.record
    assert stat.S_IMODE(os.stat(deployment.path).st_mode) == 0o600
    assert sorted(c["role"] for c in record["containers"]) == ["decode", "etcd", "prefill", "router"]
    for container in record["containers"]:
        seen = deployment.container(container["name"])
        assert seen.id == container["id"] and seen.labels["infera.serving.config_digest"] == container["config_digest"]
        assert not seen.attrs["HostConfig"]["Privileged"]


def test_ports_are_bound_to_the_fleet_address(deployment):
    """etcd listens on the fleet's address, not on every interface."""
    _code, listening = support.run("ss", "-Hltn")
    etcd = [line for line in listening.splitlines() if ":2379 " in line or ":2380 " in line]
    assert etcd and all("127.0.0.1:" in line for line in etcd), listening


def test_second_deploy_changes_nothing(deployment):
    before = deployment.identities()
    started = time.monotonic()
    _code, output = support.run("make", "deploy")
    print(f"second deploy: {time.monotonic() - started:.0f} s")
    assert support.changed(output) == 0, output[-3000:]
    assert deployment.identities() == before


def test_check_mode_and_tags_change_nothing(deployment):
    before = deployment.identities()
    for argv in (("site.yml", "--check", "--diff"), ("site.yml", "-t", "router")):
        _code, output = support.play(*argv)
        assert support.changed(output) == 0, output[-3000:]
    assert deployment.identities() == before


def test_installed_collection_sees_the_same_deployment(deployment, tmp_path):
    """The play of the installed tarball finds nothing to change either."""
    support.run(".venv/bin/ansible-galaxy", "collection", "build", "--force", "--output-path", str(tmp_path))
    tarball = next(tmp_path.glob("infera-serving-*.tar.gz"))
    support.run(".venv/bin/ansible-galaxy", "collection", "install", "--offline", "--no-deps", "--force", "-p", str(tmp_path / "inst"), str(tarball))
    # A folder of its own: no ansible.cfg, and nothing of the checkout but the inventory and the records.
    env = {"ANSIBLE_COLLECTIONS_PATH": f"{tmp_path / 'inst'}:{support.ROOT / '.deps'}"}
    before = deployment.identities()
    _code, output = support.play("infera.serving.site", "-e", f"infera_runs_dir={support.ROOT / 'runs'}", env=env, cwd=tmp_path)
    assert support.changed(output) == 0, output[-3000:]
    assert deployment.identities() == before


def test_status_shows_every_worker(deployment):
    _code, output = support.run("make", "status")
    for worker in deployment.workers():
        assert worker["worker_id"] in output
    assert "prefill" in output and "decode" in output
