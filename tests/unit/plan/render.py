#!/usr/bin/env python3
"""Render the plan of a shape's inventory, as infera.serving.plan makes it, and keep it as a golden file.

usage: tests/unit/plan/render.py [--write] [SHAPE ...]     --write: replace golden/SHAPE.json, to be reviewed with git diff
"""
import importlib.util
import json
import pathlib
import sys
import tempfile
import types

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SHAPES = ("local", "mix", "1p1d", "2p1d", "1p_decode4")
HOSTS = ("gpu-a", "gpu-b")
IMAGES = {"sglang": "infera/sglang:TAG", "router": "infera/router:TAG", "etcd": "infera/etcd:TAG"}


def fake_rails(folder):
    """Facts of two machines with eight ionic rails each, read from fake trees."""
    from ansible_collections.infera.serving.plugins.module_utils import rails
    spec = importlib.util.spec_from_file_location("rail_trees", HERE.parent / "rails" / "trees.py")
    trees = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(trees)
    found = {}
    for number, host in enumerate(HOSTS, 1):
        root = pathlib.Path(folder, host)
        trees.build("tree1", root, number)
        found[host] = rails.collect(str(root / "sys"), dev_root=str(root / "dev"), proc_root=str(root / "proc"), boot_root=str(root / "boot"))
    return found


def plan_of(shape, filled=True, **extra):
    """The plan that infera.serving.plan makes of an inventory; *extra* is what -e would say. Raises PlanError."""
    sys.path[:0] = [str(ROOT / ".collections"), str(ROOT / ".deps")]
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar
    from ansible.vars.hostvars import HostVars
    from ansible.vars.manager import VariableManager
    from ansible_collections.infera.serving.plugins.action.plan import ActionModule
    from ansible_collections.infera.serving.plugins.module_utils import plan

    loader = DataLoader()
    loader.set_basedir(str(ROOT))
    inventory = InventoryManager(loader, sources=[str(ROOT / "inventories" / shape)] + ([str(HERE / "filled.yml")] if filled else []))
    manager = VariableManager(loader, inventory)
    manager.extra_vars.update(extra)
    variables = manager.get_vars(host=inventory.get_hosts("router")[0])
    variables["hostvars"] = HostVars(inventory, manager, loader)
    # The action's own reading of the inventory, without a process for each shape.
    action = object.__new__(ActionModule)
    action._templar, action._loader = Templar(loader, variables=variables), loader
    with tempfile.TemporaryDirectory() as folder:
        action._task = types.SimpleNamespace(args={"images": IMAGES, "rails": {} if shape == "local" else fake_rails(folder)})
    return json.loads(json.dumps(plan.build(action._variables(variables)).as_dict()))


def golden(plan):
    """What the golden file of a plan holds: everything but the digests and the warnings."""
    plan = json.loads(json.dumps(plan))
    plan.pop("warnings")
    for container in plan["containers"]:
        container["labels"].pop("infera.serving.config_digest")
    return plan


def path(shape):
    return HERE / "golden" / f"{shape}.json"


def main(argv):
    write = "--write" in argv
    for shape in [word for word in argv if not word.startswith("-")] or SHAPES:
        text = json.dumps(golden(plan_of(shape)), indent=1, sort_keys=True) + "\n"
        if write:
            path(shape).write_text(text)
        else:
            print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
