#!/usr/bin/env python3
"""Rehearse a measured point on this machine: up, smoke, evaluation, AgentX, report, down, with the real SGLang on the CPU.

usage: ci/rehearse.py [--shape 1p1d|2p1d|1p_decode4|mix] [--shared] [--seconds N] [--keep]
Results are of class `rehearsal` and never valid. Records and the report stay in runs/ and runs/rehearsal-<shape>/.
Exit status: that of the first step that failed; the deployment is taken down all the same, logs kept.
"""
import argparse
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPES = ROOT / "tests" / "shapes"
SETTINGS = ROOT / "tests" / "rehearsal" / "settings.yml"
DATASET = ROOT / "tests" / "rehearsal" / "gsm8k"


def playbook(name: str, *args: str) -> list:
    return [str(ROOT / ".venv" / "bin" / "ansible-playbook"), name, "-i", "inventories/local", "-l", "local", *args]


def steps(shape: str, shared: bool, seconds: int, keep: bool) -> list:
    """Return [(step, argv, seconds at most, always)] in order. With *shared* the deployment of inventories/local is used as it runs."""
    deployment = "local" if shared else f"{shape}-small".replace("_", "-")
    of_shape = [] if shared else ["-e", f"@{SHAPES / (shape + '-small.yml')}"]
    measured = [*of_shape, "-e", f"@{SETTINGS}", "-e", f"evaluate_dataset_dir={DATASET}", "-e", f"agentx_duration={seconds}"]
    report = ROOT / "runs" / f"rehearsal-{deployment}"
    out = [] if shared else [("up and smoke", playbook("site.yml", *of_shape), 900, False)]
    out += [
        ("smoke", playbook("playbooks/smoke.yml", *of_shape), 300, False),
        ("evaluate", playbook("playbooks/evaluate.yml", *measured), 900, False),
        # The deployment was brought up above for this run alone, so the play does not make another.
        ("agentx", playbook("playbooks/agentx.yml", *measured, "-e", "agentx_own_deployment=false"), 1200, False),
        ("report", playbook("playbooks/report.yml", "-e", f"report_dest={report}", "-e",
                            '{"report_results": ["%s"], "report_title": "Rehearsal, never comparable"}' % (ROOT / "runs" / deployment / "points")), 120, False),
    ]
    if not shared and not keep:
        out.append(("down", playbook("playbooks/down.yml", *of_shape), 300, True))
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="1p1d", help="of: " + ", ".join(sorted(p.stem.removesuffix("-small") for p in SHAPES.glob("*-small.yml"))))
    parser.add_argument("--shared", action="store_true", help="use the deployment of inventories/local that runs, and leave it running")
    parser.add_argument("--seconds", type=int, default=90, help="measured seconds of the AgentX replay (default 90)")
    parser.add_argument("--keep", action="store_true", help="leave the deployment running")
    args = parser.parse_args()
    if not (SHAPES / f"{args.shape}-small.yml").exists():
        parser.error(f"--shape {args.shape!r}: unknown; use one of the shapes in {SHAPES.relative_to(ROOT)}")
    if args.seconds < 10:
        parser.error(f"--seconds {args.seconds}: give at least 10")
    rows, code = [], 0
    for name, argv, limit, always in steps(args.shape, args.shared, args.seconds, args.keep):
        if code and not always:
            rows.append((name, 0, "not run"))
            continue
        print(f"== {name}, at most {limit // 60} minutes", flush=True)
        started = time.monotonic()
        try:
            ended = subprocess.run(argv, cwd=ROOT, timeout=limit, stdin=subprocess.DEVNULL).returncode
        except subprocess.TimeoutExpired:
            print(f"ci/rehearse.py: {name} ended after {limit} s", flush=True)
            ended = 124
        code = code or ended
        rows.append((name, time.monotonic() - started, "ok" if ended == 0 else f"exit {ended}"))
    print("\nstep            seconds  result")
    for name, seconds, result in rows:
        print(f"{name:<14} {seconds:8.0f}  {result}")
    return code


if __name__ == "__main__":
    sys.exit(main())
