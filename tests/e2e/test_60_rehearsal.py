"""The chain of a measured point, once, on the shared deployment: smoke, evaluation, AgentX, verdict, report. Run after the other tests."""
import csv
import html.parser
import json
import re
import shutil

import pytest
from e2e import support

pytestmark = pytest.mark.rehearsal

SECONDS = 45


@pytest.fixture(scope="module")
def rehearsal(deployment):
    """Output of ci/rehearse.py on the deployment that runs, and the point's folder."""
    deployment.wait_serving()
    before = deployment.identities()
    points = support.ROOT / "runs" / deployment.record["id"] / "points"
    old = set(points.glob("*")) if points.exists() else set()
    _, output = support.run(".venv/bin/python", "ci/rehearse.py", "--shared", "--seconds", str(SECONDS), limit=900)
    assert deployment.identities() == before, "the rehearsal touched the deployment"
    new = sorted(set(points.glob("*")) - old)
    assert len(new) == 1
    return output, new[0]


def test_every_step_ran(rehearsal):
    output, _ = rehearsal
    table = output[output.rindex("step "):]
    assert re.findall(r"^(\S+) +\d+  (.*)$", table, re.M) == [("smoke", "ok"), ("evaluate", "ok"), ("agentx", "ok"), ("report", "ok")]


def test_smoke_counts_what_cannot_apply_apart(rehearsal, deployment):
    smoke = json.loads((support.ROOT / "runs" / deployment.record["id"] / "smoke.json").read_text())
    assert smoke["counts"] == {"pass": 5, "fail": 0, "n/a": 1}
    assert [c["name"] for c in smoke["checks"] if c["status"] == "n/a"] == ["transfer and speculation"]


def test_the_point_is_a_rehearsal_and_never_valid(rehearsal, deployment):
    _, folder = rehearsal
    result = json.loads((folder / "result.json").read_text())
    assert result["result_class"] == "rehearsal" and result["valid"] is False and result["reasons"]
    assert result["comparable"] is False
    assert [reason for reason in result["reasons"] if any(word in reason for word in ("HTTP", "cut stream", "no usage", "errors"))] == [], deployment.evidence()


def test_the_clients_numbers_and_ours_agree(rehearsal):
    _, folder = rehearsal
    metrics = json.loads((folder / "result.json").read_text())["metrics"]
    client = json.loads((folder / "profile_export_aiperf.json").read_text())
    assert metrics["records"] > 5
    assert metrics["tok_s"] == pytest.approx(client["total_token_throughput"]["avg"], rel=0.01)
    assert 1000 / metrics["intvty_p90"] == pytest.approx(client["full_response_inter_token_latency"]["p90"], rel=0.001)


def test_the_evaluation_says_what_it_saw(rehearsal, deployment):
    evaluation = max((support.ROOT / "runs" / deployment.record["id"] / "evaluation").glob("*/eval.json"), key=lambda p: p.stat().st_mtime)
    result = json.loads(evaluation.read_text())
    assert result["effective"] == 12 and result["simulated"] is False
    assert result["strict"] == 0, "a random model does not solve arithmetic"
    # The random model finds no needle, and the verdict must say so.
    assert any("needle" in reason for reason in result["reasons"])


def test_the_report_shows_the_run_as_not_valid(rehearsal, deployment):
    _, folder = rehearsal
    report = support.ROOT / "runs" / f"rehearsal-{deployment.record['id']}"
    rows = list(csv.DictReader((report / "points.csv").read_text().splitlines()))
    mine = [r for r in rows if r["run_id"] == folder.name]
    assert len(mine) == 1 and mine[0]["valid"].lower() in ("false", "no", "0") and mine[0]["result_class"] == "rehearsal"
    page = (report / "index.html").read_text()
    html.parser.HTMLParser().feed(page)
    assert folder.name in page and not re.search(r"""(?:src|href)=["'](?:https?:)?//""", page)


def test_clients_believe_the_record_after_the_variables_changed(deployment, tmp_path):
    """Another port and name in group_vars, with nothing deployed since: status, smoke and the evaluation still talk to what runs."""
    shutil.copytree(support.ROOT / "inventories" / "local", tmp_path / "local")
    variables = tmp_path / "local" / "group_vars" / "all" / "main.yml"
    text = variables.read_text()
    assert "router_port: 8000" in text and "infera_served_model_name: tiny" in text
    variables.write_text(text.replace("router_port: 8000", "router_port: 8123").replace("infera_served_model_name: tiny", "infera_served_model_name: other"))
    for playbook in ("playbooks/status.yml", "playbooks/smoke.yml"):
        _, output = support.run(".venv/bin/ansible-playbook", playbook, "-i", str(tmp_path / "local"), "-l", "local")
        assert "8123" not in output and support.changed(output) == 0
    _code, output = support.run(".venv/bin/ansible-playbook", "playbooks/evaluate.yml", "-i", str(tmp_path / "local"), "-l", "local",
                                "-e", f"@{support.ROOT / 'tests' / 'rehearsal' / 'settings.yml'}",
                                "-e", f"evaluate_dataset_dir={support.ROOT / 'tests' / 'rehearsal' / 'gsm8k'}")
    assert "8123" not in output
    code, output = support.play("playbooks/smoke.yml", "-e", "router_port=8123", check=False)
    assert code and "8123" in output and "8000" in output
