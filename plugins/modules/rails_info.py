#!/usr/bin/python
# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: rails_info
short_description: Find a host's RDMA rails and pair them with its GPUs
version_added: 0.1.0
description:
  - Reads the RDMA devices, their GIDs, the GPUs and the PCI tree from sysfs.
  - A rail is known by its PCI vendor, never by its name, which udev may change.
  - A GPU and a rail belong together when they share a PCIe path below one root port. Numbers are never compared, and
    the NUMA node only decides between equals.
  - The GID of a rail is its IPv4-mapped RoCE v2 GID, else a global IPv6 RoCE v2 GID; never a link-local one, never
    RoCE v1.
author:
  - The infera.serving maintainers (@infera)
extends_documentation_fragment:
  - infera.serving.attributes
  - infera.serving.attributes.info
  - infera.serving.rails
options:
  boot_root:
    description:
      - Where the kernel's configuration file is.
      - Without it V(/boot) is used when O(sysfs_root=/sys), and it is not looked at otherwise.
    type: path
  vendor_ids:
    description:
      - PCI vendors whose RDMA devices are rails. V(0x1dd8) is Pensando (ionic), V(0x15b3) is Mellanox.
    type: list
    elements: str
    default: ['0x1dd8']
  include_vfs:
    description:
      - Whether a virtual function of such a vendor is a rail too.
    type: bool
    default: false
  min_rate_gbps:
    description:
      - A rail below this rate, in Gb/s, is not usable.
    type: float
    default: 0
  gid_policy:
    description:
      - Which GID a rail uses.
      - V(ipv4_mapped) takes an IPv4-mapped RoCE v2 GID, else a global IPv6 one; V(ipv6_global) the other way round;
        V(any_v2) the first that is routable.
    type: str
    choices: [ipv4_mapped, ipv6_global, any_v2]
    default: ipv4_mapped
  port:
    description:
      - The port that Mooncake opens on every rail (its MC_IB_PORT).
    type: int
    default: 1
  visible_devices:
    description:
      - HIP ordinals, as in HIP_VISIBLE_DEVICES. The GPU indexes that are returned are positions in this list.
      - Without it every GPU is visible.
    type: list
    elements: int
  expect_rails:
    description:
      - How many usable rails O(strict) asks for. Without it, every rail that exists.
    type: int
  require_names:
    description:
      - Rails that O(strict) asks for by name.
    type: list
    elements: str
    default: []
  strict:
    description:
      - Fail when a rail is unusable, a GPU has no rail on its switch, or a rail is missing. Every reason is in the one
        message.
    type: bool
    default: false
seealso:
  - module: infera.serving.mooncake_env
"""

EXAMPLES = r"""
- name: Read the rails
  infera.serving.rails_info:
  register: rails

- name: Stop unless all eight rails are good
  infera.serving.rails_info:
    strict: true
    expect_rails: 8
    min_rate_gbps: 400

- name: Read a machine whose rails are ConnectX-7
  infera.serving.rails_info:
    vendor_ids: ['0x15b3']
"""

RETURN = r"""
rails:
  description: The rails in PCI order, usable or not.
  returned: success
  type: list
  elements: dict
  contains:
    name: {description: RDMA device name., type: str, returned: always, sample: ionic_0}
    bdf: {description: PCI address., type: str, returned: always, sample: '0000:08:00.0'}
    vendor: {description: PCI vendor., type: str, returned: always, sample: '0x1dd8'}
    device: {description: PCI device., type: str, returned: always, sample: '0x1002'}
    driver: {description: Driver of the PCI function; C(ionic) for an ionic rail., type: str, returned: always}
    is_vf: {description: Whether it is a virtual function., type: bool, returned: always}
    vfs: {description: How many virtual functions it has., type: int, returned: always}
    numa: {description: NUMA node; -1 when the firmware names none., type: int, returned: always}
    netdev: {description: Network device of its GID., type: str, returned: always}
    mtu: {description: MTU of that network device in bytes., type: int, returned: always}
    port: {description: The port that was read., type: int, returned: always}
    ports: {description: All ports with their states., type: list, elements: dict, returned: always}
    state: {description: State of the port., type: str, returned: always, sample: ACTIVE}
    phys_state: {description: Physical state of the port., type: str, returned: always}
    rate_gbps: {description: Rate in Gb/s., type: float, returned: always}
    link_layer: {description: C(Ethernet) or C(InfiniBand)., type: str, returned: always}
    uverbs: {description: Its character device's name., type: str, returned: always}
    abi_version: {description: ABI version that the kernel's driver offers to libibverbs., type: int, returned: always}
    gids:
      description: The GID table without empty slots. Each entry has index, gid, type, netdev, kind and ipv4.
      type: list
      elements: dict
      returned: always
    gid_index: {description: Index of the GID that the rail uses., type: int, returned: always}
    gid: {description: That GID., type: str, returned: always}
    gid_kind: {description: C(ipv4_mapped) or C(ipv6_global)., type: str, returned: always}
    ipv4: {description: The IPv4 address that it maps., type: str, returned: always}
    subnet: {description: The directly connected network of that address., type: str, returned: always}
    mooncake_gid_index: {description: What Mooncake would take with MC_GID_INDEX unset., type: int, returned: always}
    usable: {description: Whether the rail can be used., type: bool, returned: always}
    reasons: {description: Why it can not., type: list, elements: str, returned: always}
    sysfs_path: {description: Where its PCI function is., type: str, returned: always}
other_rdma:
  description: RDMA devices that are no rails, such as management adapters and virtual functions; the same keys.
  returned: success
  type: list
  elements: dict
gpus:
  description:
    - Visible GPUs in HIP's order.
    - Each has hip_index (position among the visible ones), physical_index, kfd_node, gpu_id, bdf, numa, render_minor
      and sysfs_path.
  returned: success
  type: list
  elements: dict
pairs:
  description: GPUs with the rail on their own switch.
  returned: success
  type: list
  elements: dict
  contains:
    gpu: {description: Visible HIP index of the GPU., type: int, returned: always}
    rail: {description: RDMA device name., type: str, returned: always}
    kind: {description: Always C(pcie_switch)., type: str, returned: always}
    shared_depth: {description: PCI components that both paths share., type: int, returned: always}
    numa_match: {description: Whether both report one NUMA node; null when a node is unknown., type: bool, returned: always}
fallback:
  description: For GPUs without a pair the nearest rail, of kind C(host_bridge), C(numa) or C(remote), or one that is shared.
  returned: success
  type: list
  elements: dict
unpaired_gpus:
  description: Visible HIP indexes of GPUs without a pair.
  returned: success
  type: list
  elements: int
spare_rails:
  description: Usable rails without a GPU.
  returned: success
  type: list
  elements: str
mooncake_preferred:
  description: For each GPU index the devices that Mooncake's own discovery would prefer, by a model of it.
  returned: success
  type: dict
map_required:
  description: Whether Mooncake would prefer other rails than the pairs, so that a device map or topology must be given.
  returned: success
  type: bool
gid_index_common:
  description: The GID index that is good on every usable rail, or null.
  returned: success
  type: int
gid_indexes:
  description: The GID index of each usable rail.
  returned: success
  type: dict
peermem:
  description: Whether a peer memory module is loaded (C(present)), and what shows it (C(evidence)).
  returned: success
  type: dict
p2pdma:
  description: Whether the kernel can register GPU memory through dma-buf (C(usable), null when unknown), and C(source).
  returned: success
  type: dict
gpu_mr_path:
  description: How GPU memory gets registered, C(peermem), C(dmabuf_pinned), C(dmabuf) or C(none); null when unknown.
  returned: success
  type: str
warnings:
  description:
    - What deserves attention without being an error.
    - Ansible drops the key when there is nothing to warn of, so read it with C(default([])).
  returned: when there are any
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.infera.serving.plugins.module_utils import rails


def main():
    module = AnsibleModule(
        argument_spec={
            "sysfs_root": {"type": "path", "default": "/sys"},
            "dev_root": {"type": "path"},
            "proc_root": {"type": "path"},
            "boot_root": {"type": "path"},
            "vendor_ids": {"type": "list", "elements": "str", "default": ["0x1dd8"]},
            "include_vfs": {"type": "bool", "default": False},
            "min_rate_gbps": {"type": "float", "default": 0},
            "gid_policy": {"type": "str", "choices": ["ipv4_mapped", "ipv6_global", "any_v2"], "default": "ipv4_mapped"},
            "port": {"type": "int", "default": 1},
            "visible_devices": {"type": "list", "elements": "int"},
            "expect_rails": {"type": "int"},
            "require_names": {"type": "list", "elements": "str", "default": []},
            "strict": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    options = dict(module.params)
    wanted = {name: options.pop(name) for name in ("expect_rails", "require_names")}
    strict = options.pop("strict")
    try:
        facts = rails.collect(**options)
        reasons = rails.shortcomings(facts, vendor_ids=options["vendor_ids"], **wanted) if strict else []
    except ValueError as error:
        module.fail_json(msg=str(error))
    # Ansible puts them into the result as `warnings`, and drops the key where there are none.
    for warning in facts.pop("warnings"):
        module.warn(warning)
    if reasons:
        module.fail_json(msg="; ".join(reasons), reasons=reasons, **facts)
    module.exit_json(changed=False, **facts)


if __name__ == "__main__":
    main()
