"""A second deployment on the same hosts: neither sees, stops nor names the other."""
import pytest
from fleet import lab
from fleet.deployment import Deployment


@pytest.fixture(scope="module")
def second(deployment):
    """One aggregated engine on fleet-c, with ports of its own."""
    made = Deployment("second", groups={"etcd": ["fleet-c"], "prefill": [], "decode": [], "mixed": ["fleet-c"]}, prefill_workers=0, decode_workers=0,
                      mixed_workers=1, mixed_gpus=1, router_policy="round-robin", router_session_affinity="off", decode_input_demand="off",
                      router_port=8100, etcd_client_port=2479, etcd_peer_port=2480, engine_port_base=30000)
    made.play("site.yml")
    return made


def test_two_deployments_do_not_mix(deployment, second):
    first = deployment.identities()
    assert len(second.workers()) == 1 and len(deployment.workers()) == 4
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
    clash = Deployment("clash", groups={"etcd": ["fleet-c"], "prefill": [], "decode": [], "mixed": ["fleet-c"]}, prefill_workers=0, decode_workers=0,
                       mixed_workers=1, mixed_gpus=1, router_policy="round-robin", router_session_affinity="off", decode_input_demand="off",
                       etcd_client_port=2479, etcd_peer_port=2480)
    code, out = clash.play("site.yml", check=False)
    assert code != 0 and "router_port" in out and "8000" in out
    assert clash.identities() == {} and deployment.identities() == before
