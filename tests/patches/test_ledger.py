"""All patches on the pristine wheels: the ledger, a second run, the bytecode, and the command's own refusals."""
import importlib.util
import json
import os
import py_compile
import sys

import pytest

from patches import sources
from patches.conftest import PATCHES, apply, contents

MANIFEST = json.loads((PATCHES / "manifest.json").read_text())
# Typed out by hand: what each wheel needs.
BAKED = {"dsa-page-table-rows", "dsa-host-syncs", "dsa-indexer-rows", "prefill-wait-event", "responses-tool-args", "mla-absorb-config",
         "kv-metrics-noblock", "pp-embed-dim"}
UPSTREAM = {"draft-graph-dp-vote", "hicache-host-alloc", "mooncake-early-send", "dsa-page-table-rows-trtllm"}
EXPECTED = {
    "0.5.22": {**dict.fromkeys(BAKED | {"decode-radix-spec"}, "baked"), **dict.fromkeys(UPSTREAM, "already upstream"), "hicache-write-back": "not needed"},
    "0.5.23": {**dict.fromkeys(BAKED, "baked"), **dict.fromkeys(UPSTREAM | {"decode-radix-spec"}, "already upstream"), "hicache-write-back": "not needed"},
}


def walk(code):
    """Names and string constants of a code object, found without the applier's own walk."""
    found = set(code.co_names) | set(code.co_varnames) | {one for one in code.co_consts if isinstance(one, str)}
    for one in code.co_consts:
        if hasattr(one, "co_code"):
            found |= walk(one)
    return found


def markers():
    sys.path.insert(0, str(PATCHES))
    try:
        for row in MANIFEST["patches"]:
            if "folder" in row:
                spec = importlib.util.spec_from_file_location(f"patch_{row['folder']}", PATCHES / row["folder"] / "patch.py")
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                yield row["name"], module.PATCH
    finally:
        sys.path.remove(str(PATCHES))


def test_ledger_is_as_expected(version, patched):
    _, report = patched
    assert {entry["name"]: entry["status"] for entry in report["ledger"]} == EXPECTED[version]
    assert report["written"] and not report["differences"]
    assert all(entry["evidence"] for entry in report["ledger"])
    assert len(report["digest"]) == 64


def test_only_named_files_change(stock, patched):
    site, report = patched
    before, after = contents(stock), contents(site)
    named = {f"sglang/{file}" for entry in report["ledger"] for file in entry["files"]}
    assert {name for name in after if after[name] != before[name]} == named
    assert set(after) == set(before)


def test_everything_compiles(patched, tmp_path):
    site, report = patched
    for file in {file for entry in report["ledger"] for file in entry["files"]}:
        py_compile.compile(str(site / "sglang" / file), cfile=str(tmp_path / "x.pyc"), doraise=True)


def test_second_run_is_a_no_op(version, patched):
    site, report = patched
    before = contents(site)
    again = apply(site, "--json", "--expect", version)
    assert again.returncode == 0
    second = json.loads(again.stdout)
    assert not second["changed"] and not second["written"] and second["digest"] == report["digest"]
    assert contents(site) == before


def test_check_says_what_a_run_would_do(version, stock, patched):
    done = apply(stock, "--json", "--check", "--diff", "--expect", version)
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["changed"] and not report["written"]
    assert report["digest"] == patched[1]["digest"]
    assert "+++ b/sglang/srt/models/deepseek_v2.py" in report["diff"]


@pytest.mark.parametrize(("name", "patch"), list(markers()), ids=lambda value: value if isinstance(value, str) else "")
def test_markers_are_in_the_bytecode_and_not_in_stock(name, patch, version, stock, patched, tmp_path):
    if EXPECTED[version][name] != "baked":
        assert all(marker not in (patched[0] / "sglang" / file).read_text() for file, marker in patch.markers.items())
        return
    for file, marker in patch.markers.items():
        cache = importlib.util.cache_from_source(str(patched[0] / "sglang" / file))
        import marshal
        with open(cache, "rb") as compiled:
            assert marker in walk(marshal.loads(compiled.read()[16:]))
        assert marker not in walk(compile((stock / "sglang" / file).read_text(), file, "exec"))


def test_one_refusal_leaves_every_file_untouched(version, tmp_path):
    """The last patch's file is broken; the first patch's file must not have been written."""
    site = sources.copied(version, tmp_path)
    path = site / "sglang/srt/models/deepseek_v2.py"
    path.write_text(path.read_text().replace("and self.embed_tokens.embedding_dim == 7168", "and True"))
    before = contents(site)
    done = apply(site)
    assert done.returncode == 1
    assert "No file was touched." in done.stdout
    assert "srt/models/deepseek_v2.py: anchor found 0 times, expected once: 'and config.n_routed_experts == 256'" in done.stdout
    assert contents(site) == before


def test_an_unexpected_ledger_is_refused_before_anything_is_written(tmp_path):
    site = sources.copied("0.5.22", tmp_path)
    before = contents(site)
    done = apply(site, "--expect", "0.5.23")
    assert done.returncode == 3
    assert "differs: decode-radix-spec: baked, expected already upstream on 0.5.23" in done.stdout
    assert contents(site) == before
    assert apply(site, "--expect", "v0.5.22-rocm720-mi35x-20261018").returncode == 0


def test_wrong_options(tmp_path):
    (tmp_path / "sglang").mkdir()
    nothing = apply(tmp_path)
    assert nothing.returncode == 1 and "no sglang/srt below" in nothing.stderr
    (tmp_path / "sglang" / "srt").mkdir()
    unknown = apply(tmp_path, "--only", "pp-embed-dims")
    assert unknown.returncode == 2 and "--only pp-embed-dims: no such patch; did you mean pp-embed-dim?" in unknown.stderr
    base = apply(tmp_path, "--expect", "0.6")
    assert base.returncode == 2 and "--expect 0.6: unknown base; use one of 0.5.22, 0.5.23" in base.stderr


def test_sglang_is_found_without_being_imported(version, patched, tmp_path):
    """A folder named sglang without sources, as in a checkout's parent, is not taken for the package."""
    import subprocess
    (tmp_path / "empty" / "sglang").mkdir(parents=True)
    command = [sys.executable, "-B", str(PATCHES / "apply.py"), "--check", "--json"]
    found = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(patched[0])}, capture_output=True, text=True)
    assert found.returncode == 0 and json.loads(found.stdout)["package"] == str((patched[0] / "sglang").resolve())
    missing = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tmp_path / "empty")}, capture_output=True, text=True)
    assert missing.returncode == 1 and "sglang is not importable by this Python" in missing.stderr
