import pytest
from fleet.etcd_server import MISSING, MISSING_REASON, EtcdServer


@pytest.fixture
def etcd(tmp_path):
    """A running etcd that the test may stop, freeze or wipe."""
    if MISSING:
        pytest.skip(MISSING_REASON)
    server = EtcdServer(tmp_path).start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def shared_etcd(tmp_path_factory):
    """One etcd for the tests of a module that leave it running."""
    if MISSING:
        pytest.skip(MISSING_REASON)
    server = EtcdServer(tmp_path_factory.mktemp("etcd")).start()
    yield server
    server.kill()
