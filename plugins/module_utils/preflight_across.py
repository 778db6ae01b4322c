# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks that need several hosts at once; on the controller."""
from __future__ import annotations

from .preflight_check import failed, not_applicable, passed, verdict, warned
from .rails_parity import compare


def _groups(values):
    found = {}
    for host, value in values.items():
        found.setdefault(str(value), []).append(host)
    return ["%s on %s" % (value, ", ".join(hosts)) for value, hosts in sorted(found.items())]


def across(hosts, routed=False, prefix=24, max_skew=1.0):
    """Compare hosts. ``hosts``: ``{name: {rails: facts or None, images[], model, clock{offset_s, uncertainty_s}, kernel, driver, reach}}``.

    Returns checks; each failed one names both sides.
    """
    if len(hosts) < 2:
        return [not_applicable(name, "one host only") for name in ("rail parity", "images", "models", "clocks", "firewall")]
    return _parity(hosts, routed, prefix) + _images(hosts) + _models(hosts) + _clocks(hosts, max_skew) + _firewall(hosts) + _drivers(hosts)


def _parity(hosts, routed, prefix):
    rails = {name: facts["rails"] for name, facts in hosts.items() if facts.get("rails")}
    if len(rails) < 2:
        return [not_applicable("rail parity", "fewer than two hosts use rails")]
    found = compare(rails, routed, prefix)
    if not found["rails"] and not found["faults"]:
        return [not_applicable("rail parity", "no host has a usable rail")]
    checks = verdict("rail parity", found["faults"], "%d rails alike on %s" % (len(found["rails"]), ", ".join(rails)),
                     "rails of one name have to be one wire's two ends: same names, order, subnets, MTU and rate")
    return checks + [warned("rail parity", text) for text in found["warnings"]]


def _images(hosts):
    images = {name: facts["images"] for name, facts in hosts.items() if facts.get("images")}
    mixed = ["%s runs engines of %d images" % (name, len(found)) for name, found in images.items() if len(found) > 1]
    if mixed:
        return [failed("images", "; ".join(mixed), "roll the engines out (rollout.yml), so that all run one image")]
    if len(images) < 2:
        return [not_applicable("images", "fewer than two hosts have an engine image yet")]
    values = {name: found[0] for name, found in images.items()}
    return verdict("images", ["engine images differ: %s" % "; ".join(_groups(values))] if len(set(values.values())) > 1 else [],
                   "one engine image, %s" % next(iter(values.values()))[:19], "pull the same image on every host (pull.yml), by digest")


def _models(hosts):
    models = {name: facts["model"] for name, facts in hosts.items() if facts.get("model")}
    if len(models) < 2:
        return [not_applicable("models", "fewer than two hosts hold a model")]
    values = {name: "%d shards of %d bytes" % (model["shards"], model["bytes"]) for name, model in models.items()}
    return verdict("models", ["the model differs: %s" % "; ".join(_groups(values))] if len(set(values.values())) > 1 else [],
                   next(iter(values.values())), "copy the same model to every host")


def _clocks(hosts, max_skew):
    clocks = {name: facts["clock"] for name, facts in hosts.items() if facts.get("clock")}
    if len(clocks) < 2:
        return [not_applicable("clocks", "not measured")]
    low = min(clocks, key=lambda name: clocks[name]["offset_s"])
    high = max(clocks, key=lambda name: clocks[name]["offset_s"])
    skew = clocks[high]["offset_s"] - clocks[low]["offset_s"]
    unsure = clocks[high]["uncertainty_s"] + clocks[low]["uncertainty_s"]
    text = "%.2f s %s (measured to %.2f s)" % (skew, "between %s and %s" % (low, high) if low != high else "between all", unsure)
    if skew - unsure > max_skew:
        return [failed("clocks", text + ", %.1f allowed" % max_skew, "synchronise the clocks (chrony, systemd-timesyncd)")]
    return [passed("clocks", text)]


def _firewall(hosts):
    reach = {name: facts["reach"] for name, facts in hosts.items() if facts.get("reach")}
    if len(reach) < 2:
        return [not_applicable("firewall", "not probed")]
    faults, pairs = [], 0
    for name, found in reach.items():
        for attempt in found["attempts"]:
            pairs += 1
            listening = attempt["port"] in reach.get(attempt["host"], {}).get("listening", [])
            if attempt["outcome"] == "open" or (attempt["outcome"] == "refused" and not listening):
                continue
            why = "rejected" if attempt["outcome"] == "refused" else attempt["outcome"]
            faults.append("%s cannot reach port %d of %s (%s): %s" % (name, attempt["port"], attempt["host"], attempt["address"], why))
    shown = faults[:8] + (["%d more" % (len(faults) - 8)] if len(faults) > 8 else [])
    return verdict("firewall", shown, "%d connections both ways" % pairs,
                   "open the port in the firewalls of both hosts and between them; engines of a pair also use 15000 to 17000 and any port above 32767")


def _drivers(hosts):
    checks = []
    for key, what in (("driver", "amdgpu drivers"), ("kernel", "kernels")):
        values = {name: facts[key] for name, facts in hosts.items() if facts.get(key)}
        if len(set(values.values())) > 1:
            checks.append(warned(what, "; ".join(_groups(values)), "results of different %s are hard to compare" % what))
    return checks
