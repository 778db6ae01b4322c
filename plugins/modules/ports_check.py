#!/usr/bin/python
# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: ports_check
short_description: Check that the planned ports of a host are free
version_added: 0.1.0
description:
  - Fails when a planned port is held by anything but a container of the same deployment, or lies in the range from which the kernel takes ports for
    outgoing connections. All faults are reported in one run. It changes nothing.
  - Holders are found through /proc, so root sees them all; without root a held port counts as held by someone else.
options:
  deployment:
    description: Id of the deployment; its own containers may hold the ports.
    type: str
    required: true
  ports:
    description: The ports, each with the variable that sets it and what it is for.
    type: list
    elements: dict
    required: true
    suboptions:
      port:
        description: Port number.
        type: int
        required: true
      variable:
        description: Variable of the inventory that sets it.
        type: str
        required: true
      use:
        description: What listens there.
        type: str
        required: true
  proc_root:
    description: Where the proc file system is.
    type: path
    default: /proc
attributes:
  check_mode:
    description: Can run in check mode; it never changes anything.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
  idempotent:
    description: It never changes anything.
    support: full
author:
  - The infera.serving maintainers (@infera)
"""

EXAMPLES = r"""
- name: Check the router's port
  infera.serving.ports_check:
    deployment: local
    ports:
      - port: 8000
        variable: router_port
        use: router
"""

RETURN = r"""
faults:
  description: One line per port that cannot be used.
  returned: always
  type: list
  elements: str
own:
  description: Ports that containers of the deployment hold.
  returned: always
  type: list
  elements: int
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils import host_ports


def main():
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "required": True},
            "ports": {"type": "list", "elements": "dict", "required": True, "options": {
                "port": {"type": "int", "required": True}, "variable": {"type": "str", "required": True}, "use": {"type": "str", "required": True}}},
            "proc_root": {"type": "path", "default": "/proc"}},
        supports_check_mode=True)
    proc, deployment = module.params["proc_root"], module.params["deployment"]
    wanted = {entry["port"]: entry for entry in module.params["ports"]}
    faults, own = [], []
    ephemeral, reserved = host_ports.ephemeral_range(proc), host_ports.reserved_ports(proc)
    for port, entry in sorted(wanted.items()):
        if ephemeral and ephemeral[0] <= port <= ephemeral[1] and port not in reserved:
            faults.append("%s: %d (%s): lies in this host's ephemeral range %d-%d, where any outgoing connection may take it; choose a port outside" % (
                entry["variable"], port, entry["use"], ephemeral[0], ephemeral[1]))
    for port, owners in sorted(host_ports.listeners(wanted, proc).items()):
        foreign = [owner for owner in owners if not (owner["container"] and _deployment(module, owner["container"]) == deployment)]
        if not foreign:
            own.append(port)
            continue
        entry, holder = wanted[port], foreign[0]
        faults.append("%s: %d (%s): held by %s; stop it or choose another port" % (entry["variable"], port, entry["use"], host_ports.describe(holder)))
    if faults:
        module.fail_json(msg="\n".join(faults), faults=faults, own=own)
    module.exit_json(changed=False, faults=[], own=own)


def _deployment(module, container):
    docker = module.get_bin_path("docker")
    if not docker:
        return None
    code, out, _err = module.run_command([docker, "inspect", "--format", "{{json .Config.Labels}}", container])
    if code:
        return None
    try:
        return (json.loads(out) or {}).get("infera.serving.deployment")
    except ValueError:
        return None


if __name__ == "__main__":
    main()
