"""One real deployment on this machine, shared by every end-to-end test. test_10 brings it up, test_90 takes it down."""
import pytest
from e2e import support


def pytest_collection_modifyitems(items):
    for item in items:
        if "/e2e/" in str(item.fspath):
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def deployment():
    """The deployment, brought up where it does not run yet."""
    found = support.Deployment()
    if not found.path.exists():
        support.run("make", "deploy", limit=1500)
    return found
