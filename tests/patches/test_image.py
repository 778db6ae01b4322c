"""The cpu image: built by the same applier, patched where it counts, and serving. Needs Docker and the image (`make image`); real engines, minutes."""
import json
import os
import pathlib
import subprocess

import pytest

from patches import sources
from patches.test_behaviour import check_responses
from patches.test_break import FILES
from patches.test_ledger import EXPECTED
from patches.test_module import call

pytestmark = pytest.mark.engine
HERE = pathlib.Path(__file__).parent
PAGE = (sources.ROOT / "images" / "sglang" / "patches" / "STATUS.md").read_text()


def docker(*argv, check=True, limit=120):
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=limit)
    assert not check or done.returncode == 0, f"docker {argv[0]}: {done.stderr[-2000:]}"
    return done


def python(image, script, *argv, limit=120):
    """Run a script of this folder in a container of the image, without a network: the finished process."""
    name = docker("create", "--init", "--network", "none", "--user", "0", "--env", "SGLANG_USE_CPU_ENGINE=1", "--entrypoint", "python3",
                  image, "-B", f"/{script}", *argv).stdout.strip()
    try:
        docker("cp", str(HERE / script), f"{name}:/{script}")
        return docker("start", "--attach", name, check=False, limit=limit)
    finally:
        docker("rm", "--force", name)


@pytest.fixture(scope="module")
def image():
    """The newest cpu image of this checkout's machine."""
    listed = docker("image", "ls", "--filter", "label=infera.serving.image=sglang", "--filter", "label=infera.serving.flavour=cpu",
                    "--filter", "label=infera.serving.ledger", "--format", "{{.Repository}}:{{.Tag}}").stdout.split()
    tagged = [name for name in listed if "/sglang:cpu-" in name]
    if not tagged:
        pytest.skip("no infera/sglang:cpu-* image here: make image FLAVOUR=cpu")
    return tagged[0]


@pytest.fixture(scope="module")
def stock(image, tmp_path_factory):
    """The same image with the wheel's own files in place of the patched ones, and another user than root."""
    context, name = tmp_path_factory.mktemp("stock"), f"infera-test/sglang-stock:{os.getpid()}"
    package = sources.unpacked("sglang", "0.5.22") / "sglang"
    for file in FILES:
        target = context / "sglang" / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((package / file).read_bytes())
    where = docker("run", "--rm", "--network", "none", "--entrypoint", "python3", image, "-c",
                   "import importlib.util; print(list(importlib.util.find_spec('sglang').submodule_search_locations)[0])").stdout.strip()
    (context / "Dockerfile").write_text(f"FROM {image}\nCOPY sglang/ {where}/\nLABEL infera.serving.ledger=none\nUSER 1000\n")
    docker("build", "--quiet", "--network", "none", "--tag", name, str(context), limit=300)
    yield name
    docker("image", "rm", "--force", name, check=False)


def labels(image):
    return json.loads(docker("image", "inspect", "--format", "{{json .Config.Labels}}", image).stdout)


def test_the_image_has_the_ledger_of_the_page(image):
    found = labels(image)
    assert f"wheel 0.5.22 `{found['infera.serving.ledger']}`" in PAGE
    ledger = json.loads(docker("run", "--rm", "--network", "none", "--entrypoint", "cat", image, "/usr/local/lib/infera/ledger.json").stdout)
    assert ledger["digest"] == found["infera.serving.ledger"]
    assert {row["name"]: row["status"] for row in ledger["ledger"]} == EXPECTED["0.5.22"]
    again = docker("run", "--rm", "--network", "none", "--entrypoint", "python3", image, "/usr/local/lib/infera/patches/apply.py", "--check", check=False)
    assert again.returncode == 0 and "nothing would change" in again.stdout, again.stdout


def test_the_responses_stream_of_the_image(image, stock):
    """The same scripted streams as on the wheels, with the image's own files and Python."""
    runs = {name: python(one, "responses_stream.py", limit=300) for name, one in (("stock", stock), ("patched", image))}
    assert all(done.stdout for done in runs.values()), [done.stderr[-2000:] for done in runs.values()]
    check_responses({name: (done.returncode, json.loads(done.stdout)) for name, done in runs.items()})


def test_a_running_site_is_patched_by_a_derived_layer(image, stock, tmp_path):
    name = f"infera-test/sglang-derived:{os.getpid()}"
    layer = {"image": stock, "tag": name, "state": "applied", "expect": "0.5.22"}
    try:
        reported, foreseen, derived, again, untagged = call(
            tmp_path, ({"image": stock}, False), (layer, True), (layer, False), (layer, False), ({**layer, "image": name, "tag": name + "b"}, False))
        assert {row["name"] for row in reported["ledger"] if row["changed"]} == {row for row, status in EXPECTED["0.5.22"].items() if status == "baked"}
        assert not reported["changed"] and foreseen["changed"] and "image" not in foreseen and foreseen["diff"]["prepared"].count("\n+++ b/") == len(FILES)
        assert derived["changed"] and not again["changed"] and derived["image"] == again["image"]
        found = labels(name)
        assert found["infera.serving.ledger"] == labels(image)["infera.serving.ledger"] == derived["digest"]
        assert found["infera.serving.patched_from"] == reported["image"]
        assert docker("image", "inspect", "--format", "{{.Config.User}}", name).stdout.strip() == "1000"
        assert untagged["changed"] and untagged["image"] == derived["image"], "nothing to patch: the name alone"
        (clean,) = call(tmp_path, ({"image": name}, False))
        assert not [row for row in clean["ledger"] if row["changed"]]
        assert docker("ps", "--all", "--quiet", "--filter", f"ancestor={stock}").stdout == "", "no container is left"
    finally:
        docker("image", "rm", "--force", name, name + "b", check=False)


def test_an_image_that_is_not_here(tmp_path):
    (result,) = call(tmp_path, ({"image": "infera-test/none:1"}, False))
    assert result["failed"] and result["msg"] == "image infera-test/none:1 is not on this host: pull or load it first"


@pytest.fixture(scope="module")
def served(image, stock):
    """What one prefill and one decode answer: patched, stock, and patched with two pipeline stages; one pair after the other."""
    pairs = {"patched": (image,), "stock": (stock,), "pipeline": (image, "pipeline")}
    runs = {name: python(one, "engine_pair.py", *argv, limit=560) for name, (one, *argv) in pairs.items()}
    for name, done in runs.items():
        assert done.returncode == 0, f"{name}: {done.stderr[-3000:]}"
    return {name: json.loads(done.stdout) for name, done in runs.items()}


def test_pd_answers_are_unchanged_token_for_token(served):
    patched, stock, pipeline = served["patched"], served["stock"], served["pipeline"]
    assert patched["prompt_tokens"] == stock["prompt_tokens"] and max(patched["prompt_tokens"]) > 3 * 64, "a prompt of several chunks"
    assert patched["tokens"] == stock["tokens"] == pipeline["tokens"] and all(len(tokens) == 24 for tokens in patched["tokens"])


def test_the_live_prefill_records_an_event_for_each_chunk(served):
    """The overlap scheduler sends from the one site; pipeline stages, each for its own layers, from the other; stock records nothing."""
    chunks = sum(-(-tokens // 64) - 1 for tokens in served["patched"]["prompt_tokens"])
    assert chunks >= 3
    for name, site, count in (("patched", "process_batch_result_disagg_prefill", chunks), ("pipeline", "process_prefill_chunk", 2 * chunks)):
        assert served[name]["events"].count(site) == count, name
    assert not {"process_prefill_chunk", "process_batch_result_disagg_prefill"} & set(served["stock"]["events"])


def test_a_required_tool_on_the_live_engine(served):
    """The random model's arguments are noise, and cut at the token limit: what shows here is that deltas, done event and final item agree."""
    for name in ("patched", "pipeline"):
        seen = served[name]["responses"]
        assert seen["deltas"] and [seen["deltas"]] == seen["done"] == seen["final"], seen
