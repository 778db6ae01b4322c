# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters around Mooncake and its rails; each has a page of its own beside this file."""
from __future__ import annotations

from ansible.errors import AnsibleFilterError
from ansible.utils.display import Display
from ansible_collections.infera.serving.plugins.module_utils import mooncake_devices, mooncake_mr, mooncake_workers, rails_gids, rails_parity, rails_sysfs

display = Display()


def mooncake_mr_size(value, driver="ionic", gpu_mr_path="dmabuf", device_max=None):
    if driver not in ("ionic", "other", "tcp"):
        raise AnsibleFilterError("mooncake_mr_size: driver=%r: one of ionic, other, tcp is needed" % driver)
    try:
        size, warnings = mooncake_mr.check(value if value != "" else None, driver, gpu_mr_path, device_max)
    except mooncake_mr.MrSizeError as error:
        raise AnsibleFilterError("mooncake_mr_size: %s" % error)
    for warning in warnings:
        display.warning(warning)
    return size


def ib_device_spec(value):
    try:
        return mooncake_devices.parse(value)
    except mooncake_devices.DeviceSpecError as error:
        raise AnsibleFilterError("ib_device_spec: %s" % error)


def parse_nic_peer_affinity(value):
    try:
        return mooncake_devices.parse_nic_peer_affinity(value)
    except mooncake_devices.DeviceSpecError as error:
        raise AnsibleFilterError("parse_nic_peer_affinity: %s" % error)


def rail_parity(hosts, routed=False, prefix=24, names=None):
    if not isinstance(hosts, dict):
        raise AnsibleFilterError("rail_parity: a dictionary from host to its rails is needed, not %s" % type(hosts).__name__)
    try:
        return rails_parity.compare(hosts, routed, prefix, names)
    except ImportError as error:
        raise AnsibleFilterError(str(error))
    except (KeyError, TypeError) as error:
        raise AnsibleFilterError("rail_parity: this is no result of infera.serving.rails_info (%s: %s)" % (type(error).__name__, error))


def rdma_containers(containers, host):
    return mooncake_workers.rdma_containers(containers, host)


def rails_table(facts, workers=()):
    return mooncake_workers.table(facts, workers)


def fabric_probes(plan, rails, transports=("tcp", "rdma")):
    return mooncake_workers.fabric_probes(plan, rails, transports)


def fabric_faults(figures, min_gb_s=0):
    return mooncake_workers.fabric_faults(figures, min_gb_s)


def gid_to_ipv4(value):
    try:
        return rails_gids.gid_to_ipv4(value)
    except ValueError as error:
        raise AnsibleFilterError("gid_to_ipv4: %r is no GID: %s" % (value, error))


def pci_shared_depth(value, other):
    return rails_sysfs.pci_shared_depth(value, other)


class FilterModule:
    def filters(self):
        return {
            "fabric_faults": fabric_faults,
            "fabric_probes": fabric_probes,
            "gid_to_ipv4": gid_to_ipv4,
            "ib_device_spec": ib_device_spec,
            "mooncake_mr_size": mooncake_mr_size,
            "parse_nic_peer_affinity": parse_nic_peer_affinity,
            "pci_shared_depth": pci_shared_depth,
            "rail_parity": rail_parity,
            "rails_table": rails_table,
            "rdma_containers": rdma_containers,
        }
