# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What clients derive from a run record, never from variables."""
from __future__ import annotations

from ansible.errors import AnsibleFilterError


def _address(record, name):
    for host in record["hosts"]:
        if host["name"] == name:
            return host["address"]
    raise AnsibleFilterError(f"the run record has no host {name!r}")


def worker_urls(record, containers):
    """``http://address:port`` of each engine container, in their order."""
    return [f"http://{_address(record, c['host'])}:{c['ports']['http']}" for c in containers]


def metrics_urls(record, containers):
    """The metrics pages of the engines, in their order."""
    return [url + "/metrics" for url in worker_urls(record, containers)]


def _flag(argv, name):
    """The value of ``--name V`` or ``--name=V``; None where absent."""
    for place, word in enumerate(argv):
        if word == name and place + 1 < len(argv):
            return argv[place + 1]
        if word.startswith(name + "="):
            return word.split("=", 1)[1]
    return None


def draft_tokens(record):
    """Draft tokens of the first decode or mixed engine; 0 without speculation."""
    for container in record["containers"]:
        if container["role"] in ("decode", "mixed"):
            return int(_flag(container["argv"], "--speculative-num-draft-tokens") or 0)
    return 0


def topology(record):
    """{prefill, decode}: {workers, tp, pp, dp_attn, gpus} as the engines were started, for the AgentX aggregation's environment."""
    out = {}
    for role in ("prefill", "decode"):
        wanted = (role, "mixed") if role == "decode" else (role,)
        found = [c for c in record["containers"] if c["role"] in wanted]
        argv = found[0]["argv"] if found else []
        tp, pp = int(_flag(argv, "--tp-size") or 1), int(_flag(argv, "--pp-size") or 1)
        ranks = int(_flag(argv, "--attn-dp-size") or 1)
        out[role] = {"workers": len(found), "tp": tp, "pp": pp, "dp_attn": ranks > 1, "gpus": sum(len(c.get("gpus", [])) for c in found)}
    return out


class FilterModule:
    def filters(self):
        return {"worker_urls": worker_urls, "metrics_urls": metrics_urls, "draft_tokens": draft_tokens, "record_topology": topology}
