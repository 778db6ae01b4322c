"""The applier under a full disk, folders that it may not write to, kills at any moment, and a second applier beside it."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from patches import sources
from patches.conftest import PATCHES, apply, contents
from patches.test_contract import ALSO, PATCH
from patches.test_ledger import EXPECTED, MANIFEST

FILES = sorted({file for name, patch in PATCH.items() if EXPECTED["0.5.22"][name] == "baked" for file in patch.files})


# Every file that the applier looks at.
SEEN = {file for name, patch in PATCH.items() for file in (*patch.files, *(need.file for need in patch.needs), *ALSO.get(name, ()))}
SEEN |= {probe["file"] for row in MANIFEST["patches"] for probe in row.get("proof", ())}


def copied(where):
    return sources.copied("0.5.22", where / "site", sorted(SEEN))


@pytest.fixture
def site(tmp_path):
    """The files that matter, those that are to be patched compiled."""
    copy = copied(tmp_path)
    code = "import py_compile, sys; [py_compile.compile(file, doraise=True) for file in sys.argv[1:]]"
    subprocess.run([sys.executable, "-c", code, *(str(copy / "sglang" / file) for file in FILES)], check=True)
    return copy


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """What a run without any trouble makes of the sources."""
    copy = copied(tmp_path_factory.mktemp("done"))
    assert apply(copy).returncode == 0
    return contents(copy)


def leftovers(site):
    return [path.name for path in site.rglob(".infera-*")]


def faulty(tmp_path, body):
    """A copy of the applier whose `files` module is preceded by `body`: the place to make its system calls fail."""
    copy = tmp_path / "applier"
    shutil.copytree(PATCHES, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / "files.py").read_text()
    (copy / "files.py").write_text(text.replace("\nimport os\n", f"\nimport os\n{body}\n", 1))
    return copy


FAIL_AT = """
import types
calls = {{"replace": 0, "write": 0}}
def replace(source, target, _real=os.replace):
    if not str(source).endswith(".old"):
        calls["replace"] += 1
        if calls["replace"] == {number}:
            {what}
    _real(source, target)
os = types.SimpleNamespace(**{{**vars(os), "replace": replace}})
"""


def run(applier, site, *options):
    return subprocess.run([sys.executable, "-B", str(applier / "apply.py"), "--site-packages", str(site), *options], capture_output=True, text=True)


@pytest.mark.parametrize("number", [1, len(FILES)])
def test_a_failed_move_puts_everything_back(site, tmp_path, number):
    before = contents(site)
    times = {file: os.stat(site / "sglang" / file).st_mtime_ns for file in FILES}
    applier = faulty(tmp_path, FAIL_AT.format(number=number, what='raise OSError(28, "No space left on device", str(target))'))
    failed = run(applier, site)
    assert failed.returncode == 1 and "No space left on device" in failed.stderr and "every file was put back" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert contents(site) == before and leftovers(site) == []
    assert {file: os.stat(site / "sglang" / file).st_mtime_ns for file in FILES} == times, "the cached modules stay valid"


def test_an_interrupt_puts_everything_back(site, tmp_path):
    before = contents(site)
    failed = run(faulty(tmp_path, FAIL_AT.format(number=4, what="raise KeyboardInterrupt")), site)
    assert failed.returncode != 0
    assert contents(site) == before and leftovers(site) == []


@pytest.mark.parametrize("number", [1, 3, len(FILES)])
def test_a_killed_run_is_finished_by_the_next(site, tmp_path, done, number):
    """Killed before the n-th move: each file is wholly old or new; --check tells; the next run makes what one run makes, and tidies up."""
    before = contents(site)
    killed = run(faulty(tmp_path, FAIL_AT.format(number=number, what="import signal; os.kill(os.getpid(), signal.SIGKILL)")), site)
    assert killed.returncode == -signal.SIGKILL
    now = {name: data for name, data in contents(site).items() if "/.infera-" not in name}
    assert {name for name in now if now[name] == done[name] != before[name]} == {
        name for name in now if now[name] != before[name]}, "a file is neither old nor new"
    assert sum(now[name] != before[name] for name in now) == number - 1
    assert leftovers(site)
    check = json.loads(apply(site, "--check", "--json").stdout)
    assert check["changed"] and check["status"] == 0
    again = apply(site, "--json")
    assert again.returncode == 0, again.stdout
    assert contents(site) == done and leftovers(site) == []
    assert apply(site, "--check").returncode == 0


def bounded(*argv):
    """Root reads and writes everything; give these capabilities up, so that a mode counts for root as for everybody."""
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        assert setpriv, "setpriv (util-linux) is not installed"
        drop = "-dac_override,-dac_read_search,-fowner"
        argv = (setpriv, f"--bounding-set={drop}", f"--inh-caps={drop}", *argv)
    return subprocess.run(list(map(str, argv)), capture_output=True, text=True)


def test_a_folder_that_cannot_be_written(site):
    """One of the folders is read-only: nothing is written anywhere, and the message names the folder."""
    before = contents(site)
    folder = (site / "sglang" / FILES[-1]).parent
    folder.chmod(0o555)
    try:
        failed = bounded(sys.executable, "-B", PATCHES / "apply.py", "--site-packages", site)
        assert bounded(sys.executable, "-B", PATCHES / "apply.py", "--site-packages", site, "--check").returncode == 0, "a check writes nothing"
    finally:
        folder.chmod(0o755)
    assert failed.returncode == 1 and "Permission denied" in failed.stderr and str(folder) in failed.stderr and "every file was put back" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert contents(site) == before and leftovers(site) == []


def test_bytecode_that_cannot_be_made_again(site):
    """The sources can be written, one __pycache__ cannot: exit 1 that says so; the next run, once it can be, is clean."""
    folder = (site / "sglang" / "srt/models/deepseek_v2.py").parent / "__pycache__"
    folder.chmod(0o555)
    try:
        failed = bounded(sys.executable, "-B", PATCHES / "apply.py", "--site-packages", site)
    finally:
        folder.chmod(0o755)
    assert failed.returncode == 1 and "Traceback" not in failed.stderr
    assert "refused          pp-embed-dim: srt/models/deepseek_v2.py: source is patched, but the bytecode" in failed.stdout
    assert "could not be made again" in failed.stdout
    assert "Files were written, but their bytecode could not be verified." in failed.stdout
    assert apply(site).returncode == 0


def test_a_read_only_file_keeps_its_mode(site):
    path = site / "sglang" / FILES[0]
    path.chmod(0o444)
    assert apply(site).returncode == 0
    assert path.stat().st_mode & 0o7777 == 0o444


def test_a_linked_file_is_replaced_not_followed(site, done, tmp_path):
    """An installer may link files into several environments: the other one must not change."""
    path = site / "sglang" / FILES[0]
    other = tmp_path / "store.py"
    os.link(path, other)
    before = other.read_bytes()
    assert apply(site).returncode == 0
    assert other.read_bytes() == before
    assert path.read_bytes() == done[f"sglang/{FILES[0]}"]


def test_two_appliers_at_once(site, done):
    command = [sys.executable, "-B", str(PATCHES / "apply.py"), "--site-packages", str(site), "--json"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    reports = [json.loads(one.communicate(timeout=120)[0]) for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert sorted(one["written"] for one in reports) == [False, True], "the second finds everything in place"
    assert contents(site) == done and leftovers(site) == []


def test_only_one_patch(site):
    before = contents(site)
    done = apply(site, "--only", "pp-embed-dim", "--only", "prefill-wait-event", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0 and [entry["name"] for entry in report["ledger"]] == ["prefill-wait-event", "pp-embed-dim"], "the manifest's order"
    now = contents(site)
    assert {name for name in now if now[name] != before[name]} == {"sglang/srt/disaggregation/prefill.py", "sglang/srt/models/deepseek_v2.py"}
    # The rest comes on top, and the file is the same as after one run.
    assert apply(site, "--json").returncode == 0


def test_json_and_text_tell_the_same(site, tmp_path):
    text = apply(site, "--check", "--ledger", str(tmp_path / "ledger.json"))
    report = json.loads(apply(site, "--check", "--json").stdout)
    assert json.loads((tmp_path / "ledger.json").read_text()) == report
    for entry in report["ledger"]:
        assert f"{entry['status']:<17}{entry['name']}: {entry['evidence']}" in text.stdout
    assert text.stdout.splitlines()[-2:] == ["Check only: files would change.", f"ledger sha256 {report['digest']}"]


def test_a_source_that_is_no_text(site):
    path = pathlib.Path(site) / "sglang" / FILES[0]
    path.write_bytes(b"\xff\xfe" + path.read_bytes())
    before = contents(site)
    done = apply(site)
    assert done.returncode == 1 and "not UTF-8" in done.stdout and "Traceback" not in done.stderr
    assert contents(site) == before


def test_windows_line_ends_are_refused_not_converted(site):
    path = pathlib.Path(site) / "sglang" / FILES[0]
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    before = contents(site)
    assert apply(site).returncode == 1
    assert contents(site) == before
