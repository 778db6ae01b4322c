"""The production Dockerfile of the rocm flavour, on a stand-in for the ROCm base that lies under the upstream name in a local registry.

The stand-in is Debian with the PyPI wheel of SGLang 0.5.22: it has the sources that the patches are for, and no ROCm. So everything is real but the
base and the Mooncake compile, which needs ROCm; MOONCAKE_STAGE=prebuilt takes its place.
"""
import json
import shutil
import subprocess

import pytest
from patches import sources

from builds.support import NAMESPACE, ROOT, docker, play

pytestmark = pytest.mark.slow
UPSTREAM = "lmsysorg/sglang-rocm:v0.5.22-rocm720-mi35x-20261018"


def message(done):
    """The line of the one failed task."""
    return " ".join(line for line in done.stdout.splitlines() if "msg:" in line or "fatal:" in line or "[ERROR]" in line)


@pytest.fixture(scope="module")
def base(registry, tmp_path_factory):
    """The stand-in, pushed under the upstream name and gone from this machine."""
    context = tmp_path_factory.mktemp("standin")
    shutil.copy(sources.wheel("sglang", "0.5.22"), context)
    debian = docker("images", "--format", "{{.Repository}}:{{.Tag}}", "infera/base").splitlines()[0]
    (context / "Dockerfile").write_text(
        f"FROM {debian}\nLABEL infera.serving.image= infera.test=standin\nENV PATH=/opt/venv/bin:$PATH\nCOPY *.whl /tmp/\n"
        "RUN python3 -m venv /opt/venv && pip -q install --no-index --no-deps --no-compile /tmp/*.whl && rm /tmp/*.whl\n")
    name = f"{registry}/{UPSTREAM}"
    docker("build", "-q", "-t", name, str(context))
    docker("push", "-q", name)
    docker("rmi", name)
    yield name
    docker("rmi", name, check=False)


@pytest.fixture(scope="module")
def mooncake():
    return str(sources.wheel("mooncake-transfer-engine-rocm", "0.3.13.post1"))


def test_without_the_base_one_line_says_what_is_missing(tmp_path):
    done = subprocess.run(["make", "image", "FLAVOUR=rocm", f"ARGS=-t image -e image_base=127.0.0.1:9/{UPSTREAM} -e image_namespace={NAMESPACE}"],
                          cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    line = message(done)
    assert f"image_base '127.0.0.1:9/{UPSTREAM}' is not on localhost and cannot be pulled" in done.stdout, done.stdout[-2000:]
    assert "infera_flavour cpu" in line
    assert "changed=0" in done.stdout


def test_a_mooncake_without_routing_is_refused(base, mooncake, tmp_path):
    done = play(tmp_path, infera_flavour="rocm", image_base=base, image_mooncake_stage="prebuilt", image_mooncake_prebuilt=mooncake)
    assert done.returncode != 0
    assert "locality routing" in done.stdout and "image_allow_unverified_mooncake" in done.stdout, done.stdout[-3000:]
    assert docker("images", "-q", f"{NAMESPACE}/sglang") == ""


def test_told_to_it_builds_and_the_labels_say_so(base, registry, mooncake, tmp_path):
    variables = {"infera_flavour": "rocm", "image_base": base, "image_mooncake_stage": "prebuilt", "image_mooncake_prebuilt": mooncake,
                 "image_allow_unverified_mooncake": True,
                 "image_registry": registry}
    done = play(tmp_path, **variables)
    assert done.returncode == 0, done.stdout[-3000:]
    name = docker("images", "--format", "{{.Repository}}:{{.Tag}}", f"{registry}/{NAMESPACE}/sglang")
    labels = json.loads(docker("image", "inspect", "--format", "{{json .Config.Labels}}", name))
    assert labels["mooncake"] == "unverified" and labels["infera.serving.flavour"] == "rocm" and labels["infera.serving.sglang"] == "0.5.22"
    ledger = json.loads(docker("run", "--rm", "--network", "none", "--entrypoint", "cat", name, "/usr/local/lib/infera/ledger.json"))
    assert labels["infera.serving.ledger"] == ledger["digest"] and len(ledger["digest"]) == 64
    assert name.endswith("rocm-" + labels["infera.serving.content"])
    digest = docker("image", "inspect", "--format", "{{index .RepoDigests 0}}", name)

    again = play(tmp_path, **variables)
    assert again.returncode == 0 and "changed=0" in again.stdout, again.stdout[-3000:]

    # Another build host finds it in the registry and builds nothing.
    docker("rmi", name)
    pulled = play(tmp_path, **variables)
    assert pulled.returncode == 0 and "Build the engine image" not in pulled.stdout, pulled.stdout[-3000:]
    assert docker("image", "inspect", "--format", "{{index .RepoDigests 0}}", name) == digest


def test_a_base_with_another_ledger_is_refused_unless_told_otherwise(base, mooncake, tmp_path):
    """The 0.5.22 sources where 0.5.23's are expected: one patch is baked there, and already upstream here."""
    variables = {"infera_flavour": "rocm", "image_base": base, "image_mooncake_stage": "prebuilt", "image_mooncake_prebuilt": mooncake,
                 "image_allow_unverified_mooncake": True,
                 "image_expected_ledger": "0.5.23"}
    done = play(tmp_path, **variables)
    assert done.returncode != 0
    assert "decode-radix-spec" in done.stdout and "image_allow_other_ledger: true" in done.stdout, done.stdout[-3000:]
    done = play(tmp_path, image_allow_other_ledger=True, **variables)
    assert done.returncode == 0, done.stdout[-3000:]
