"""`make clean` removes what the deployment made and nothing else; runs last."""
import io
import pathlib
import tarfile

import pytest
from e2e import support

FOREIGN = "e2e-foreign"


@pytest.fixture()
def foreign(deployment):
    """A container, a volume, a network and an image of somebody else."""
    engine = deployment.docker
    base = next(i for i in engine.images.list(filters={"label": "infera.serving.image=base"}))
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    engine.api.import_image_from_data(empty.getvalue(), repository="e2e-foreign/image", tag="1")
    made = [engine.volumes.create(FOREIGN), engine.networks.create(FOREIGN)]
    container = engine.containers.run(base.id, ["sleep", "900"], entrypoint="", name=FOREIGN, detach=True, network_mode="none")
    yield container
    container.remove(force=True)
    for one in made:
        one.remove()
    engine.images.remove("e2e-foreign/image:1")


def listening():
    _code, out = support.run("ss", "-Hltn")
    return {line.split()[3].rsplit(":", 1)[1] for line in out.splitlines()}


def ours(engine):
    """{image id: tags} of the images that carry our label, but the base."""
    return {i.id: i.tags for i in engine.images.list(filters={"label": "infera.serving.image"}) if i.labels["infera.serving.image"] != "base"}


def test_clean_leaves_nothing_of_ours(deployment, foreign):
    record, engine = deployment.record, deployment.docker
    label = {"label": f"infera.serving.deployment={record['id']}"}
    ports = {str(p) for c in record["containers"] for p in c["ports"].values()}
    daemon = pathlib.Path("/etc/docker/daemon.json")
    configuration = daemon.read_text() if daemon.exists() else None
    others = {c.name: c.id for c in engine.containers.list(all=True) if c.labels.get("infera.serving.deployment") != record["id"]}
    # An image that another's container uses stays; `make clean` says so.
    used = {engine.containers.get(name).attrs["Image"] for name in others}
    assert ports & listening() and ours(engine) and FOREIGN in others
    _code, output = support.run("make", "clean")
    assert not engine.containers.list(all=True, filters=label)
    assert not engine.volumes.list(filters=label) and not engine.networks.list(filters=label)
    assert not [v for v in engine.volumes.list() if v.name.startswith(record["id"] + "-")]
    assert not {i: tags for i, tags in ours(engine).items() if i not in used}
    assert not pathlib.Path(record.get("state_dir", "/var/lib/infera"), record["id"]).exists()
    assert not ports & listening()
    assert FOREIGN in {v.name for v in engine.volumes.list()} and FOREIGN in {n.name for n in engine.networks.list()}
    assert engine.images.get("e2e-foreign/image:1") and engine.containers.get(FOREIGN).status == "running"
    assert (daemon.read_text() if daemon.exists() else None) == configuration
    assert "left as they are: distribution packages, the Docker engine, daemon.json" in output
    engine.ping()


def test_clean_twice_is_fine(deployment):
    _code, output = support.run("make", "clean")
    assert support.changed(output) == 0, output[-2000:]


def test_logs_were_kept():
    logs = list((support.ROOT / "runs" / "local").rglob("*.log"))
    assert logs and any(log.stat().st_size for log in logs), "no log was collected"
