"""What the test run says of failures, where only its last lines are kept."""
import importlib.util
import pathlib
import sys

import pytest

CI = pathlib.Path(__file__).resolve().parents[3] / "ci"


@pytest.fixture(scope="module")
def stages():
    sys.path.insert(0, str(CI))
    try:
        spec = importlib.util.spec_from_file_location("run_stages", CI / "run_stages.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules["run_stages"] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(CI))
    return module


CASES = """<testsuites><testsuite>
<testcase classname="t.one" name="good"/>
<testcase classname="t.one" name="bad"><failure message="assert 1 == 2&#10;  more"/></testcase>
<testcase classname="t.one" name="broken"><error message="no fixture"/></testcase>
<testcase classname="t.one" name="left"><skipped message="no Docker"/></testcase>
</testsuite></testsuites>"""


def test_a_report_names_what_failed_and_what_it_said(stages, tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(CASES)
    assert stages.count_junit(report) == (1, 2, ["t.one::left: no Docker"], ["t.one::bad: assert 1 == 2 more", "t.one::broken: no fixture"])


def test_of_a_long_message_the_end_is_kept(stages):
    said = stages.shortened("failed:\n" + "ok\n" * 2000 + "fatal: no decode")
    assert said.startswith("failed: ok") and said.endswith("fatal: no decode") and " ... " in said and len(said) < 1500


def test_no_report_is_a_failure(stages, tmp_path):
    assert stages.count_junit(tmp_path / "none.xml") == (0, 1, [], ["no test ran"])


@pytest.mark.parametrize("code, passed, failed", [(0, 1, 0), (3, 0, 1)])
def test_a_command_says_how_it_ended(stages, tmp_path, monkeypatch, code, passed, failed):
    monkeypatch.setattr(stages, "LOGS", tmp_path)
    step = stages.Step("one", [sys.executable, "-c", f"raise SystemExit({code})"], pytest=False, limit=20)
    outcome = stages.run("stage", step)
    assert (outcome.passed, outcome.failed, outcome.faults) == (passed, failed, [f"ended with {code}"] if failed else [])


@pytest.mark.parametrize("text, faults", [
    ("def test_a():\n    assert 1 == 2\n", ["test_it::test_a: assert 1 == 2"]), ("", ["pytest ended with 5 after 0 tests"]),
])
def test_pytest_that_fails_or_finds_nothing_is_named(stages, tmp_path, monkeypatch, text, faults):
    monkeypatch.setattr(stages, "LOGS", tmp_path)
    monkeypatch.setattr(stages, "ROOT", tmp_path)
    (tmp_path / "test_it.py").write_text(text)
    outcome = stages.run("stage", stages.Step("one", ["test_it.py"], pytest=True, limit=60))
    assert (outcome.failed, outcome.faults) == (1, faults)
