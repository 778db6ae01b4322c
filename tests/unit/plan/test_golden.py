"""The plan of every shape, rendered through Ansible from its inventory, equals its golden file; changing that is a reviewed change."""
import importlib.util
import json
import pathlib

import pytest

spec = importlib.util.spec_from_file_location("plan_render", pathlib.Path(__file__).with_name("render.py"))
render = importlib.util.module_from_spec(spec)
spec.loader.exec_module(render)


@pytest.fixture(scope="module")
def plans():
    made = {}

    def plan(shape):
        if shape not in made:
            code, output, made[shape] = render.play(shape)
            assert code == 0, output
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
    code, output, other = render.play("1p1d", "-e", "DECODE_REQUEST_WEIGHT=250000")
    assert code == 0, output
    before = {c["name"]: c for c in plans("1p1d")["containers"]}
    differing = [c["name"] for c in other["containers"] if c != before[c["name"]]]
    assert differing == ["1p1d-router-0"] and other["weight"] == 250000


def test_an_unfilled_site_names_the_file_to_edit():
    code, output, plan = render.play("2p1d", filled=False)
    assert code != 0 and plan is None
    told = [line for line in output.splitlines() if line.lstrip().startswith("msg:")]
    assert len(told) == 1 and "192.0.2.11" in told[0], output
    assert "inventories/site/hosts.yml" in output


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
