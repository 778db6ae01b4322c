#!/usr/bin/python
# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: wait
short_description: Wait until containers of a host answer over HTTP
version_added: 0.1.0
description:
  - Polls the health URLs of containers until all of them answer 200, and shows every few seconds what is awaited and for how long at most.
  - A container that is gone, or that ends again and again, fails at once with the last lines of its log.
options:
  targets:
    description: What to wait for.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the container.
        type: str
        required: true
      url:
        description: URL that must answer 200; empty for a container that does its work and ends, which is awaited then.
        type: str
        default: ""
      timeout:
        description: Seconds to wait at most.
        type: int
        default: 300
      successor:
        description: Another process answered on the same URL before; it counts only when the router that answers is no older than the container.
        type: bool
        default: false
      held_by:
        description: URL of a router; the engine at O(targets[].url) counts as ready when that router holds no request on it any more.
        type: str
      active_at:
        description: URL of a router; the engine counts as ready only when that router knows it as active.
        type: str
  interval:
    description: Seconds between two looks.
    type: float
    default: 2
  report_every:
    description: Seconds between two lines of progress.
    type: float
    default: 15
  max_restarts:
    description: Restarts during the wait after which a container counts as ending again and again.
    type: int
    default: 2
  ca_file:
    description: CA certificate on the host, for HTTPS.
    type: path
  cert_file:
    description: Client certificate on the host, for HTTPS.
    type: path
  key_file:
    description: Its key on the host.
    type: path
attributes:
  check_mode:
    description: Waits for nothing in check mode.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
  idempotent:
    description: It changes nothing.
    support: full
author:
  - The infera.serving maintainers (@infera)
"""

EXAMPLES = r"""
- name: Wait for the router
  infera.serving.wait:
    targets:
      - name: local-router-0
        url: http://127.0.0.1:8000/health
        timeout: 60
"""

RETURN = r"""
seconds:
  description: Seconds that each container took, by name.
  returned: success
  type: dict
"""

import calendar
import json
import re
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request

from ansible.module_utils.basic import AnsibleModule


def main():
    module = AnsibleModule(
        argument_spec={
            "targets": {"type": "list", "elements": "dict", "required": True, "options": {
                "name": {"type": "str", "required": True}, "url": {"type": "str", "default": ""}, "timeout": {"type": "int", "default": 300},
                "successor": {"type": "bool", "default": False}, "held_by": {"type": "str"}, "active_at": {"type": "str"}}},
            "interval": {"type": "float", "default": 2}, "report_every": {"type": "float", "default": 15}, "max_restarts": {"type": "int", "default": 2},
            "ca_file": {"type": "path"}, "cert_file": {"type": "path"}, "key_file": {"type": "path", "no_log": False}},
        supports_check_mode=True)
    module.exit_json(changed=False, states=[look(module, target) for target in module.params["targets"]])


def look(module, target):
    state = {"name": target["name"], "ready": False, "gone": False, "restarts": 0, "detail": "", "log": []}
    tls, docker = context(module.params), module.get_bin_path("docker")
    if not target["url"]:
        return look_inside(module, docker, target, state)
    worker = urllib.parse.urlsplit(target["url"]).netloc
    if target["held_by"]:
        held = held_requests(ask(target["held_by"] + "/metrics", tls)[2], worker)
        state.update(ready=held == 0, detail="the router's metrics cannot be read" if held is None else "the router holds %d requests on it" % held)
        return state
    status, detail, _body = ask(target["url"], tls)
    state.update(ready=status == 200, detail=detail)
    if state["ready"] and target["successor"] and not succeeded(module, docker, target, tls):
        state.update(ready=False, detail="the one before still answers")
    if state["ready"] and target["active_at"]:
        known = worker_status(ask(target["active_at"] + "/v1/workers", tls)[2], worker)
        state.update(ready=known == "active", detail="the router knows it as %s" % known)
    return state if state["ready"] else look_inside(module, docker, target, state)


def look_inside(module, docker, target, state):
    """What Docker knows of a container that does not answer, or is to end by itself."""
    code, out, _err = module.run_command([docker, "inspect", "--format", "{{json .}}", target["name"]]) if docker else (1, "", "")
    if code:
        state.update(gone=True, detail="there is no such container")
        return state
    info = json.loads(out)
    now = info["State"]
    state["restarts"] = int(info.get("RestartCount") or 0)
    if not target["url"]:
        state.update(ready=now.get("Status") == "exited" and now.get("ExitCode") == 0, detail="it works")
    if not now.get("Running"):
        state["detail"] = "container %s, exit status %s%s" % (now.get("Status"), now.get("ExitCode"), ", " + now["Error"] if now.get("Error") else "")
        state["gone"] = now.get("Status") in ("exited", "dead") and info["HostConfig"]["RestartPolicy"]["Name"] in ("", "no")
    code, out, err = module.run_command([docker, "logs", "--tail", "25", target["name"]])
    state["log"] = (out + err).splitlines()[-25:]
    return state


def held_requests(page, worker):
    """Requests that a router's metrics page books on a decode worker, all ranks together; None where there is no page."""
    if not page:
        return None
    found = re.findall(r'^infera_router_decode_demand_requests\{[^}]*target="%s(?:#dp\d+)?"[^}]*\} (\S+)' % re.escape(worker), page, re.M)
    return int(sum(map(float, found)))


def worker_status(page, worker):
    """What /v1/workers says of a worker's status; absent counts as active."""
    try:
        listed = json.loads(page)["workers"]
    except (ValueError, KeyError, TypeError):
        return "unknown"
    return next((row.get("status") or "active" for row in listed if row.get("worker_id") == worker), "not registered")


def succeeded(module, docker, target, tls):
    """Whether the router that answers started within the container, by its own uptime."""
    code, out, _err = module.run_command([docker, "inspect", "--format", "{{.State.StartedAt}}", target["name"]]) if docker else (1, "", "")
    found = re.search(r"^infera_router_uptime_seconds (\S+)", ask(target["url"].rsplit("/", 1)[0] + "/metrics", tls)[2], re.M)
    if code or not found:
        return False
    started = calendar.timegm(time.strptime(out.strip()[:19], "%Y-%m-%dT%H:%M:%S"))
    return float(found.group(1)) <= time.time() - started + 0.5


def context(params):
    if not params["ca_file"]:
        return None
    made = ssl.create_default_context(cafile=params["ca_file"])
    if params["cert_file"]:
        made.load_cert_chain(params["cert_file"], params["key_file"])
    return made


def ask(url, tls):
    """Return (status or None, what to tell, body)."""
    try:
        with urllib.request.urlopen(url, timeout=5, context=tls) as answer:
            return answer.status, "HTTP %d" % answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, "HTTP %d" % error.code, ""
    except urllib.error.URLError as error:
        return None, "no answer yet (%s)" % error.reason, ""
    except (OSError, socket.timeout, ValueError) as error:
        return None, "no answer yet (%s)" % error, ""


if __name__ == "__main__":
    main()
