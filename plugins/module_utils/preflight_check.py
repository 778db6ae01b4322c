# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One check of a preflight: what was looked at, what was found, what to do about it; and tables of them."""
from __future__ import annotations

PASS, FAIL, WARN, NA = "pass", "FAIL", "warn", "n/a"
STATUSES = (FAIL, WARN, PASS, NA)


def passed(name, value):
    return {"check": name, "status": PASS, "value": value, "fix": ""}


def failed(name, value, fix):
    return {"check": name, "status": FAIL, "value": value, "fix": fix}


def warned(name, value, fix=""):
    return {"check": name, "status": WARN, "value": value, "fix": fix}


def not_applicable(name, why):
    return {"check": name, "status": NA, "value": why, "fix": ""}


def verdict(name, faults, value, fix=None):
    """Pass with ``value`` when there are no faults, else one failed check per fault; a fault is text or (text, fix)."""
    if not faults:
        return [passed(name, value)]
    return [failed(name, *(fault if isinstance(fault, tuple) else (fault, fix or ""))) for fault in faults]


def ignore(checks, names):
    """Turn failed checks of these names into warnings."""
    return [dict(check, status=WARN, fix="ignored by preflight_ignore; " + check["fix"]) if check["status"] == FAIL and check["check"] in names else check
            for check in checks]


def count(checks):
    """Return how many checks have each status."""
    return {status: sum(1 for check in checks if check["status"] == status) for status in STATUSES}


def line(check):
    """Return a check as one line: name, finding, what to do."""
    return "%s: %s" % (check["check"], check["value"]) + ("; %s" % check["fix"] if check["fix"] else "")


def failures(checks):
    return [line(check) for check in checks if check["status"] == FAIL]


def table(checks, title):
    """Lay checks out as lines: a heading, one line per check, what to do below each that failed, what does not apply, the counts."""
    shown = [check for check in checks if check["status"] != NA]
    width = max([len(check["check"]) for check in shown] or [0])
    lines = [title]
    for check in shown:
        lines.append("  %-4s  %-*s  %s" % (check["status"], width, check["check"], check["value"]))
        if check["fix"]:
            lines.append("  %-4s  %-*s  -> %s" % ("", width, "", check["fix"]))
    reasons = {}
    for check in checks:
        if check["status"] == NA:
            reasons.setdefault(check["value"], []).append(check["check"])
    lines += ["  %-4s  %s: %s" % (NA, ", ".join(names), why) for why, names in reasons.items()]
    counts = count(checks)
    lines.append("  %d passed, %d failed, %d warnings, %d not applicable" % (counts[PASS], counts[FAIL], counts[WARN], counts[NA]))
    return lines
