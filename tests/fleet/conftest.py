"""One fleet and one deployment for all of it, in the order of the files; ci runs it as the stage `fleet`.

INFERA_FLEET_KEEP=1 keeps the hosts afterwards, and uses those that are there. INFERA_FLEET_RANKS=1 makes engines of one rank, for a slow machine.
"""
import os

import pytest
from fleet import lab
from fleet.deployment import Deployment

KEEP = bool(os.environ.get("INFERA_FLEET_KEEP"))


def pytest_collection_modifyitems(items):
    for item in items:
        if "/tests/fleet/" in str(item.fspath):
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def hosts():
    if not (KEEP and lab.exists()):
        lab.up()
    yield lab
    if not KEEP:
        lab.down()


@pytest.fixture(scope="session")
def deployment(hosts):
    """Two prefills and two decodes; brought up where it does not run yet."""
    ranks = int(os.environ.get("INFERA_FLEET_RANKS", "2"))
    found = Deployment(prefill_gpus=ranks, decode_gpus=ranks)
    if not (found.runs / found.name / "run.json").exists():
        found.play("site.yml")
    return found
