"""The Docker engine stops and starts again: the deployment comes back by its restart policies, with no manual step."""
import os
import pathlib
import signal
import subprocess

import docker
import pytest
import requests
from e2e import support

OURS = pathlib.Path("/run/infera-dockerd.pid")


def answers(path="/_ping"):
    try:
        return docker.from_env(timeout=5).ping()
    except (docker.errors.DockerException, requests.RequestException):
        return False


@pytest.mark.parametrize("survive", [True, False], ids=["containers survive", "containers end too"])
def test_back_after_a_docker_restart(deployment, survive):
    """Here without systemd: SIGTERM to the dockerd that the deployment itself started, then the same command again."""
    if not OURS.exists():
        pytest.skip(f"{OURS} is not there: this dockerd was not started by the deployment, so others may depend on it")
    pid = int(OURS.read_text())
    command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
    pids = {name: deployment.container(name).attrs["State"]["Pid"] for name in deployment.identities()}
    os.kill(pid, signal.SIGTERM)
    support.wait("dockerd's end", 120, lambda: not pathlib.Path(f"/proc/{pid}").exists())
    if not survive:
        for one in pids.values():
            if pathlib.Path(f"/proc/{one}").exists():
                os.kill(one, signal.SIGKILL)
    subprocess.Popen(["setsid", "--fork", *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    support.wait("dockerd", 60, answers)
    print(f"serving again after {deployment.wait_serving(300):.0f} s")
    assert set(deployment.identities()) == set(pids)
    support.wait("both workers", 60, lambda: sorted(w["disagg_mode"] for w in deployment.workers()) == ["decode", "prefill"])
