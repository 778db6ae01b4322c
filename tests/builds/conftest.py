import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from builds.support import NAMESPACE, ROOT, docker


@pytest.fixture(autouse=True, scope="session")
def leave_nothing():
    yield
    for name in docker("images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", "label=infera.serving.image").splitlines():
        if f"{NAMESPACE}/" in name:
            docker("rmi", name, check=False)


@pytest.fixture(scope="session")
def registry():
    subprocess.run(["sh", "ci/host_image.sh"], cwd=ROOT, check=True, capture_output=True, timeout=900)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    name = f"infera-test-registry-{port}"
    config = f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: /tmp/registry}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n"
    docker("run", "-d", "--name", name, "--network", "host", "--entrypoint", "sh", "infera-test/host:bookworm",
           "-c", "echo \"$0\" >/tmp/config.yml; exec docker-registry serve /tmp/config.yml", config)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=2).close()
                break
            except (urllib.error.URLError, OSError):
                assert time.monotonic() < deadline, docker("logs", name, check=False)
                time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        docker("rm", "-f", "-v", name)
