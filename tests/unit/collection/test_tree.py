"""Rules that hold over the whole tree."""
import ast
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[3]


def tracked() -> list:
    out = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in out.decode().split("\0") if name and (ROOT / name).is_file()]


def test_no_registry_host_and_no_path_of_this_machine():
    hosts = re.compile(r"(?:pypi|pythonhosted|npmjs|debian)\.(?:org|com)|files\.python|deb\.debian", re.I)
    places = re.compile(r"(?<![\w.-])/(?:work|opt/wheels|root/\.pyenv)/")
    bad = []
    for path in tracked():
        if path.name in ("LICENSE", "test_tree.py"):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if hosts.search(line) or places.search(line):
                bad.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not bad, "\n".join(bad)


def test_plugins_import_nothing_from_router_py():
    bad = []
    for path in (ROOT / "plugins").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            bad += [f"{path.relative_to(ROOT)}: {n}" for n in names if n.split(".")[0].startswith("infera_")]
    assert not bad, "\n".join(bad)


def test_modules_of_the_collection_are_in_the_action_group():
    import yaml
    runtime = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text())
    listed = set(runtime["action_groups"]["infera"])
    present = {p.stem for folder in ("modules", "action") for p in (ROOT / "plugins" / folder).glob("*.py")} - {"__init__"}
    assert listed == present
