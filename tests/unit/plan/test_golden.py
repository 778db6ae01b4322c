"""The plan of every shape, rendered through Ansible from its inventory, equals its golden file; changing that is a reviewed change."""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

spec = importlib.util.spec_from_file_location("plan_render", pathlib.Path(__file__).with_name("render.py"))
render = importlib.util.module_from_spec(spec)
spec.loader.exec_module(render)


@pytest.fixture(scope="module")
def plans():
    made = {}

    def plan(shape):
        if shape not in made:
            made[shape] = render.plan_of(shape)
        return made[shape]

    return plan


@pytest.mark.parametrize("shape", render.SHAPES)
def test_equals_the_golden_file(plans, shape):
    wanted = json.loads(render.path(shape).read_text())
    assert render.golden(plans(shape)) == wanted, f"`.venv/bin/python tests/unit/plan/render.py --write {shape}` writes it anew; review the difference"


@pytest.mark.parametrize("shape, gpus, ranks, weight", [("mix", 4, 4, 0), ("2p1d", 16, 8, 0), ("1p_decode4", 8, 4, 0), ("1p1d", 12, 8, 1000000)])
def test_the_published_table(plans, shape, gpus, ranks, weight):
    plan = plans(shape)
    served = [c for c in plan["containers"] if c["role"] in ("decode", "mixed")]
    assert (plan["gpus"], served[0]["ranks"], plan["weight"]) == (gpus, ranks, weight)
    router = next(c["command"] for c in plan["containers"] if c["role"] == "router")
    assert router[router.index("--decode-request-weight") + 1] == str(weight)
    demand, affinity = router[router.index("--decode-input-demand") + 1], "--session-affinity" in router
    assert (demand, affinity) == (("off", False) if shape == "mix" else ("on", True))
    for container in plan["containers"]:
        assert container["labels"]["infera.serving.role"] == container["role"]
        assert container["name"] == f"{plan['deployment']}-{container['role']}-{container['instance']}"


def test_the_eight_rails_reach_every_pd_engine(plans):
    for container in plans("2p1d")["containers"]:
        if container["role"] in ("prefill", "decode"):
            env, command = container["env"], container["command"]
            assert command[command.index("--disaggregation-ib-device") + 1] == ",".join(f"ionic_{n}" for n in range(8))
            assert (env["MC_MAX_MR_SIZE"], env["MC_ENABLE_DEST_DEVICE_AFFINITY"], env["MC_GID_INDEX"]) == ("1073741824", "1", "1")
            assert "MC_ENABLE_HCA_PEER_AFFINITY" not in env and "MC_FORCE_TCP" not in env


def test_the_weight_changes_the_router_alone(plans):
    other = render.plan_of("1p1d", DECODE_REQUEST_WEIGHT="250000")
    before = {c["name"]: c for c in plans("1p1d")["containers"]}
    differing = [c["name"] for c in other["containers"] if c != before[c["name"]]]
    assert differing == ["1p1d-router-0"] and other["weight"] == 250000


def test_an_unfilled_site_names_the_file_to_edit():
    """As typed: ansible.cfg's default inventory is 1p1d."""
    done = subprocess.run([str(pathlib.Path(sys.executable).parent / "ansible-playbook"), "site.yml", "-l", "mi355x"], cwd=render.ROOT, timeout=120,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "ANSIBLE_NOCOLOR": "1"})
    faults = [line for line in done.stdout.splitlines() if line.startswith("[ERROR]")]
    assert done.returncode != 0 and len(faults) == 1, done.stdout
    assert "192.0.2.11" in faults[0] and "inventories/site/hosts.yml" in faults[0]
    assert "changed=0" in done.stdout and "unreachable=0" in done.stdout, done.stdout


def test_every_shape_uses_the_one_site_file():
    for shape in render.SHAPES[1:]:
        folder = render.ROOT / "inventories" / shape
        assert (folder / "00-site.yml").resolve() == render.ROOT / "inventories" / "site" / "hosts.yml"
        assert (folder / "group_vars" / "all" / "00-site").resolve() == render.ROOT / "inventories" / "site" / "group_vars" / "all"


def test_a_record_of_every_plan_fits_the_schema(plans):
    import jsonschema
    from ansible_collections.infera.serving.plugins.module_utils import run_record
    for shape in render.SHAPES:
        plan = plans(shape)
        facts = {c["name"]: {"id": "ab" * 32, "image_digest": "sha256:" + "0" * 64, "started_at": "1"} for c in plan["containers"]}
        record = run_record.build(plan, facts, {"infera.serving": "0.1.0"}, "2026-12-01T00:00:00Z")
        jsonschema.Draft202012Validator(run_record.SCHEMA).validate(json.loads(json.dumps(record)))
        assert run_record.validate(record) == []
