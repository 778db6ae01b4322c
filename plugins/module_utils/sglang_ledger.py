# Copyright (c) 2026 The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The applier's report, and the status page that it is held against. Pure."""
from __future__ import annotations

import json
import re

REFUSED = "refused"
DIGEST = re.compile(r"\bwheel (\S+) `([0-9a-f]{64})`")
# What to do about a row that differs, by the status that was found.
REMEDY = {
    REFUSED: "the source is none that the patch was written for: read the file at the anchor named, and adapt images/sglang/patches",
    "baked": "this base needs the patch, which applies; the page was made from other sources: make it anew before you rely on it",
    "already upstream": "the base has a fix of its own; check that it does what the patch does",
    "not needed": "the base has no such code; check that the fault cannot occur there",
}


class LedgerError(ValueError):
    """The applier's output or the page cannot be used."""


def parse_report(code, out, err):
    """The applier's JSON report. Exit status 0, 1 and 3 carry one; anything else, and a failure before the ledger, is an error."""
    try:
        report = json.loads(out)
        report["ledger"], report["digest"], report["status"]
        return report
    except (ValueError, KeyError, TypeError):
        lines = [line for line in (err or out or "").strip().splitlines() if line.strip()]
        raise LedgerError("apply.py: " + (lines[-1].removeprefix("apply.py: ") if lines else "exit status %d without a report" % code))


def faults(report):
    """Rows that were refused, and rows that differ from what the manifest expects, one text each."""
    refused = ["%s: refused: %s" % (row["name"], row["evidence"]) for row in report["ledger"] if row["status"] == REFUSED]
    names = {row["name"] for row in report["ledger"] if row["status"] == REFUSED}
    return refused + [text for text in report.get("differences", ()) if text.split(":")[0] not in names]


def page_columns(text):
    """STATUS.md's ledger table -> {column: {patch: [status, ...]}}; several statuses stand for `either`. Raises LedgerError."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines() if line.lstrip().startswith("|")]
    start = next((number for number, row in enumerate(rows) if row[:2] == ["patch", "subject"]), None)
    if start is None:
        raise LedgerError("the status page has no ledger table")
    head, columns = rows[start], {}
    for row in rows[start + 2:]:
        if len(row) != len(head) or not row[0].startswith("`"):
            break
        for name, cell in list(zip(head, row))[2:]:
            columns.setdefault(name, {})[row[0].strip("`")] = cell.split(" or ")
    return columns


def column_of(columns, base):
    """The page's column for a base: a wheel's version, or a ROCm image's tag. Raises LedgerError where the page has none."""
    for name in ("wheel " + base, "expected on " + base):
        if name in columns:
            return name
    raise LedgerError("the status page has no column for %r; it has: %s" % (base, ", ".join(columns)))


def beside_page(ledger, digest, text, base):
    """Rows that differ between a ledger and the page's column of a base: [{name, found, page, evidence, remedy}].

    A wheel's column has a digest as well, which covers every patched file's contents; a differing one is a row named `digest`.
    """
    page = page_columns(text)
    column = page[column_of(page, base)]
    found = {row["name"]: row for row in ledger}
    rows = []
    for name in list(column) + [name for name in found if name not in column]:
        status = found[name]["status"] if name in found else "no such row"
        if status not in column.get(name, ()):
            rows.append({"name": name, "found": status, "page": " or ".join(column.get(name, ["no such row"])),
                         "evidence": found[name]["evidence"] if name in found else "",
                         "remedy": REMEDY.get(status, "page and applier are of different versions: take both from one checkout")})
    written = dict(DIGEST.findall(text)).get(base)
    if not rows and written and written != digest:
        rows.append({"name": "digest", "found": digest, "page": written, "evidence": "every row is as on the page, but a patched file has other contents",
                     "remedy": "the base is not the wheel that the page names; nothing to do where every patch is in place"})
    return rows


def table(ledger):
    """The ledger as lines of text."""
    return ["%-17s%s%s" % (row["status"], row["name"], " (files to change: %s)" % ", ".join(row["files"]) if row["changed"] else "") for row in ledger]
