"""The same deployment with the second prefill and the second decode taken away: 1P1D, whose roles have one worker each."""
import pytest
from fleet.load import Streams


@pytest.fixture(scope="module")
def one_of_each(deployment):
    deployment.before = deployment.identities()
    deployment.values.update(prefill_workers=1, decode_workers=1, DECODE_REQUEST_WEIGHT=1000000)
    deployment.play("site.yml")
    return deployment


def test_the_surplus_is_drained_and_gone(one_of_each):
    assert sorted(one_of_each.containers("prefill")) == ["fleet-prefill-0"] and sorted(one_of_each.containers("decode")) == ["fleet-decode-0"]
    assert set(one_of_each.identities()) == set(one_of_each.containers())
    assert sorted(one_of_each.workers().values()) == ["active"] * 2
    assert one_of_each.record["weight"] == 1000000 and one_of_each.serves()
    # decode-0 was the second engine of its host and is the first one now, on the first one's ports.
    after = one_of_each.identities()
    assert {name for name in after if after[name] == one_of_each.before[name]} == {name for name in after if "-etcd-" in name} | {"fleet-prefill-0"}


def test_a_rollout_that_takes_a_role_away_asks_first(one_of_each):
    before = one_of_each.identities()
    code, out = one_of_each.play("playbooks/rollout.yml", "-e", "rollout_all=true", check=False)
    assert code != 0 and "rollout_allow_outage" in out
    assert one_of_each.identities() == before


def test_with_leave_no_accepted_request_is_cut(one_of_each):
    before = one_of_each.identities()
    with Streams(one_of_each.url, lanes=2) as streams:
        one_of_each.play("playbooks/rollout.yml", "-e", "rollout_all=true", "-e", "rollout_allow_outage=true")
    print(dict(streams.outcomes))
    assert set(streams.outcomes) <= {"ok", "503"} and streams.outcomes["503"] > 0
    after = one_of_each.identities()
    assert {name for name in after if after[name] != before[name]} == {"fleet-prefill-0", "fleet-decode-0"}
