"""A member of etcd and a whole host lost under load, and brought back."""
import time

import pytest
from fleet import lab
from fleet.load import Streams


def test_an_etcd_member_dies_and_nothing_fails(deployment):
    name = next(name for name, host in deployment.containers("etcd").items() if host == "fleet-a")
    with Streams(deployment.url, lanes=2) as streams:
        time.sleep(5)
        lab.on("fleet-a", "docker", "kill", name)
        time.sleep(25)  # longer than two leases of 10 s
    assert not streams.failed and streams.outcomes["ok"] >= 2
    assert sorted(deployment.workers().values()) == ["active"] * 4
    deployment.play("site.yml", limit="fleet-a")
    assert name in deployment.identities(["fleet-a"])


def test_a_host_dies_the_other_serves_and_site_brings_it_back(deployment):
    lost = {address for address, status in deployment.workers().items() if address.startswith(lab.HOSTS["fleet-a"])}
    assert len(lost) == 2
    others = deployment.identities(["fleet-b", "fleet-c"])
    lab.docker("kill", lab.container("fleet-a"))
    _, took = lab.wait("the lost workers leave the fleet", 10 + 5, lambda: not lost & set(deployment.workers()))
    assert deployment.serves(), "fleet-b alone serves"
    with Streams(deployment.url, lanes=1) as streams:
        time.sleep(8)
    assert not streams.failed, streams.failed
    lab.docker("start", lab.container("fleet-a"))
    lab.ready("fleet-a")
    lab.write_known_hosts()
    deployment.play("site.yml", limit="fleet-a")
    lab.wait("all four serve", 240, lambda: sorted(deployment.workers().values()) == ["active"] * 4)
    assert deployment.identities(["fleet-b", "fleet-c"]) == others, "the others were left as they were"
    print(f"workers of a dead host leave after {took:.0f} s")


@pytest.mark.parametrize("survive", [True, False], ids=["containers survive", "containers end too"])
def test_a_hosts_docker_restarts_and_its_engines_are_back_by_themselves(deployment, survive):
    """By systemd, without a playbook: with live-restore containers go on; where they ended too, their restart policies start them again."""
    names = sorted(deployment.identities(["fleet-b"]))
    started = deployment.identities(["fleet-b"])
    pids = lab.on("fleet-b", "docker", "inspect", "--format", "{{.State.Pid}}", *names).split()
    lab.on("fleet-b", "systemctl", "stop", "docker.socket", "docker")
    if not survive:
        lab.on("fleet-b", "kill", "-KILL", *pids)
    lab.on("fleet-b", "systemctl", "start", "docker")
    _, took = lab.wait("the host's containers run", 60, lambda: sorted(deployment.identities(["fleet-b"])) == names)
    if survive:
        assert deployment.identities(["fleet-b"]) == started
    lab.wait("all four serve", 240, lambda: sorted(deployment.workers().values()) == ["active"] * 4 and deployment.serves())
    print(f"containers back after {took:.0f} s")
