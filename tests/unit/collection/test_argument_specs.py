"""Every role documents each entry point, and its defaults are those of its argument spec: names and values."""
import pathlib

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROLES = sorted(p for p in (ROOT / "roles").iterdir() if p.is_dir())


def load(path: pathlib.Path) -> dict:
    return yaml.safe_load(path.read_text()) or {} if path.exists() else {}


@pytest.mark.parametrize("role", ROLES, ids=lambda p: p.name)
def test_every_entry_point_is_described(role):
    spec = load(role / "meta" / "argument_specs.yml")["argument_specs"]
    assert "main" in spec or role.name.startswith("_"), f"{role.name} has no main entry point"
    for name, entry in spec.items():
        assert entry.get("short_description"), f"{role.name}:{name} has no short_description"
        assert entry.get("description"), f"{role.name}:{name} has no description"
        assert (role / "tasks" / f"{name}.yml").exists(), f"{role.name}:{name} has no tasks/{name}.yml"


@pytest.mark.parametrize("role", ROLES, ids=lambda p: p.name)
def test_defaults_equal_the_spec(role):
    spec = load(role / "meta" / "argument_specs.yml")["argument_specs"]
    documented = {}
    for entry in spec.values():
        for name, option in (entry.get("options") or {}).items():
            if "default" in option:
                documented[name] = option["default"]
    assert load(role / "defaults" / "main.yml") == documented
