"""`make clean` removes what the deployment made and nothing else; runs last."""
import pathlib

import pytest
from e2e import support

FOREIGN = "e2e-foreign"


@pytest.fixture()
def foreign(deployment):
    """A container, a volume, a network and an image tag of somebody else."""
    engine = deployment.docker
    image = deployment.record["containers"][0]["image"]
    engine.images.get(image).tag("e2e-foreign/image", "1")
    made = [engine.volumes.create(FOREIGN), engine.networks.create(FOREIGN)]
    container = engine.containers.run(image, ["sleep", "600"], entrypoint="", name=FOREIGN, detach=True, network_mode="none")
    yield container
    container.remove(force=True)
    for one in made:
        one.remove()
    engine.images.remove("e2e-foreign/image:1")


def listening():
    _code, out = support.run("ss", "-Hltn")
    return {line.split()[3].rsplit(":", 1)[1] for line in out.splitlines()}


def test_clean_leaves_nothing_of_ours(deployment, foreign):
    record = deployment.record
    engine = deployment.docker
    ports = {str(p) for c in record["containers"] for p in c["ports"].values()}
    label = {"label": f"infera.serving.deployment={record['id']}"}
    daemon = pathlib.Path("/etc/docker/daemon.json")
    configuration = daemon.read_text() if daemon.exists() else None
    assert ports & listening()
    support.run("make", "clean")
    assert not engine.containers.list(all=True, filters=label)
    assert not engine.volumes.list(filters=label) and not engine.networks.list(filters=label)
    assert not [v for v in engine.volumes.list() if v.name.startswith(record["id"] + "-")]
    assert not engine.images.list(filters={"label": "infera.serving.image"})
    assert not pathlib.Path(record.get("state_dir", "/var/lib/infera"), record["id"]).exists()
    assert not ports & listening()
    assert engine.containers.get(FOREIGN).status == "running" and engine.volumes.get(FOREIGN) and engine.networks.list(names=[FOREIGN])
    assert (daemon.read_text() if daemon.exists() else None) == configuration
    engine.ping()


def test_clean_twice_is_fine(deployment):
    _code, output = support.run("make", "clean")
    assert support.changed(output) == 0, output[-2000:]


def test_logs_were_kept():
    logs = list((support.ROOT / "runs" / "local").rglob("*.log"))
    assert logs and any(log.stat().st_size for log in logs), "no log was collected"
