import pytest
from engine.engine_rig import Engine
from fleet.etcd_server import MISSING, MISSING_REASON, EtcdServer


@pytest.fixture(scope="session")
def etcd(tmp_path_factory):
    if MISSING:
        pytest.skip(MISSING_REASON)
    server = EtcdServer(tmp_path_factory.mktemp("etcd")).start()
    yield server
    server.kill()


@pytest.fixture
def own_etcd(tmp_path):
    """An etcd that the test may stop or wipe."""
    if MISSING:
        pytest.skip(MISSING_REASON)
    server = EtcdServer(tmp_path).start()
    yield server
    server.kill()


@pytest.fixture
def engine(etcd, tmp_path):
    """Makes supervisors: ``engine("--disaggregation-mode", "decode", own=("--drain-timeout", "3"), ready=False)``."""
    made = []

    def make(*args, own=(), at=None, **state):
        made.append(Engine(tmp_path, at or etcd, *args, own=own, **state))
        return made[-1].start()

    yield make
    for one in made:
        one.clean()
