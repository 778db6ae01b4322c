"""Every engine and the router replaced, one at a time, under continuous streaming load: no failed request."""
from fleet.load import Connections, Streams


def test_a_rollout_loses_no_request(deployment):
    before = deployment.identities()
    deployment.values["router_drain_timeout"] = 121  # so that the router differs, too
    with Streams(deployment.url, lanes=3) as streams, Connections(deployment.url, rate=50) as connections:
        deployment.play("playbooks/rollout.yml", "-e", "rollout_all=true")
    print(f"{streams.outcomes['ok']} streams, longest {streams.longest:.1f} s; {connections.done} connections")
    assert not streams.failed and streams.outcomes["ok"] > 10
    assert not connections.failed
    after = deployment.identities()
    assert set(after) == set(before)
    replaced = {name for name in after if after[name] != before[name]}
    assert replaced == {name for name in after if "-etcd-" not in name}
    assert sorted(deployment.workers().values()) == ["active"] * 4
