#!/usr/bin/python
# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: mooncake_env
short_description: Render a worker's Mooncake environment from its rails
version_added: 0.1.0
description:
  - Turns rails, GPUs and a few decisions into the environment of one SGLang worker, the variables that it must not have,
    and the value of SGLang's C(--disaggregation-ib-device).
  - Mooncake accepts many wrong values without a word and then runs over TCP, or with a limit of one byte. Everything of
    that kind is refused here, with every fault in one message.
  - The same input always gives the same, sorted, output.
  - Mooncake reads its environment once per process, so a change needs a restart of the worker.
author:
  - The infera.serving maintainers (@infera)
extends_documentation_fragment:
  - infera.serving.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Before and after are sorted C(NAME=value) lines.
  idempotent:
    support: full
options:
  rails:
    description:
      - The result of M(infera.serving.rails_info) for the worker's host, with every GPU visible.
    type: dict
    aliases: [rails_facts]
  gpus:
    description:
      - The worker's GPUs as HIP ordinals of the host.
    type: list
    elements: int
    default: []
  visible_devices:
    description:
      - The worker's HIP_VISIBLE_DEVICES as a list. Without it the worker sees every GPU.
      - The keys of a device map are positions in this list.
    type: list
    elements: int
  base_gpu_id:
    description:
      - SGLang's C(--base-gpu-id). It has to be the position of the worker's first GPU within the visible devices.
    type: int
  launcher:
    description:
      - What starts the engine. C(infera) is a launcher that sets MC_ENABLE_DEST_DEVICE_AFFINITY unless it finds V(0).
    type: str
    choices: [sglang, infera]
    default: sglang
  transport:
    description:
      - V(rdma) refuses to start without rails; V(tcp) forces TCP.
    type: str
    choices: [rdma, tcp]
    default: rdma
  gpu_mr_path:
    description:
      - How GPU memory gets registered. V(auto) takes what the rails' facts say, and dma-buf when they say nothing.
    type: str
    choices: [auto, dmabuf, peermem]
    default: auto
  peer_rail_policy:
    description:
      - V(same_name) writes to the peer's rail of the same name (destination-local rail).
      - V(destination_preferred) leaves the choice to Mooncake; rails must then be routed to each other.
      - V(explicit) follows O(nic_peer_affinity).
    type: str
    choices: [same_name, destination_preferred, explicit]
    default: same_name
  nic_peer_affinity:
    description:
      - C(local=peer[,peer];...) for O(peer_rail_policy=explicit).
    type: str
  mr_size:
    description:
      - Largest memory registration, in bytes or as text with KiB, MiB or GiB.
      - On ionic at most 1 GiB, a multiple of 2 MiB, and required with dma-buf.
    type: raw
    default: 1GiB
  ib_device_mode:
    description:
      - V(shared) gives all usable rails to every GPU, V(map) each GPU its own rail as inline JSON, V(file) the same map
        through a file.
      - V(topology) gives no device list but a topology file, in which each GPU prefers its own rail and may use the others.
      - V(auto) is V(shared) where Mooncake would prefer the GPUs' own rails by itself, and V(topology) elsewhere.
    type: str
    choices: [auto, shared, map, file, topology]
    default: auto
  topology_path:
    description:
      - Where the worker finds its topology file, inside its container.
    type: path
    default: /etc/infera/mooncake/topology.json
  ib_device_path:
    description:
      - Where the worker finds its device map, inside its container. The name has to end in C(.json).
    type: path
    default: /etc/infera/mooncake/ib_device.json
  one_visible_device:
    description:
      - Whether SGLANG_ONE_VISIBLE_DEVICE_PER_PROCESS is on. Every GPU is then number 0, and no map can tell them apart.
    type: bool
    default: false
  force_hca:
    description:
      - Whether the engine fails without an RDMA device instead of using TCP.
    type: bool
    default: true
  pin_host_ip:
    description:
      - Whether HOST_IP and SGLANG_HOST_IP name the address of the worker's first rail.
    type: bool
    default: true
  engine:
    description:
      - The RV(infera.serving.mooncake_engine_info#module:capabilities) of the engine that will run.
    type: dict
  allow_unverified_engine:
    description:
      - Render although O(engine) does not split large registrations, or does not say so.
    type: bool
    default: false
  allow_names:
    description:
      - MC_* names that are let through although Mooncake does not know them.
    type: list
    elements: str
    default: []
  extra_env:
    description:
      - The operator's own variables. They win over what is rendered, after the checks.
    type: dict
    default: {}
  current_env:
    description:
      - The environment that the worker has now, for the difference. Only names that are rendered or must be absent are compared.
    type: dict
  path:
    description:
      - A file on the host that receives the environment as sorted C(NAME=value) lines, mode 0600.
    type: path
seealso:
  - module: infera.serving.rails_info
  - module: infera.serving.mooncake_topology
"""

EXAMPLES = r"""
- name: Read the rails
  infera.serving.rails_info:
  register: rails

- name: Render a prefill worker on the first four GPUs
  infera.serving.mooncake_env:
    rails: "{{ rails }}"
    gpus: [0, 1, 2, 3]
    visible_devices: [0, 1, 2, 3]
    mr_size: 1GiB
  register: worker

- name: See what the worker's container would get
  ansible.builtin.debug:
    msg: "{{ worker.env }} and never {{ worker.unset }}; --disaggregation-ib-device {{ worker.ib_device }}"
"""

RETURN = r"""
env:
  description: The environment, text by name, sorted.
  returned: success
  type: dict
  sample: {MC_ENABLE_DEST_DEVICE_AFFINITY: '1', MC_FORCE_HCA: '1', MC_MAX_MR_SIZE: '1073741824'}
unset:
  description: Variables that must be absent, whatever the image sets.
  returned: success
  type: list
  elements: str
ib_device:
  description: Value of C(--disaggregation-ib-device), or null when the argument has to be left out.
  returned: success
  type: str
  sample: ionic_0,ionic_1
ib_device_file:
  description: Content of the file that RV(ib_device) names, with O(ib_device_mode=file).
  returned: success
  type: str
topology:
  description: Content of the topology file, or null.
  returned: success
  type: dict
devices:
  description: The rails that the worker opens.
  returned: success
  type: list
  elements: str
transfer_backend:
  description: Value of SGLang's C(--disaggregation-transfer-backend).
  returned: success
  type: str
  sample: mooncake
gpu_mr_path:
  description: How GPU memory gets registered, C(dmabuf) or C(peermem); null on TCP.
  returned: success
  type: str
host_ip:
  description: Address of the worker's first rail.
  returned: success
  type: str
netdev:
  description: Network device of the worker's first rail.
  returned: success
  type: str
"""

import os
import tempfile
from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils import mooncake_env
from ansible_collections.infera.serving.plugins.module_utils.mooncake_mr import mr_size_option


def lines(env):
    return "".join("%s=%s\n" % item for item in sorted(env.items()))


def read(path):
    try:
        with open(path, "r") as handle:
            return handle.read()
    except FileNotFoundError:
        return ""


def write(module, path, text):
    handle, temporary = tempfile.mkstemp(dir=module.tmpdir)
    with os.fdopen(handle, "w") as stream:
        stream.write(text)
    module.atomic_move(temporary, path)
    module.set_mode_if_different(path, 0o600, False)


def main():
    module = AnsibleModule(
        argument_spec={
            "rails": {"type": "dict", "aliases": ["rails_facts"]},
            "gpus": {"type": "list", "elements": "int", "default": []},
            "visible_devices": {"type": "list", "elements": "int"},
            "base_gpu_id": {"type": "int"},
            "launcher": {"type": "str", "choices": list(mooncake_env.LAUNCHERS), "default": "sglang"},
            "transport": {"type": "str", "choices": list(mooncake_env.TRANSPORTS), "default": "rdma"},
            "gpu_mr_path": {"type": "str", "choices": list(mooncake_env.MR_PATHS), "default": "auto"},
            "peer_rail_policy": {"type": "str", "choices": list(mooncake_env.PEER_RAIL_POLICIES), "default": "same_name"},
            "nic_peer_affinity": {"type": "str"},
            "mr_size": {"type": "raw", "default": "1GiB"},
            "ib_device_mode": {"type": "str", "choices": list(mooncake_env.IB_DEVICE_MODES), "default": "auto"},
            "topology_path": {"type": "path", "default": mooncake_env.TOPOLOGY_PATH},
            "ib_device_path": {"type": "path", "default": mooncake_env.DEVICE_MAP_PATH},
            "one_visible_device": {"type": "bool", "default": False},
            "force_hca": {"type": "bool", "default": True},
            "pin_host_ip": {"type": "bool", "default": True},
            "engine": {"type": "dict"},
            "allow_unverified_engine": {"type": "bool", "default": False},
            "allow_names": {"type": "list", "elements": "str", "default": []},
            "extra_env": {"type": "dict", "default": {}},
            "current_env": {"type": "dict"},
            "path": {"type": "path"},
        },
        supports_check_mode=True,
    )
    options = dict(module.params)
    path, current = options.pop("path"), options.pop("current_env")
    options["rails_facts"] = options.pop("rails")
    try:
        options["mr_size"] = mr_size_option(options["mr_size"])
        worker = mooncake_env.render(**options)
    except mooncake_env.MooncakeEnvError as error:
        module.fail_json(msg=str(error), faults=error.faults)
    except ValueError as error:
        module.fail_json(msg=str(error), faults=[str(error)])
    except (KeyError, TypeError, AttributeError) as error:
        module.fail_json(msg="rails: this is no result of infera.serving.rails_info (%s: %s)" % (type(error).__name__, error))
    result = asdict(worker)
    for warning in result.pop("warnings"):
        module.warn(warning)
    after, before = lines(worker.env), None
    if path:
        before = read(path)
    elif current is not None:
        ours = set(worker.env) | set(worker.unset)
        before = lines({name: value for name, value in current.items() if name in ours})
    result["changed"] = before is not None and before != after
    if before is not None:
        result["diff"] = {"before": before, "after": after, "before_header": path or "worker", "after_header": path or "worker"}
    if path and result["changed"] and not module.check_mode:
        write(module, path, after)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
