"""The Debian base, where Debian's image can be pulled: here from a local registry that holds our own under that name."""

import pytest

from builds.support import NAMESPACE, docker, play

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def debian(registry):
    """Our own bootstrapped base, pushed under the name of Debian's image and gone from this machine under that name."""
    name = f"{registry}/debian:bookworm-slim"
    docker("tag", docker("images", "--format", "{{.Repository}}:{{.Tag}}", "infera/base").splitlines()[0], name)
    docker("push", "-q", name)
    docker("rmi", name)
    return name


def test_the_base_is_built_upon_it_and_its_name_dropped(debian, tmp_path):
    variables = {"infera_flavour": "cpu", "image_names": ["etcd"], "image_etcd_source": "debian", "image_debian_image": debian, "image_base_date": "test"}
    done = play(tmp_path, **variables)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "Bootstrap Debian" not in done.stdout
    assert docker("images", "-q", debian) == ""
    name = docker("images", "--format", "{{.Repository}}:{{.Tag}}", f"{NAMESPACE}/etcd")
    assert "etcd Version: 3.4" in docker("run", "--rm", "--network", "none", name, "etcd", "--version")
    # what the router's and the engine's build need of the base
    assert "pip" in docker("run", "--rm", "--network", "none", name, "sh", "-c", "python3 -m venv /tmp/v && /tmp/v/bin/pip --version && ip -V >&2")
    again = play(tmp_path, **variables)
    assert again.returncode == 0 and "changed=0" in again.stdout, again.stdout[-3000:]
