#!/usr/bin/env python3
"""Run the test stages, print what each took beside its budget, and close with one line `N passed, N failed`.

usage: ci/run_stages.py [STAGE ...]      (default: all of STAGES in their order; those of BY_NAME run by name only)
Logs of every step go to .cache/test-logs/; what failed is named once more at the end. Exit status 1 when anything failed.
"""
import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

from stages import BY_NAME, STAGES, Step

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOGS = ROOT / ".cache" / "test-logs"
FAULT = 500, 900  # letters from the beginning and from the end of a failed test's message, repeated at the end: a command's last words tell most


@dataclasses.dataclass
class Outcome:
    """What one step did: counts of tests (1 for a plain command), seconds, the reasons of skips, and of failures what each said first."""

    name: str
    passed: int
    failed: int
    skipped: list
    faults: list
    seconds: float
    log: pathlib.Path


def environment() -> dict:
    env = dict(os.environ)
    env["PATH"] = f"{ROOT / '.venv' / 'bin'}:{env['PATH']}"
    env["ANSIBLE_CONFIG"] = str(ROOT / "ansible.cfg")
    env.setdefault("INFERA_TEST_CACHE", str(ROOT / ".cache"))
    env["PYTHONUNBUFFERED"] = "1"
    return env


def shortened(message: str) -> str:
    """A failed test's message on one line, its middle left out where it is long."""
    words = " ".join(message.split())
    return words if len(words) <= sum(FAULT) else f"{words[:FAULT[0]]} ... {words[-FAULT[1]:]}"


def count_junit(report: pathlib.Path) -> tuple:
    """Return (passed, failed, [skip reasons], [faults]) of a JUnit file; an absent file counts as one failure."""
    if not report.exists():
        return 0, 1, [], ["no test ran"]
    passed = failed = 0
    skipped, faults = [], []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        skip = case.find("skipped")
        fault = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        if skip is not None:
            skipped.append(f"{name}: {skip.get('message')}")
        elif fault is not None:
            failed += 1
            faults.append(f"{name}: {shortened(fault.get('message') or '')}")
        else:
            passed += 1
    return passed, failed, skipped, faults


def run(stage: str, step: Step) -> Outcome:
    """Run one step to its end or its time limit, with its output in a log."""
    log = LOGS / f"{stage}-{step.name}.log"
    report = log.with_suffix(".xml")
    report.unlink(missing_ok=True)
    argv = list(step.argv)
    if step.pytest:
        argv = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", f"--junitxml={report}", *argv]
    started = time.monotonic()
    with log.open("wb") as out:
        out.write(f"$ {shlex.join(argv)}\n".encode())
        out.flush()
        child = subprocess.Popen(argv, cwd=ROOT, env={**environment(), **step.env}, stdin=subprocess.DEVNULL,
                                 stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = child.wait(timeout=step.limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            out.write(f"\nci: ended after {step.limit} s\n".encode())
            code = -1
    seconds = time.monotonic() - started
    if step.pytest:
        passed, failed, skipped, faults = count_junit(report)
        if not failed and (code not in (0, 1) or not passed and not skipped):
            failed, faults = 1, [f"pytest ended with {code} after {passed} tests"]
    else:
        passed, failed, skipped, faults = (1, 0, [], []) if code == 0 else (0, 1, [], [f"ended with {code}"])
    return Outcome(step.name, passed, failed, skipped, faults, seconds, log)


def tell(stage: str, outcome: Outcome) -> None:
    word = "FAILED" if outcome.failed else "ok"
    skips = f", {len(outcome.skipped)} skipped" if outcome.skipped else ""
    print(f"  {stage}/{outcome.name}: {word}, {outcome.passed} passed, {outcome.failed} failed{skips}, {outcome.seconds:.0f} s", flush=True)
    for reason in outcome.skipped:
        print(f"    skipped {reason}", flush=True)
    if outcome.failed:
        tail = outcome.log.read_text(errors="replace").splitlines()[-120:]
        print("\n".join(f"    | {line}" for line in tail), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of: {', '.join(STAGES)}; by name only: {', '.join(BY_NAME)}")
    args = parser.parse_args()
    known = {**STAGES, **BY_NAME}
    unknown = [name for name in args.stages if name not in known]
    if unknown:
        parser.error(f"unknown stage {unknown[0]!r}; use one of {', '.join(known)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    rows, faults = [], []
    total = [0, 0, 0]
    for name in args.stages or STAGES:
        stage = known[name]
        print(f"{name}: at most {stage.budget} minutes", flush=True)
        started = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(max_workers=stage.parallel) as pool:
            for future in concurrent.futures.as_completed([pool.submit(run, name, step) for step in stage.steps]):
                outcome = future.result()
                tell(name, outcome)
                faults += [f"{name}/{outcome.name} {fault}" for fault in outcome.faults]
                total[0] += outcome.passed
                total[1] += outcome.failed
                total[2] += len(outcome.skipped)
        minutes = (time.monotonic() - started) / 60
        rows.append((name, minutes, stage.budget))
    print("\nstage          minutes  budget")
    for name, minutes, budget in rows:
        over = "  over its budget" if minutes > budget else ""
        print(f"{name:<14} {minutes:7.1f} {budget:7d}{over}")
    for fault in faults:
        print(f"failed: {fault}")
    skipped = f", {total[2]} skipped" if total[2] else ""
    print(f"{total[0]} passed, {total[1]} failed{skipped}")
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main())
