"""The report: stable bytes, a page that stands alone, hollow rows with their reasons."""
import json
import pathlib

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed: requirements-report.txt")
from ansible_collections.infera.serving.plugins.module_utils import pareto, report_page
from ansible_collections.infera.serving.plugins.modules import pareto_report

PUBLISHED = pathlib.Path(__file__).resolve().parents[3] / "roles" / "report" / "files" / "published.csv"


@pytest.fixture()
def rows(tmp_path):
    for name, valid, conc in (("a", True, 64), ("b", False, 88), ("c", True, 32)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps({
            "run_id": f"run-{name}", "shape": "1p1d", "conc": conc, "gpus": {"total": 12}, "valid": valid, "result_class": "measured",
            "reasons": [] if valid else ["4 errors: 9 of 10 <requests> failed"], "metrics": {"tok_s_gpu": 20000 + conc, "intvty_p90": 150 - conc}}))
    return pareto_report.read_results([str(tmp_path)]) + pareto.read_reference(str(PUBLISHED))


def test_the_same_rows_give_the_same_bytes(rows):
    assert pareto_report.outputs(rows, "t") == pareto_report.outputs(rows, "t")


def test_the_page_stands_alone_and_says_why(rows):
    page = pareto_report.outputs(rows, "A <title>")["index.html"].decode()
    assert "src=" not in page and "href=\"http" not in page and "<script" not in page
    assert "9 of 10 &lt;requests&gt; failed" in page and "A &lt;title&gt;" in page and "Unofficial" in page
    assert "published, not ours" in page and "not valid" in page


def test_only_valid_rows_are_compared(rows):
    compared = {c.ours for c in report_page.comparisons(rows)}
    assert compared == {"this run: 1p1d"}
    for row in rows:
        row["valid"] = False
    assert report_page.comparisons(rows) == []


def test_writing_twice_changes_nothing(rows, tmp_path):
    files = pareto_report.outputs(rows, "t")
    assert pareto_report.write(str(tmp_path / "out"), files, False) is True
    assert pareto_report.write(str(tmp_path / "out"), files, False) is False


def test_a_missing_result_is_named(tmp_path):
    with pytest.raises(pareto.PointsError, match="does not exist"):
        pareto_report.find([str(tmp_path / "none")])
