# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Traps in a worker's Mooncake environment, whoever wrote it."""
from __future__ import annotations

import re

from .mooncake_devices import DeviceSpecError, parse_nic_peer_affinity
from .mooncake_mr import MrSizeError, check, check_raw
from .mooncake_names import KNOWN, NO_EFFECT, check_ports, check_value, unknown_name

# Variables that decide the transfer start so.
PREFIXES = ("MC_", "MOONCAKE_", "NCCL_IB_GID_INDEX", "MORI_IB_GID_INDEX")


def _ours(name):
    return name.startswith(("MC_", "MOONCAKE_"))


def check_environment(env, ionic=False, gid_index_common=None, gid_indexes=None, device_list=False, transport="rdma", gpu_mr_path="dmabuf",
                      allow_names=()):
    """Check the MC_* and MOONCAKE_* variables of one worker.

    ``env``: text by name. ``device_list``: whether SGLang also gets a device list. ``gid_indexes``: the good index by rail.
    Returns ``(errors, warnings)``, each a list of one-line texts.
    """
    errors, warnings = [], []
    for name in sorted(env, key=str):
        value = env[name]
        if not re.match(r"^[A-Za-z_][A-Za-z0-9_]*\Z", str(name)):
            errors.append("%r is no name of an environment variable" % (name,))
            continue
        if isinstance(value, str) and re.search(r"[\0\n\r]", value):
            errors.append("%s=%r: a line break or NUL in a value would end its line in an environment file" % (name, value))
            continue
        if not isinstance(value, str):
            errors.append("%s=%r is no text: a container's environment holds text only" % (name, value))
            continue
        if (_ours(name) or name == "NCCL_IB_GID_INDEX") and value.strip() == "":
            errors.append("%s is empty: %s" % (name, "an empty text disables dma-buf" if name == "MOONCAKE_DISABLE_HIP_DMABUF"
                                              else "Mooncake misreads empty text; leave the variable out"))
            continue
        if name.startswith("MC_") and name not in KNOWN and name not in allow_names:
            errors.append(unknown_name(name))
            continue
        fault = check_value(name, value)
        if fault:
            errors.append(fault)
        if name in NO_EFFECT:
            warnings.append("%s is read by Mooncake's store client only; it has no effect on the transfer engine" % name)
    texts = {name: value for name, value in env.items() if isinstance(value, str)}
    errors += check_ports(texts)
    errors += _combinations(texts, ionic, device_list, transport)
    errors += _gid(texts, gid_index_common, gid_indexes or {})
    if texts.get("MC_LOG_LEVEL") in ("WARNING", "ERROR"):
        warnings.append("MC_LOG_LEVEL=%s hides the lines that show the transport, the HCAs and the GIDs; they cannot be asserted" % texts["MC_LOG_LEVEL"])
    if texts.get("MC_MAX_MR_SIZE", "").strip():
        try:
            size = check_raw(texts["MC_MAX_MR_SIZE"])
            warnings += check(size, "tcp" if transport == "tcp" else "ionic" if ionic else "other", gpu_mr_path)[1]
        except MrSizeError as error:
            errors.append(str(error))
    return errors, warnings


def _combinations(env, ionic, device_list, transport):
    errors = []
    hca_peer = env.get("MC_ENABLE_HCA_PEER_AFFINITY", "0").lower() in ("1", "true")
    if "MC_ENABLE_DEST_DEVICE_AFFINITY" in env and hca_peer:
        errors.append("MC_ENABLE_DEST_DEVICE_AFFINITY and MC_ENABLE_HCA_PEER_AFFINITY are both set: Mooncake then turns both off")
    if hca_peer and "MC_NIC_PEER_AFFINITY" not in env:
        errors.append("MC_ENABLE_HCA_PEER_AFFINITY is on, but MC_NIC_PEER_AFFINITY gives it no map")
    if env.get("MC_NIC_PEER_AFFINITY"):
        try:
            parse_nic_peer_affinity(env["MC_NIC_PEER_AFFINITY"])
        except DeviceSpecError as error:
            errors.append(str(error))
    if ionic and transport == "rdma":
        for name in ("MC_USE_TENT", "MC_USE_TEV1"):
            if name in env:
                errors.append("%s is set on ionic rails: that engine neither splits registrations nor reads MC_MAX_MR_SIZE" % name)
    if "MC_FORCE_TCP" in env and transport == "rdma":
        errors.append("MC_FORCE_TCP is set on an RDMA worker: it wins over everything and the transfer runs over TCP")
    if "MC_FORCE_TCP" in env and "MC_FORCE_HCA" in env:
        errors.append("MC_FORCE_TCP and MC_FORCE_HCA are both set: TCP wins without an error")
    if "MC_FORCE_HCA" in env and transport == "tcp" and "MC_FORCE_TCP" not in env:
        errors.append("MC_FORCE_HCA is set on a TCP worker: it fails to start without an RDMA device")
    if "MC_CUSTOM_TOPO_JSON" in env and device_list:
        errors.append("MC_CUSTOM_TOPO_JSON and a device list are both given: Mooncake ignores the list when the topology loads")
    return errors


def _gid(env, common, indexes):
    errors = []
    for name in ("MC_GID_INDEX", "NCCL_IB_GID_INDEX", "MORI_IB_GID_INDEX"):
        value = env.get(name, "")
        if not value.isdigit() or not indexes:
            continue
        if common is None:
            errors.append("%s=%s, but no index is good on every rail (%s): leave it out" % (
                name, value, ", ".join("%s: %s" % item for item in sorted(indexes.items()))))
        elif int(value) != common:
            errors.append("%s=%s, but the routable RoCEv2 GID is at index %d on these rails" % (name, value, common))
    return errors
