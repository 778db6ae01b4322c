#!/usr/bin/python
# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_host
short_description: Check a host before anything is deployed on it
version_added: 0.1.0
description:
  - Looks at system, Python, memory, disk, ports, limits, model, mounts, etcd, Docker and GPUs, and says for each check what was found
    and what to do.
  - It never fails on a check that failed; the role preflight collects all checks of all hosts first.
  - It only reads. No driver is installed, no GPU is reset.
author:
  - The infera.serving maintainers (@infera)
extends_documentation_fragment:
  - infera.serving.attributes
  - infera.serving.attributes.info
  - infera.serving.rails
options:
  os_release:
    description:
      - The file that names the operating system.
    type: path
    default: /etc/os-release
  kernel_log:
    description:
      - A file with the kernel's log. Without it C(dmesg) is asked.
    type: path
  deployment:
    description:
      - Id of the deployment. Its own containers may hold ports, memory and GPUs.
    type: str
    default: ''
  supported_systems:
    description:
      - Systems, each as name and version.
    type: list
    elements: str
    default: [Debian 12, Debian 13, Ubuntu 22.04, Ubuntu 24.04]
  memory_gb:
    description:
      - Memory in GB (10^9 bytes) that has to be free for everything but HiCache.
    type: float
    default: 6
  hicache_stages:
    description:
      - Engine processes with a HiCache on this host.
    type: int
    default: 0
  hicache_gb:
    description:
      - HiCache of one such process in GB (10^9 bytes); 1.23 times of it are needed.
    type: float
    default: 0
  disk:
    description:
      - Folders, each with the GB that have to be free there.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: The folder.
        type: path
        required: true
      gb:
        description: GB (10^9 bytes) that have to be free.
        type: float
        required: true
  ports:
    description:
      - Ports that have to be free, or held by the deployment's own containers.
    type: list
    elements: dict
    default: []
    suboptions:
      port:
        description: The port.
        type: int
        required: true
      variable:
        description: The variable that sets it.
        type: str
        required: true
      use:
        description: What listens there.
        type: str
        required: true
  ulimits:
    description:
      - Limits that containers will ask for, as C(soft:hard) or one number, by name.
    type: dict
    default: {}
  model:
    description:
      - Folder of the model, whose shards have to be complete.
    type: str
    default: ''
  model_variable:
    description:
      - The variable that sets O(model).
    type: str
    default: infera_model_path
  mounts:
    description:
      - Files and folders that containers bind.
    type: list
    elements: dict
    default: []
    suboptions:
      source:
        description: The path on the host.
        type: path
        required: true
      variable:
        description: The variable that sets it.
        type: str
        required: true
      file:
        description: Whether it has to be a file.
        type: bool
        default: false
  etcd_endpoints:
    description:
      - URLs of etcd.
    type: list
    elements: str
    default: []
  etcd_managed:
    description:
      - Whether the deployment runs etcd itself, so that there is none before its first start.
    type: bool
    default: true
  etcd_files:
    description:
      - Files for TLS, by the keys C(ca), C(cert) and C(key).
    type: dict
    default: {}
  gpus_expected:
    description:
      - GPUs that the host has to have; 0 where no engine uses one.
    type: int
    default: 0
  gpus:
    description:
      - HIP ordinals that engines use. Without it all.
    type: list
    elements: int
    default: []
  max_vram_gib:
    description:
      - A GPU with less than this in use is idle.
    type: float
    default: 2
  images:
    description:
      - Images whose id on this host is returned.
    type: list
    elements: str
    default: []
notes:
  - The clock is compared with the controller's by the action plugin of the same name.
"""

EXAMPLES = r"""
- name: Look at a host that will run one router
  infera.serving.preflight_host:
    deployment: demo
    memory_gb: 4
    ports:
      - {port: 8000, variable: router_port, use: router}
  register: looked
"""

RETURN = r"""
checks:
  description: The checks, each with C(check), C(status) (C(pass), C(FAIL), C(warn) or C(n/a)), C(value) and C(fix).
  returned: success
  type: list
  elements: dict
facts:
  description: What comparisons with other hosts need, C(images), C(model), C(kernel) and C(driver).
  returned: success
  type: dict
clock:
  description: The host's clock minus the controller's in seconds (C(offset_s)), and how exactly it is known (C(uncertainty_s)).
  returned: when the clock could be read
  type: dict
"""

import importlib.util
import os
import sys

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils import preflight_docker as docker
from ansible_collections.infera.serving.plugins.module_utils import preflight_gpus as gpus
from ansible_collections.infera.serving.plugins.module_utils import preflight_host as host
from ansible_collections.infera.serving.plugins.module_utils.rails_sysfs import Sysfs, read


def kernel_log(module):
    """Return the kernel's log, or None when it cannot be read."""
    path = module.params["kernel_log"]
    if path:
        return read(path)
    if not module.params["gpus_expected"]:
        return None
    command = module.get_bin_path("dmesg")
    code, out, _err = module.run_command([command]) if command else (1, "", "")
    return out if not code else None


def main():
    module = AnsibleModule(
        argument_spec={
            "sysfs_root": {"type": "path", "default": "/sys"},
            "dev_root": {"type": "path"},
            "proc_root": {"type": "path"},
            "os_release": {"type": "path", "default": "/etc/os-release"},
            "kernel_log": {"type": "path"},
            "deployment": {"type": "str", "default": ""},
            "supported_systems": {"type": "list", "elements": "str", "default": ["Debian 12", "Debian 13", "Ubuntu 22.04", "Ubuntu 24.04"]},
            "memory_gb": {"type": "float", "default": 6},
            "hicache_stages": {"type": "int", "default": 0},
            "hicache_gb": {"type": "float", "default": 0},
            "disk": {"type": "list", "elements": "dict", "default": [], "options": {
                "path": {"type": "path", "required": True}, "gb": {"type": "float", "required": True}}},
            "ports": {"type": "list", "elements": "dict", "default": [], "options": {
                "port": {"type": "int", "required": True}, "variable": {"type": "str", "required": True}, "use": {"type": "str", "required": True}}},
            "ulimits": {"type": "dict", "default": {}},
            "model": {"type": "str", "default": ""},
            "model_variable": {"type": "str", "default": "infera_model_path"},
            "mounts": {"type": "list", "elements": "dict", "default": [], "options": {
                "source": {"type": "path", "required": True}, "variable": {"type": "str", "required": True}, "file": {"type": "bool", "default": False}}},
            "etcd_endpoints": {"type": "list", "elements": "str", "default": []},
            "etcd_managed": {"type": "bool", "default": True},
            "etcd_files": {"type": "dict", "default": {}},
            "gpus_expected": {"type": "int", "default": 0},
            "gpus": {"type": "list", "elements": "int", "default": []},
            "max_vram_gib": {"type": "float", "default": 2},
            "images": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    params = module.params
    real = os.path.abspath(params["sysfs_root"]) == "/sys"
    proc, dev = params["proc_root"] or "/proc", params["dev_root"] or ("/dev" if real else None)
    found = docker.look(module, params["deployment"])
    running = [container for container in found["containers"] if container["running"]]
    own_ids = {container["id"] for container in running}
    engines = any(container["role"] in docker.ENGINES for container in running)
    model_checks, model = host.check_model(params["model"], params["model_variable"])
    checks = (
        host.check_os(params["os_release"], params["supported_systems"])
        + host.check_python(sys.version_info, importlib.util.find_spec("requests") is not None)
        + docker.check_docker(found)
        + host.check_memory(proc, params["memory_gb"], params["hicache_stages"], params["hicache_gb"], engines)
        + host.check_disk(params["disk"], bool(running))
        + host.check_ports(proc, params["ports"], own_ids)
        + host.check_limits(proc, params["ulimits"])
        + model_checks
        + host.check_mounts(params["mounts"])
        + host.check_etcd(params["etcd_endpoints"], params["etcd_managed"], any(container["role"] == "etcd" for container in running), params["etcd_files"])
        + (host.check_numa_balancing(proc) if params["gpus_expected"] else [])
        + gpus.check_gpus(params["sysfs_root"], proc, dev, params["gpus_expected"], params["gpus"], params["max_vram_gib"], own_ids, kernel_log(module)))
    images = [image for image in docker.image_ids(module, params["images"]).values() if image]
    facts = {
        "images": docker.engine_image(found) or images,
        "model": model,
        "kernel": read(proc, "sys", "kernel", "osrelease"),
        "driver": read(Sysfs(params["sysfs_root"]).path("module", "amdgpu", "version")),
    }
    module.exit_json(changed=False, checks=checks, facts=facts)


if __name__ == "__main__":
    main()
