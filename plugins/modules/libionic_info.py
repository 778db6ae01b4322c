#!/usr/bin/python
# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: libionic_info
short_description: Compare the host's libionic, the kernel's ABI and the container's libionic
version_added: 0.1.0
description:
  - libibverbs skips an ionic device whose kernel ABI number the container's libionic does not support. Mooncake then finds
    no device and, unless told otherwise, uses TCP.
  - This says whether the container's library fits (V(ok)), whether the host's has to be mounted into it (V(inject)), or
    whether neither works (V(mismatch)), each with its reasons.
author:
  - The infera.serving maintainers (@infera)
extends_documentation_fragment:
  - infera.serving.attributes
  - infera.serving.attributes.info
  - infera.serving.rails
options:
  host_lib:
    description:
      - The host's library.
    type: path
    default: /usr/lib/x86_64-linux-gnu/libionic.so.1
  container:
    description:
      - A running container to look into. Its library is read, and libibverbs is asked for its devices.
    type: str
  image:
    description:
      - An image to look into, through a container that is never started. Devices cannot be asked for then.
    type: str
  container_lib:
    description:
      - The library inside O(container) or O(image); without either, a file on the host that stands for it.
    type: str
  container_devices:
    description:
      - RDMA devices that libibverbs lists inside the container, for a caller that has asked already.
    type: list
    elements: str
  container_stderr:
    description:
      - What libibverbs printed on stderr inside the container, for a caller that has asked already.
    type: str
    default: ''
  container_glibc:
    description:
      - The container's glibc version, such as V(2.36).
    type: str
  strict:
    description:
      - Fail on C(mismatch), with the reasons. With O(container) fail also when libibverbs inside does not list every rail.
    type: bool
    default: false
notes:
  - There is no table from package version to ABI number in it. Public accounts of it contradict each other.
"""

EXAMPLES = r"""
- name: Stop when neither library can work
  infera.serving.libionic_info:
    image: "{{ engine_image }}"
    container_lib: /usr/lib/x86_64-linux-gnu/libionic.so.1
    strict: true
  register: libionic

- name: Say whether the host's library has to be mounted
  ansible.builtin.debug:
    msg: "{{ libionic.action }}: {{ libionic.reasons | join('; ') }}"
"""

RETURN = r"""
action:
  description: C(ok), C(inject), C(mismatch) or C(not_ionic).
  returned: success
  type: str
reasons:
  description: Why, in words.
  returned: success
  type: list
  elements: str
kernel_abi:
  description: ABI numbers of the ionic rails, each once.
  returned: success
  type: list
  elements: int
host:
  description: The host's library, with path, target, exists, regular, sha256, private_abi and glibc.
  returned: success
  type: dict
container:
  description: The container's library with the same keys, or null when there is none to read.
  returned: success
  type: dict
container_devices:
  description: RDMA devices that libibverbs lists inside the container, or null when it could not be asked.
  returned: success
  type: list
  elements: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils import mooncake_container as containers
from ansible_collections.infera.serving.plugins.module_utils import rails
from ansible_collections.infera.serving.plugins.module_utils.ionic_lib import decide, inspect


def read_inside(module, container):
    """Describe the library inside a container, or None when there is none."""
    path = module.params["container_lib"] or module.params["host_lib"]
    try:
        temporary = containers.scratch(containers.copy_out(module, container, path))
    except containers.ContainerError:
        return None
    try:
        return inspect(temporary, path)
    finally:
        os.unlink(temporary)


def ask_inside(module, container):
    """Return ``(device names or None, stderr)`` from libibverbs inside a running container."""
    executable = module.get_bin_path("docker", required=True)
    code, out, err = module.run_command([executable, "exec", container, "ibv_devices"])
    if code:
        return None, err
    return [line.split()[0] for line in out.splitlines()[2:] if line.split()], err


def main():
    module = AnsibleModule(
        argument_spec={
            "sysfs_root": {"type": "path", "default": "/sys"},
            "dev_root": {"type": "path"},
            "proc_root": {"type": "path"},
            "host_lib": {"type": "path", "default": "/usr/lib/x86_64-linux-gnu/libionic.so.1"},
            "container": {"type": "str"},
            "image": {"type": "str"},
            "container_lib": {"type": "str"},
            "container_devices": {"type": "list", "elements": "str"},
            "container_stderr": {"type": "str", "default": ""},
            "container_glibc": {"type": "str"},
            "strict": {"type": "bool", "default": False},
        },
        mutually_exclusive=[["container", "image"]],
        supports_check_mode=True,
    )
    params = module.params
    devices, stderr = params["container_devices"], params["container_stderr"]
    facts = rails.collect(params["sysfs_root"], params["dev_root"], params["proc_root"])
    host = inspect(params["host_lib"])
    try:
        if params["container"]:
            inside = read_inside(module, params["container"])
            if devices is None:
                devices, stderr = ask_inside(module, params["container"])
        elif params["image"]:
            with containers.Stopped(module, params["image"]) as name:
                inside = read_inside(module, name)
        else:
            inside = inspect(params["container_lib"]) if params["container_lib"] else None
    except containers.ContainerError as error:
        module.fail_json(msg=str(error))
    inside = inside if inside and inside["exists"] else None
    action, reasons = decide(facts["rails"], host, inside, devices, stderr, params["container_glibc"])
    abi = sorted({rail["abi_version"] for rail in facts["rails"] if rail["abi_version"] is not None})
    result = {"action": action, "reasons": reasons, "kernel_abi": abi, "host": host, "container": inside, "container_devices": devices}
    blind = params["container"] and action == "inject" and devices is not None
    if params["strict"] and (action == "mismatch" or blind):
        if blind:
            reasons.append("mount the host's library: engine_libionic_file: %s" % host["target"])
        module.fail_json(msg="%s: libionic: %s" % (params["container"] or params["image"] or params["host_lib"], "; ".join(reasons)), **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
