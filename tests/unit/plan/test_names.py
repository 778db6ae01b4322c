"""No variable of ours is lost because its name was mistyped; the names that we set ourselves are none of that."""
import pathlib
import re

import pytest
import yaml
from ansible_collections.infera.serving.plugins.action import plan as action
from ansible_collections.infera.serving.plugins.module_utils import plan, plan_names, plan_options

ROOT = pathlib.Path(__file__).resolve().parents[3]
OTHERS = action.role_names().union(action.PLAYBOOK_NAMES, action.HOST_NAMES)


def check(*names):
    faults = plan_options.Faults()
    return faults.lines, plan_names.check(names, plan.variable_names(), OTHERS, faults)


@pytest.mark.parametrize("name, meant", [
    ("DECODE_REQUEST_WIEGHT", "DECODE_REQUEST_WEIGHT"), ("decode_request_wieght", "decode_request_weight"), ("router_drain", "router_drain_timeout"),
    ("infera_modelpath", "infera_model_path"), ("image_registery", "image_registry"), ("etcd_client_prt", "etcd_client_port"),
    ("decod_gpus", "decode_gpus"), ("preflight_ignored", "preflight_ignore"), ("site_smok", "site_smoke"), ("rollout_allow_outages", "rollout_allow_outage"),
])
def test_a_mistyped_name_is_refused(name, meant):
    lines, notes = check(name)
    assert len(lines) == 1 and lines[0].startswith(f"{name}: unknown: did you mean {meant}?") and not notes


@pytest.mark.parametrize("name, variable", [
    ("decode_host", "infera_host_address"), ("engine_port", "engine_port_base"), ("mixed_visible_devices", "mixed_gpu_ids"),
])
def test_what_the_plan_decides_is_refused(name, variable):
    lines, _ = check(name)
    assert len(lines) == 1 and variable in lines[0]


@pytest.mark.parametrize("name", ["engine_colour", "verify", "image"])
def test_a_name_that_only_begins_like_ours_is_told(name):
    lines, notes = check(name)
    assert not lines and len(notes) == 1 and name in notes[0]


def test_known_names_and_the_weight_are_silent():
    assert check(plan_names.WEIGHT, "decode_tp_size", "image_registry", "site_smoke", *plan_names.INTERNAL) == ([], [])


def test_what_the_shipped_inventories_set_is_silent():
    names = set()

    def collect(node):
        if isinstance(node, dict):
            for key, value in node.items():
                if key in ("vars", "hosts") and isinstance(value, dict):
                    for one in [value] if key == "vars" else value.values():
                        names.update(one or {})
                collect(value)

    for path in sorted((ROOT / "inventories").rglob("*.yml")):
        tree = yaml.safe_load(path.read_text()) or {}
        if "group_vars" in path.parts or "host_vars" in path.parts:
            names.update(tree)
        else:
            collect(tree)
    known = OTHERS.union(plan.variable_names())
    ours = {name for name in names if plan_names.is_ours(name, known)}
    assert "infera_host_address" in ours and len(ours) > 10
    assert check(*ours) == ([], [])


def test_the_list_of_internal_names_is_whole():
    """Every variable that a role or playbook registers or sets, and that begins like an option."""
    text = "\n".join(path.read_text() for folder in ("roles", "playbooks") for path in sorted((ROOT / folder).rglob("*.yml"))
                     if path.parent.name not in ("meta", "defaults", "vars"))
    found = set(re.findall(r"register: (\w+)", text))
    for block in re.findall(r"ansible\.builtin\.set_fact:\n((?: {6,}.*\n|\n)+)", text):
        depth = min(len(line) - len(line.lstrip()) for line in block.splitlines() if line.strip())
        found.update(re.findall(rf"^ {{{depth}}}(\w+):", block, re.M))
    known = OTHERS.union(plan.variable_names())
    ours = {name for name in found if not name.startswith("_") and plan_names.is_ours(name, known)}
    assert len(ours) > 20 and ours <= plan_names.INTERNAL | known, ours - plan_names.INTERNAL - known


def test_every_name_that_playbooks_read_is_known():
    text = "\n".join(path.read_text() for path in sorted((ROOT / "playbooks").rglob("*.yml")))
    read = set(re.findall(r"\b((?:site|rollout|verify_image)_\w+)", text)) - {"verify_image"}
    assert read == set(action.PLAYBOOK_NAMES)
