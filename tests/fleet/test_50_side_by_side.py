"""A second deployment on the same hosts: neither sees, stops nor names the other."""
import json
import pathlib
import re

import pytest
from fleet import lab
from fleet.deployment import Deployment


def make(name, **values):
    """One aggregated engine on fleet-c, with etcd ports of its own."""
    return Deployment(name, groups={"etcd": ["fleet-c"], "prefill": [], "decode": [], "mixed": ["fleet-c"]}, prefill_workers=0, decode_workers=0,
                      mixed_workers=1, mixed_gpus=1, router_policy="round-robin", router_session_affinity="off", decode_input_demand="off",
                      etcd_client_port=2479, etcd_peer_port=2480, **values)


@pytest.fixture(scope="module")
def second(deployment):
    """Its engine fails on the way up, the cause is repaired, and site.yml carries on."""
    first = deployment.identities()
    made = make("second", router_port=8100, engine_port_base=30000)
    code, out = made.play("site.yml", "-e", json.dumps({"mixed_extra_args": ["--no-such-flag"]}), check=False)
    assert code != 0 and "--no-such-flag" in out
    last = out[out.rindex("Say what failed"):]
    assert "fleet-c: Wait for the engines" in last and "run site.yml again" in last
    folder = re.search(r"Logs: (\S+)", last)[1]
    assert "--no-such-flag" in next(pathlib.Path(folder).rglob("second-mixed-0.log")).read_text()
    assert deployment.identities() == first and "second-etcd-0" in made.identities(), "what was up stays up"
    made.play("site.yml")
    return made


def test_two_deployments_do_not_mix(deployment, second):
    first = deployment.identities()
    assert len(second.workers()) == 1 and len(deployment.workers()) == len(deployment.containers("prefill")) + len(deployment.containers("decode"))
    assert not set(second.workers()) & set(deployment.workers())
    assert second.chat().status_code == deployment.chat().status_code == 200
    assert second.url != deployment.url
    _, out = second.play("playbooks/status.yml")
    assert "second-mixed-0" in out and "fleet-prefill-0" not in out
    second.play("playbooks/down.yml")
    assert second.identities() == {} and deployment.identities() == first
    assert "second" not in lab.on("fleet-c", "ls", "/var/lib/infera")
    assert deployment.serves()


def test_a_port_of_the_other_is_refused(deployment):
    before = deployment.identities()
    clash = make("clash")
    code, out = clash.play("site.yml", check=False)
    assert code != 0 and "router_port" in out and "8000" in out
    assert clash.identities() == {} and deployment.identities() == before
