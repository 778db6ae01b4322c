"""Down: logs first, nothing left, twice is fine."""
from fleet import lab


def test_down_leaves_nothing_but_logs(deployment):
    names, record = deployment.containers(), deployment.runs / "fleet"
    code, out = deployment.play("playbooks/down.yml")
    assert "left as they are" in out
    assert deployment.identities() == {}
    for host in lab.HOSTS:
        for what in (["container", "ls", "-aq"], ["volume", "ls", "-q"], ["network", "ls", "-q"]):
            assert lab.on(host, "docker", *what, "--filter", "label=infera.serving.deployment=fleet").strip() == "", (host, what)
        assert lab.on(host, "sh", "-c", "ls /var/lib/infera 2>/dev/null || true").strip() == ""
    logs = {path.stem for path in (record / "logs").rglob("*.log")}
    assert set(names) <= logs
    newest = max((record / "logs").iterdir())
    assert "infera-engine" in (newest / "fleet-prefill-0.log").read_text()


def test_down_again_is_fine(deployment):
    code, out = deployment.play("playbooks/down.yml", check=False)
    assert code == 0 and "no container was there" in out
