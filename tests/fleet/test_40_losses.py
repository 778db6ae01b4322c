"""A member of etcd and a whole host lost under load, and brought back."""
import time

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
