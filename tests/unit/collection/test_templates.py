"""Every Jinja template compiles with Ansible's own environment."""
import pathlib

import jinja2
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
TEMPLATES = sorted((ROOT / "roles").rglob("*.j2"))


@pytest.mark.parametrize("path", TEMPLATES or [None], ids=lambda p: p.name if p else "none")
def test_template_compiles(path):
    if path is None:
        assert not list((ROOT / "roles").rglob("templates/*")), "a template without the ending .j2"
        return
    environment = jinja2.Environment(extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"])
    environment.parse(path.read_text())
