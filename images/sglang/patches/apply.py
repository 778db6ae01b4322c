#!/usr/bin/env python3
"""Apply the engine image's patches to an installed SGLang, all or nothing, and print the ledger.

usage: apply.py [--site-packages DIR] [--only NAME]... [--check] [--diff] [--json] [--expect BASE] [--ledger FILE]

Every decision follows from the source that is found, never from a version. The new text of every file is built and compiled
in memory first; if one patch is refused, no file is touched. A second run changes nothing.
Exit status: 0 done; 1 something was refused or could not be verified; 2 wrong usage; 3 the ledger differs from --expect.
"""
from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import hashlib
import importlib.util
import json
import pathlib
import sys
from typing import Any, Dict, List, Optional

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import bytecode  # noqa: E402
import files  # noqa: E402
from patchlib import BAKED, NOT_NEEDED, REFUSED, UPSTREAM, Patch, Refused, Result, Tree, resolve  # noqa: E402


class Usage(Exception):
    """Wrong options: exit status 2."""


WORDS = {"baked": BAKED, "upstream": UPSTREAM, "not-needed": NOT_NEEDED}


def load_manifest() -> Dict[str, Any]:
    """The manifest: `bases`, and `patches` in the order in which they are applied."""
    return json.loads((HERE / "manifest.json").read_text(encoding="utf-8"))


@functools.cache
def load_patch(folder: str) -> Patch:
    """The PATCH of one folder of this directory."""
    spec = importlib.util.spec_from_file_location(f"infera_patch_{folder}", HERE / folder / "patch.py")
    module = importlib.util.module_from_spec(spec)
    keep = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = keep
    return module.PATCH


def find_package(site_packages: Optional[str]) -> pathlib.Path:
    """The folder of the sglang package; found without importing it."""
    if site_packages is not None:
        places = [pathlib.Path(site_packages) / "sglang"]
    else:
        spec = importlib.util.find_spec("sglang")
        places = [pathlib.Path(place) for place in (spec.submodule_search_locations if spec and spec.submodule_search_locations else [])]
    for place in places:
        if (place / "srt").is_dir():
            return place.resolve()
    where = f"no sglang/srt below {site_packages}" if site_packages is not None else "sglang is not importable by this Python"
    raise SystemExit(f"apply.py: {where}; give --site-packages the folder that holds sglang/")


def decide(row: Dict[str, Any], tree: Tree) -> Result:
    """One row of the manifest on one tree: a patch, or a probe that proves a fix to be upstream."""
    if "folder" in row:
        return resolve(load_patch(row["folder"]), tree)
    for probe in row["proof"]:
        text = tree.get(probe["file"])
        if text is None or probe["text"] not in text:
            raise Refused(probe["file"], probe["text"], "the upstream fix is not here, and this image has no patch for it")
    shown = "; ".join(f"{probe['file']} has {probe['text'].strip()!r}" for probe in row["proof"])
    return Result(UPSTREAM, f"{row['evidence']} [{shown}]")


def plan(rows: List[Dict[str, Any]], tree: Tree) -> List[Dict[str, Any]]:
    """Ledger rows in manifest order; the tree carries the new texts of those that are to be baked."""
    ledger = []
    for row in rows:
        entry = {"name": row["name"], "subject": row["subject"], "status": REFUSED, "changed": False, "evidence": "", "files": []}
        try:
            result = decide(row, tree)
            entry.update(status=result.status, evidence=result.evidence, changed=bool(result.texts))
            if result.status == BAKED and "folder" in row:
                entry["files"] = list(load_patch(row["folder"]).files)
            tree.new.update(result.texts)
        except Refused as err:
            entry.update(evidence=str(err), file=err.file, anchor=err.anchor)
        ledger.append(entry)
    return ledger


def verify(rows: List[Dict[str, Any]], ledger: List[Dict[str, Any]], tree: Tree, check: bool) -> None:
    """Hold every baked patch's markers against bytecode; with check nothing is compiled, and a stale cache is a refusal."""
    for row, entry in zip(rows, ledger, strict=True):
        if entry["status"] != BAKED or (check and entry["changed"]):
            continue
        for file, marker in load_patch(row["folder"]).markers.items():
            source = tree.package / file
            try:
                lacking = bytecode.stale(source, marker) if check else bytecode.refreshed(source, marker)
                remedy = f"lacks the marker {marker!r}; run without --check"
            except (OSError, bytecode.BytecodeError) as err:
                lacking, remedy = [f"of {source.name}"], f"could not be made again ({err}); until it is, the engine may run unpatched"
            if lacking:
                entry.update(status=REFUSED, file=file, anchor=marker, evidence=f"{file}: source is patched, but the bytecode {', '.join(lacking)} {remedy}")


def digest(ledger: List[Dict[str, Any]], tree: Tree) -> str:
    """sha256 over names, statuses and the patched files' contents: equal for equal engines, whether just patched or long since."""
    lines = [f"{entry['name']}={entry['status']}" for entry in ledger]
    for file in sorted({file for entry in ledger for file in entry["files"]}):
        lines.append(f"{file}={hashlib.sha256(tree.text(file).encode('utf-8')).hexdigest()}")
    return hashlib.sha256("\n".join(lines).encode("utf-8")).hexdigest()


def differences(manifest: Dict[str, Any], base: str, ledger: List[Dict[str, Any]]) -> List[str]:
    """Rows whose status is not among those that the manifest expects of a base."""
    wrong = []
    expected = {row["name"]: [WORDS[word] for word in row["expected"][base]] for row in manifest["patches"]}
    for entry in ledger:
        if entry["status"] not in expected[entry["name"]]:
            wrong.append(f"{entry['name']}: {entry['status']}, expected {' or '.join(expected[entry['name']])} on {base}: {entry['evidence']}")
    return wrong


def unified(tree: Tree) -> str:
    """The edits as one diff."""
    parts = []
    for file, text in sorted(tree.new.items()):
        old = (tree.read[file] or "").splitlines(keepends=True)
        parts += difflib.unified_diff(old, text.splitlines(keepends=True), f"a/sglang/{file}", f"b/sglang/{file}")
    return "".join(parts)


def run(args: argparse.Namespace) -> Dict[str, Any]:
    """Check the options, then work under the lock; returns the report."""
    manifest = load_manifest()
    rows = manifest["patches"]
    if args.only:
        known = [row["name"] for row in rows]
        for name in args.only:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise Usage(f"--only {name}: no such patch" + (f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"))
        rows = [row for row in rows if row["name"] in args.only]
    if args.expect is not None and args.expect not in manifest["bases"]:
        raise Usage(f"--expect {args.expect}: unknown base; use one of {', '.join(manifest['bases'])}")
    package = find_package(args.site_packages)
    with contextlib.nullcontext() if args.check else files.locked(package):
        return work(args, manifest, rows, Tree(package))


def work(args: argparse.Namespace, manifest: Dict[str, Any], rows: List[Dict[str, Any]], tree: Tree) -> Dict[str, Any]:
    """Decide, write and verify on one tree; returns the report."""
    ledger = plan(rows, tree)
    report: Dict[str, Any] = {"package": str(tree.package), "check": args.check, "changed": bool(tree.new), "written": False}
    if args.diff:
        report["diff"] = unified(tree)
    differing = differences(manifest, args.expect, ledger) if args.expect is not None else []
    refused = any(entry["status"] == REFUSED for entry in ledger)
    if not refused and not differing and not args.check:
        files.sweep((tree.package / file).parent for row in rows if "folder" in row for file in load_patch(row["folder"]).files)
        if tree.new:
            files.replace_all({tree.package / file: text for file, text in tree.new.items()})
            report["written"] = True
        verify(rows, ledger, tree, check=False)
    elif args.check:
        verify(rows, ledger, tree, check=True)
    refused = any(entry["status"] == REFUSED for entry in ledger)
    report.update(ledger=ledger, digest=digest(ledger, tree), differences=differing, status=1 if refused else 3 if differing else 0)
    return report


def show(report: Dict[str, Any]) -> str:
    """The report as text."""
    lines = []
    for entry in report["ledger"]:
        again = " (already in place)" if entry["status"] == BAKED and not entry["changed"] else ""
        lines.append(f"{entry['status']:<17}{entry['name']}{again}: {entry['evidence']}")
    lines += [f"differs: {line}" for line in report["differences"]]
    if report["status"]:
        lines.append("No file was touched." if not report["written"] else "Files were written, but their bytecode could not be verified.")
    elif report["check"]:
        lines.append("Check only: " + ("files would change." if report["changed"] else "nothing would change."))
    lines.append(f"ledger sha256 {report['digest']}")
    return "\n".join(lines)


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--site-packages", metavar="DIR", help="folder that holds sglang/; default: where this Python finds it")
    parser.add_argument("--only", metavar="NAME", action="append", help="this patch alone; repeatable")
    parser.add_argument("--check", action="store_true", help="decide, write nothing")
    parser.add_argument("--diff", action="store_true", help="add a unified diff of the edits to the report")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--expect", metavar="BASE", help="refuse, before anything is written, a ledger other than the manifest's for this base")
    parser.add_argument("--ledger", metavar="FILE", help="write the report there too, as JSON")
    args = parser.parse_args(argv)
    try:
        report = run(args)
    except Usage as err:
        print(f"apply.py: {err}", file=sys.stderr)
        return 2
    except files.WriteError as err:
        print(f"apply.py: {err}", file=sys.stderr)
        return 1
    text = json.dumps(report, indent=1, sort_keys=True)
    if args.ledger:
        pathlib.Path(args.ledger).write_text(text + "\n", encoding="utf-8")
    print(text if args.json else show(report) + (f"\n{report['diff']}" if args.diff else ""))
    return report["status"]


if __name__ == "__main__":
    sys.exit(main())
