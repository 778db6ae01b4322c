"""A rollout where a role has one worker: it says beforehand what will be away and for how long, and refuses."""
from e2e import support


def test_an_outage_is_refused_unless_allowed(deployment):
    before = deployment.identities()
    code, output = support.play("playbooks/rollout.yml", "-e", "rollout_all=true", check=False)
    assert code != 0 and "rollout_allow_outage" in output, output[-3000:]
    for role in ("prefill", "decode"):
        name = deployment.names(role)[0]
        assert any(f"{name} is its only worker" in line and "503 for at most" in line for line in output.splitlines()), output[-3000:]
    assert support.changed(output) == 0 and deployment.identities() == before


def test_nothing_to_roll_changes_nothing(deployment):
    before = deployment.identities()
    _code, output = support.play("playbooks/rollout.yml", "-e", "site_smoke=false")
    assert "no engine differs from its plan" in output and support.changed(output) == 0, output[-3000:]
    assert deployment.identities() == before
