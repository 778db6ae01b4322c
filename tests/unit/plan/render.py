#!/usr/bin/env python3
"""Render the plan of a shape's inventory, through Ansible as an operator would, and keep it as a golden file.

usage: tests/unit/plan/render.py [--write] [SHAPE ...]     --write: replace golden/SHAPE.json, to be reviewed with git diff
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SHAPES = ("local", "mix", "1p1d", "2p1d", "1p_decode4")
HOSTS = ("gpu-a", "gpu-b")


def fake_rails(folder):
    """Facts of two machines with eight ionic rails each, read from fake trees."""
    sys.path[:0] = [str(ROOT / ".collections"), str(ROOT / ".deps")]
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


def play(shape, *argv, filled=True):
    """(exit code, output, plan or None) of the plan of an inventory."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "plan.json")
        variables = {"show_to": str(out)}
        if shape != "local" and filled:
            variables["show_rails"] = fake_rails(folder)
        pathlib.Path(folder, "vars.json").write_text(json.dumps(variables))
        sources = ["-i", str(ROOT / "inventories" / shape)] + (["-i", str(HERE / "filled.yml")] if filled else [])
        command = [str(pathlib.Path(sys.executable).parent / "ansible-playbook"), *sources, str(HERE / "show.yml"), "-e", f"@{folder}/vars.json", *argv]
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
                              env={**os.environ, "ANSIBLE_NOCOLOR": "1"})
        return done.returncode, done.stdout, json.loads(out.read_text()) if out.exists() else None


def golden(plan):
    """What the golden file of a plan holds: everything but the digests and what belongs to the controller."""
    plan = json.loads(json.dumps(plan))
    for name in ("runs_dir", "warnings"):
        plan.pop(name, None)
    for container in plan["containers"]:
        container["labels"].pop("infera.serving.config_digest")
    return plan


def path(shape):
    return HERE / "golden" / f"{shape}.json"


def main(argv):
    write = "--write" in argv
    for shape in [word for word in argv if not word.startswith("-")] or SHAPES:
        code, output, plan = play(shape)
        if code:
            sys.exit(output)
        text = json.dumps(golden(plan), indent=1, sort_keys=True) + "\n"
        if write:
            path(shape).write_text(text)
        else:
            print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
