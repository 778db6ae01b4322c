"""DECODE_REQUEST_WEIGHT changed under streaming load and 200 new connections a second."""
from fleet.load import Connections, Streams


def test_the_weight_changes_and_no_request_notices(deployment):
    before = deployment.identities()
    with Streams(deployment.url, lanes=2) as streams, Connections(deployment.url) as connections:
        deployment.play("playbooks/weight.yml", "-e", "DECODE_REQUEST_WEIGHT=1000")
    print(f"{connections.done} connections in {connections.seconds:.0f} s, {streams.outcomes['ok']} streams, longest {streams.longest:.1f} s")
    assert not connections.failed and connections.done > 100
    assert not streams.failed and streams.outcomes["ok"] >= 2
    after = deployment.identities()
    assert {name for name in after if before.get(name) != after[name]} == {name for name in after if "-router-" in name}
    deployment.values["DECODE_REQUEST_WEIGHT"] = 1000  # as the operator writes it down now
    assert deployment.record["weight"] == 1000
    assert list(deployment.metric("infera_router_decode_request_weight").values()) == [1000]


def test_the_command_line_must_not_contradict_the_inventory(deployment):
    before = deployment.identities()
    deployment.values["decode_request_weight"] = 5
    try:
        code, out = deployment.play("playbooks/weight.yml", "-e", "DECODE_REQUEST_WEIGHT=7", check=False)
    finally:
        del deployment.values["decode_request_weight"]
    assert code != 0 and "5" in out and "7" in out and "decode_request_weight" in out
    assert deployment.identities() == before
