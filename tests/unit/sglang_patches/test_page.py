# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The applier's report, and the committed status page that a ledger is held against."""
from __future__ import annotations

import json
import pathlib
import tarfile

import pytest
from ansible_collections.infera.serving.plugins.action import sglang_patches as action
from ansible_collections.infera.serving.plugins.module_utils import sglang_image, sglang_ledger

PATCHES = pathlib.Path(__file__).resolve().parents[3] / "images" / "sglang" / "patches"
PAGE = (PATCHES / "STATUS.md").read_text(encoding="utf-8")
NAMES = [row["name"] for row in json.loads((PATCHES / "manifest.json").read_text(encoding="utf-8"))["patches"]]
ROCM = "v0.5.22-rocm720-mi35x-20261018"


def ledger(**changed):
    """The ledger of the 0.5.22 wheel, typed by hand, with some rows changed."""
    statuses = dict.fromkeys(NAMES, "baked")
    statuses.update(dict.fromkeys(NAMES[10:], "already upstream"), **{"hicache-write-back": "not needed"})
    statuses.update({name.replace("_", "-"): status for name, status in changed.items()})
    return [{"name": name, "status": status, "evidence": "seen", "changed": False, "files": []} for name, status in statuses.items()]


def digest_of(base):
    return dict(sglang_ledger.DIGEST.findall(PAGE))[base]


def test_the_page_has_every_row_and_base():
    columns = sglang_ledger.page_columns(PAGE)
    assert set(columns) == {"wheel 0.5.22", "wheel 0.5.23", "expected on " + ROCM}
    assert all(list(column) == NAMES for column in columns.values())
    assert columns["expected on " + ROCM]["decode-radix-spec"] == ["baked", "already upstream"]


def test_the_same_ledger_has_no_differences():
    assert sglang_ledger.beside_page(ledger(), digest_of("0.5.22"), PAGE, "0.5.22") == []
    assert sglang_ledger.beside_page(ledger(), "any", PAGE, ROCM) == [], "the page knows no digest of the ROCm base"
    assert sglang_ledger.beside_page(ledger(decode_radix_spec="already upstream"), "any", PAGE, ROCM) == [], "either is expected there"


@pytest.mark.parametrize("status", ["refused", "already upstream", "not needed"])
def test_a_row_that_differs_says_what_to_do(status):
    rows = sglang_ledger.beside_page(ledger(prefill_wait_event=status), "x" * 64, PAGE, "0.5.22")
    assert [(row["name"], row["found"], row["page"]) for row in rows] == [("prefill-wait-event", status, "baked")]
    assert rows[0]["evidence"] == "seen" and len(rows[0]["remedy"]) > 30


def test_a_row_that_one_side_lacks():
    rows = sglang_ledger.beside_page(ledger()[1:] + [dict(ledger()[0], name="new")], "x", PAGE, ROCM)
    assert [(row["name"], row["found"], row["page"]) for row in rows] == [
        (NAMES[0], "no such row", "baked"), ("new", "baked", "no such row")]


def test_other_contents_show_in_the_digest():
    rows = sglang_ledger.beside_page(ledger(), "0" * 64, PAGE, "0.5.22")
    assert [row["name"] for row in rows] == ["digest"]


@pytest.mark.parametrize(("page", "base", "message"), [
    (PAGE, "0.5.24", "no column for '0.5.24'; it has: wheel 0.5.22, wheel 0.5.23, expected on " + ROCM), ("# nothing", "0.5.22", "no ledger table")])
def test_a_page_that_cannot_answer(page, base, message):
    with pytest.raises(sglang_ledger.LedgerError, match=message):
        sglang_ledger.beside_page(ledger(), "x", page, base)


@pytest.mark.parametrize(("code", "out", "err", "message"), [
    (1, "", "apply.py: no sglang/srt below /x; give --site-packages the folder that holds sglang/\n", "apply.py: no sglang/srt below /x"),
    (127, "", "", "exit status 127 without a report"),
    (0, '{"ledger": []}', "", "apply.py: "),
    (1, "Traceback", "Error\n", "apply.py: Error")])
def test_a_run_without_a_report(code, out, err, message):
    with pytest.raises(sglang_ledger.LedgerError, match=message):
        sglang_ledger.parse_report(code, out, err)


def test_faults_name_each_row_once():
    report = {"ledger": ledger(pp_embed_dim="refused"), "digest": "x", "status": 1,
              "differences": ["pp-embed-dim: refused, expected baked on 0.5.22: seen", "prefill-wait-event: baked, expected already upstream on x: seen"]}
    assert sglang_ledger.faults(report) == ["pp-embed-dim: refused: seen", "prefill-wait-event: baked, expected already upstream on x: seen"]


def test_the_derived_layer_gives_the_user_back():
    text = sglang_image.dockerfile("sha256:abc", "python3", ["--only", "a b"], "1000:1000", {"infera.serving.ledger": 'f"f'})
    assert text.splitlines() == [
        "FROM sha256:abc", "USER 0", "COPY patches/ /usr/local/lib/infera/patches/",
        'RUN ["python3", "-B", "/usr/local/lib/infera/patches/apply.py", "--ledger", "/usr/local/lib/infera/ledger.json", "--only", "a b"]',
        "USER 1000:1000", 'LABEL infera.serving.ledger="f\\"f"']
    assert "USER 1000" not in sglang_image.dockerfile("sha256:abc", "python3", [], "", {})


def test_the_archive_holds_the_applier_and_nothing_else(tmp_path):
    (tmp_path / "a.tar").write_bytes(action.packed())
    with tarfile.open(tmp_path / "a.tar") as archive:
        names = set(archive.getnames())
        (tmp_path / "out").mkdir()
        for member in archive:
            sglang_image.unpack(archive, member, str(tmp_path / "out"))
    assert {"apply.py", "bytecode.py", "files.py", "patchlib.py", "manifest.json", "pp_embed_dim/patch.py"} <= names
    assert not [name for name in names if not name.endswith((".py", ".json")) or "pycache" in name]
    assert (tmp_path / "out" / "pp_embed_dim" / "patch.py").read_bytes() == (PATCHES / "pp_embed_dim" / "patch.py").read_bytes()


@pytest.mark.parametrize("name", ["../out.py", "/etc/out.py"])
def test_an_archive_that_leaves_its_folder_is_refused(name, tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    with tarfile.open(tmp_path / "a.tar") as archive, pytest.raises(OSError, match="no plain file below it"):
        sglang_image.unpack(archive, archive.next(), str(tmp_path / "inside"))
