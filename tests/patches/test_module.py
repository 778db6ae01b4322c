"""infera.serving.sglang_patches through Ansible, on a copy of the real sources: report, check, diff, apply, again, refusals."""
import json
import os
import subprocess
import sys

import pytest

from patches import sources
from patches.conftest import contents
from patches.test_break import copied, done  # noqa: F401

PLAY = """
- hosts: localhost
  gather_facts: false
  tasks:
    - infera.serving.sglang_patches: {}
      args: "{{ item.arguments }}"
      check_mode: "{{ item.check }}"
      diff: "{{ item.check }}"
      loop: "{{ calls }}"
      register: called
      ignore_errors: true
    - ansible.builtin.copy:
        content: "{{ called.results | to_json }}"
        dest: "{{ results }}"
        mode: "0644"
"""


def call(tmp_path, *calls):
    """Run the module once for each (arguments, check mode); returns the results."""
    (tmp_path / "play.yml").write_text(PLAY)
    variables = {"calls": [{"arguments": arguments, "check": check} for arguments, check in calls], "results": str(tmp_path / "results.json"),
                 "ansible_python_interpreter": sys.executable}
    finished = subprocess.run([os.path.join(os.path.dirname(sys.executable), "ansible-playbook"), "-i", "localhost,", "-c", "local",
                               "-e", json.dumps(variables), str(tmp_path / "play.yml")],
                              cwd=sources.ROOT, env={**os.environ, "ANSIBLE_CONFIG": str(sources.ROOT / "ansible.cfg")}, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    return json.loads((tmp_path / "results.json").read_text())


@pytest.fixture
def site(tmp_path):
    return copied(tmp_path)


def test_report_check_apply_again(site, done, tmp_path):  # noqa: F811
    before = contents(site)
    apply = {"site_packages": str(site), "state": "applied", "expect": "0.5.22", "python": sys.executable}
    reported, foreseen = call(tmp_path, ({"site_packages": str(site)}, False), (apply, True))
    assert not reported["changed"] and reported["differences"] == [] and "diff" not in reported
    assert {row["name"]: row["changed"] for row in reported["ledger"]}["pp-embed-dim"] is True
    assert foreseen["changed"] and foreseen["digest"] == reported["digest"]
    assert "+++ b/sglang/srt/models/deepseek_v2.py" in foreseen["diff"]["prepared"]
    assert "-            and self.embed_tokens.embedding_dim == 7168" in foreseen["diff"]["prepared"]
    assert contents(site) == before, "report and check write nothing"
    applied, again = call(tmp_path, (apply, False), (apply, False))
    assert applied["changed"] and not again["changed"]
    assert applied["digest"] == again["digest"] == reported["digest"]
    assert contents(site) == done


def test_refusals_change_nothing(site, tmp_path):
    path = site / "sglang/srt/models/deepseek_v2.py"
    stock = path.read_text()
    before = contents(site)
    (differs,) = call(tmp_path, ({"site_packages": str(site), "state": "applied", "expect": "0.5.23"}, False))
    assert differs["failed"] and differs["msg"].startswith("nothing was changed: decode-radix-spec: baked, expected already upstream on 0.5.23")
    assert contents(site) == before
    path.write_text(stock.replace("config.n_routed_experts == 256", "config.n_routed_experts >= 256"))
    before = contents(site)
    reported, refused = call(tmp_path, ({"site_packages": str(site)}, False), ({"site_packages": str(site), "state": "applied"}, False))
    fault = "pp-embed-dim: refused: srt/models/deepseek_v2.py: anchor found 0 times"
    assert not reported.get("failed") and reported["differences"][0].startswith(fault)
    assert refused["failed"] and refused["msg"].startswith(f"nothing was changed: {fault}")
    assert contents(site) == before


def test_wrong_arguments(tmp_path):
    cases = [
        ({"site_packages": "/nowhere"}, "no sglang/srt below /nowhere"),
        ({"site_packages": "/nowhere", "python": "no-such-python"}, "python 'no-such-python': No such file or directory"),
        ({}, "one of the following is required: site_packages, image"),
        ({"image": "x", "state": "applied"}, "tag: not set; image x is never changed"),
        ({"site_packages": "/nowhere", "tag": "x"}, "missing parameter(s) required by 'tag': image"),
        ({"site_packages": "/nowhere", "only": ["pp-embed"]}, "--only pp-embed: no such patch; did you mean pp-embed-dim?"),
        ({"site_packages": "/nowhere", "expect": "0.6"}, "--expect 0.6: unknown base"),
        ({"site_packages": "/nowhere", "state": "absent"}, "value of state must be one of: reported, applied"),
    ]
    for (arguments, message), result in zip(cases, call(tmp_path, *((arguments, False) for arguments, _ in cases)), strict=True):
        assert result["failed"] and message in result["msg"], (arguments, result["msg"])
