"""The common contract, for each patch on small copies of the real files: every way in which a source can be wrong is refused untouched."""
import importlib.util
import json
import os
import pathlib
import py_compile

import pytest

from patches import sources
from patches.conftest import VERSIONS, apply, contents
from patches.test_ledger import EXPECTED, MANIFEST, markers

PATCH = dict(markers())
# Files that a patch looks at beside those that it edits or needs.
ALSO = {
    "hicache-write-back": ("srt/mem_cache/pool_host/dsa.py", "srt/mem_cache/memory_pool_host.py", "srt/mem_cache/pool_host/group.py",
                           "srt/mem_cache/hybrid_cache/hybrid_cache_controller.py"),
    "prefill-wait-event": ("srt/disaggregation/common/conn.py",),
}
ROUTED = "supports_per_pool_backup_indices"
CASES = [(name, version) for name in PATCH for version in VERSIONS if EXPECTED[version][name] == "baked" or name == "hicache-write-back"]


def tree(name, version, where):
    """A copy of the files that matter to one patch."""
    patch = PATCH[name]
    files = {edit.file for edit in patch.edits} | {need.file for need in patch.needs} | set(ALSO.get(name, ()))
    package = sources.unpacked("sglang", version) / "sglang"
    site = sources.copied(version, where, sorted(file for file in files if (package / file).exists()))
    if name == "hicache-write-back":
        # The patch is for sources without per-pool routing: take it away.
        for file in ALSO[name]:
            change(site, file, lambda text: text.replace(ROUTED, "routed_by_group"))
    return site


def change(site, file, edit):
    path = site / "sglang" / file
    if path.exists():
        path.write_text(edit(path.read_text()))


def refused(site, name, file, anchor=None):
    """The run exits non-zero, names the file (and the anchor's first line), and touches nothing."""
    before = contents(site)
    done = apply(site, "--only", name, "--json")
    assert done.returncode == 1, done.stdout
    entry = json.loads(done.stdout)["ledger"][0]
    assert entry["status"] == "refused" and entry["file"] == file and file in entry["evidence"]
    if anchor is not None:
        assert repr(next(line.strip() for line in anchor.splitlines() if line.strip())) in entry["evidence"]
    assert contents(site) == before
    return entry["evidence"]


def drifted(old):
    """The same code, one comment later: the anchor is gone."""
    return old.rstrip("\n") + "  # drifted" + old[len(old.rstrip("\n")):]


def old_text(edit, text):
    return next(old for old, _ in edit.variants if old in text)


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def case(request, tmp_path):
    name, version = request.param
    return name, tree(name, version, tmp_path)


def test_applies_once_then_never_again(case):
    name, site = case
    stock = contents(site)
    first = apply(site, "--only", name, "--json")
    assert first.returncode == 0, first.stdout
    after = contents(site)
    changed = {file for file in after if after[file] != stock[file]}
    assert changed == {f"sglang/{file}" for file in PATCH[name].files}
    second = apply(site, "--only", name, "--json")
    assert second.returncode == 0 and not json.loads(second.stdout)["changed"]
    assert contents(site) == after


def test_missing_anchor(case):
    name, site = case
    for edit in PATCH[name].edits:
        path = site / "sglang" / edit.file
        text = path.read_text()
        old = old_text(edit, text)
        path.write_text(text.replace(old, drifted(old)))
        refused(site, name, edit.file)
        path.write_text(text)


def test_doubled_anchor(case):
    name, site = case
    for edit in PATCH[name].edits:
        path = site / "sglang" / edit.file
        text = path.read_text()
        old = old_text(edit, text)
        path.write_text(text.replace(old, old + old))
        assert "2 times" in refused(site, name, edit.file)
        path.write_text(text)


def test_changed_precondition(case):
    name, site = case
    for need in PATCH[name].needs:
        anchors = [old for edit in PATCH[name].edits for old, _ in edit.variants]
        assert not any(need.text in old for old in anchors), "a precondition inside an anchor would test nothing"
        held = {}
        for file, text in ((need.file, need.text), *need.elsewhere):
            path = site / "sglang" / file
            if path.exists():
                held[path] = path.read_text()
                path.write_text(held[path].replace(text, ""))
        refused(site, name, need.file)
        for path, text in held.items():
            path.write_text(text)
    assert PATCH[name].needs


def test_a_file_is_missing(case):
    name, site = case
    file = PATCH[name].needs[0].file if name == "kv-metrics-noblock" else PATCH[name].edits[0].file
    (site / "sglang" / file).unlink()
    before = contents(site)
    done = apply(site, "--only", name, "--json")
    entry = json.loads(done.stdout)["ledger"][0]
    if name in ("mla-absorb-config", "hicache-write-back"):
        # a base without that code needs no patch
        assert done.returncode == 0 and entry["status"] == "not needed"
    else:
        assert done.returncode == 1 and entry["file"] == file and "no such file" in entry["evidence"]
    assert contents(site) == before


def test_half_applied(case):
    """One edit of several undone; or, for a single edit, the anchor beside the edit."""
    name, site = case
    assert apply(site, "--only", name).returncode == 0
    edit = PATCH[name].edits[-1]
    path = site / "sglang" / edit.file
    text = path.read_text()
    old, new = next((old, new) for old, new in edit.variants if new in text)
    path.write_text(text.replace(new, old) if len(PATCH[name].edits) > 1 else text + "\n" + old)
    evidence = refused(site, name, edit.file)
    assert "half applied" in evidence or "beside" in evidence or "precondition" in evidence


def test_the_last_edit_broken_leaves_the_first_undone(case):
    name, site = case
    edit = PATCH[name].edits[-1]
    change(site, edit.file, lambda text: text.replace(old_text(edit, text), drifted(old_text(edit, text))))
    refused(site, name, edit.file)


def header(source, kind):
    """The first 16 bytes of a cached module: trusted by time and size, by hash, by hash unchecked, or out of date (PEP 552)."""
    stat = os.stat(source)
    if kind in ("hash", "unchecked"):
        return importlib.util.MAGIC_NUMBER + bytes([1 if kind == "unchecked" else 3, 0, 0, 0]) + importlib.util.source_hash(source.read_bytes())
    moment = int(stat.st_mtime) - (kind == "old")
    return importlib.util.MAGIC_NUMBER + bytes(4) + moment.to_bytes(4, "little") + (stat.st_size & 0xFFFFFFFF).to_bytes(4, "little")


def stale(site, name, kind):
    """Apply one patch, then put stock code into its caches; returns (exit status of --check, its row)."""
    files = PATCH[name].markers
    stock = {file: pathlib.Path(py_compile.compile(str(site / "sglang" / file), doraise=True)) for file in files}
    code = {file: cache.read_bytes()[16:] for file, cache in stock.items()}
    assert apply(site, "--only", name).returncode == 0, "stock caches were in place before the run"
    for file in files:
        stock[file].write_bytes(header(site / "sglang" / file, kind) + code[file])
    done = apply(site, "--only", name, "--check", "--json")
    return done.returncode, json.loads(done.stdout)["ledger"][0]


def test_stale_bytecode(case):
    """A cached module with the right time and size, but stock code: found by --check, repaired by a run."""
    name, site = case
    code, entry = stale(site, name, "time")
    assert code == 1 and "lacks the marker" in entry["evidence"] and entry["anchor"] in PATCH[name].markers.values()
    assert apply(site, "--only", name).returncode == 0
    assert apply(site, "--only", name, "--check").returncode == 0


@pytest.mark.parametrize(("kind", "code"), [("hash", 1), ("unchecked", 1), ("old", 0)])
def test_stale_bytecode_is_what_python_would_run(kind, code, tmp_path):
    """Caches that name the source's hash count; one that Python itself throws away does not."""
    assert stale(tree("pp-embed-dim", "0.5.22", tmp_path), "pp-embed-dim", kind)[0] == code


@pytest.mark.parametrize("row", [row for row in MANIFEST["patches"] if "proof" in row], ids=lambda row: row["name"])
def test_an_upstream_fix_that_is_gone_is_refused(row, tmp_path):
    site = sources.copied("0.5.22", tmp_path, sorted({probe["file"] for probe in row["proof"]}))
    assert json.loads(apply(site, "--only", row["name"], "--json").stdout)["ledger"][0]["status"] == "already upstream"
    for probe in row["proof"]:
        path = site / "sglang" / probe["file"]
        text = path.read_text()
        path.write_text(text.replace(probe["text"], ""))
        assert "the upstream fix is not here" in refused(site, row["name"], probe["file"], probe["text"])
        path.write_text(text)
