"""Up from outside over ssh as a user with sudo, again, and what is there then."""
import json
import re
import stat

from fleet import lab
from fleet.deployment import changed, recap


def test_up_and_smoke(hosts, deployment):
    """The fixture brought it up; site.yml ends with the smoke, whose result lies beside the record."""
    smoke = json.loads((deployment.runs / "fleet" / "smoke.json").read_text())
    assert smoke["counts"]["fail"] == 0, smoke
    assert sorted(deployment.workers().values()) == ["active"] * 4
    assert set(deployment.containers("prefill").values()) == set(deployment.containers("decode").values()) == {"fleet-a", "fleet-b"}


def test_the_record_is_on_the_routers_host_and_here_for_the_owner_only(deployment):
    there = json.loads(lab.on("fleet-c", "cat", "/var/lib/infera/fleet/run.json"))
    assert there == deployment.record
    assert stat.S_IMODE((deployment.runs / "fleet" / "run.json").stat().st_mode) == 0o600
    assert lab.on("fleet-c", "stat", "-c", "%a", "/var/lib/infera/fleet/run.json").strip() == "600"
    images = {c["name"]: c["image_digest"] for c in there["containers"]}
    engines = {images[name] for role in ("prefill", "decode") for name in deployment.containers(role)}
    assert len(engines) == 1 and all("sha256:" in digest for digest in images.values()), images


def test_everything_listens_on_the_fleets_address_only(deployment):
    """Mooncake's own sockets and SGLang's internal ones are theirs; no port of the plan is open to every network."""
    for container in deployment.record["containers"]:
        host, ports = container["host"], set(container["ports"].values())
        lines = [line.split()[3] for line in lab.on(host, "ss", "-Hltn").splitlines()]
        addresses = {line.rpartition(":")[0] for line in lines if int(line.rpartition(":")[2]) in ports}
        assert addresses and addresses <= {lab.HOSTS[host]}, (container["name"], addresses)


def test_again_changes_and_restarts_nothing(deployment):
    before = deployment.identities()
    _, out = deployment.play("site.yml")
    assert changed(out) == {} and set(recap(out)) >= set(lab.HOSTS)
    assert deployment.identities() == before and len(before) == 8


def test_check_mode_finds_nothing_to_do(deployment):
    before = deployment.identities()
    _, out = deployment.play("site.yml", "--check", "--diff")
    assert changed(out) == {}
    assert deployment.identities() == before


def test_status_names_every_worker(deployment):
    _, out = deployment.play("playbooks/status.yml")
    for name in deployment.containers():
        assert re.search(rf"{name}\s", out), name


def test_a_bad_value_is_refused_before_any_host_is_touched(deployment):
    before = deployment.identities()
    code, out = deployment.play("site.yml", "-e", "prefill_gpus=3", "-e", "engine_port_step=10", check=False)
    assert code != 0 and "engine_port_step" in out and not any(counts.get("changed") for counts in recap(out).values())
    assert deployment.identities() == before
