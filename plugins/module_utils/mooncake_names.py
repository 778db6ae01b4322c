# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mooncake's environment variables: which exist, what they take, what Mooncake makes of a bad value.

Ranges are those of Mooncake's config.cpp. A value outside is ignored there with a warning, or worse taken for another
number; here it is an error.
"""
from __future__ import annotations

import difflib
import re

# Any value, even "0" and the empty text, turns these on. Off is absence.
PRESENCE = (
    "MC_DISABLE_HIP", "MC_DISABLE_METACACHE", "MC_ENABLE_DEST_DEVICE_AFFINITY", "MC_FORCE_HCA", "MC_FORCE_MNNVL", "MC_FORCE_TCP",
    "MC_INTRA_NVLINK", "MC_LEGACY_RPC_PORT_BINDING", "MC_USE_IPV6", "MC_USE_TENT", "MC_USE_TEV1",
)

# Name: (lowest, highest), whole numbers.
RANGES = {
    "MC_AUTO_GID_MAX_RETRIES": (0, 16),
    "MC_CONN_PAUSE_TTL_MS": (0, 600000),
    "MC_FRAGMENT_RATIO": (1, 65535),
    "MC_GID_INDEX": (0, 255),
    "MC_HANDSHAKE_CONNECT_TIMEOUT": (1, 3599),
    "MC_HANDSHAKE_LISTEN_BACKLOG": (1, 65535),
    "MC_HANDSHAKE_MAX_LENGTH": (1048576, 134217728),
    "MC_HANDSHAKE_PORT": (1, 65535),
    "MC_IB_PCI_RELAXED_ORDERING": (0, 2),
    "MC_IB_PORT": (1, 255),
    "MC_IB_SL": (0, 15),
    "MC_IB_TC": (0, 255),
    "MC_MAX_CONCURRENT_REG_MR": (0, 65535),
    "MC_MAX_CQE_PER_CTX": (1, 65535),
    "MC_MAX_EP_PER_CTX": (1, 65535),
    "MC_MAX_INLINE": (0, 65535),
    "MC_MAX_RPC_PORT": (1024, 65535),
    "MC_MAX_SGE": (1, 65535),
    "MC_MAX_WR": (1, 65535),
    "MC_MIN_RPC_PORT": (1024, 65535),
    "MC_NUM_COMP_CHANNELS_PER_CTX": (1, 255),
    "MC_NUM_CQ_PER_CTX": (1, 255),
    "MC_NUM_QP_PER_EP": (1, 255),
    "MC_PKEY_INDEX": (0, 65535),
    "MC_RDMA_RAIL_PAUSE_SECONDS": (1, 3599),
    "MC_RETRY_CNT": (1, 127),
    "MC_SLICE_SIZE": (1, 2 ** 31 - 1),
    "MC_SLICE_TIMEOUT": (1, 65535),
    # Mooncake raises anything below 5, text included, to 5 seconds.
    "MC_TRANSFER_TIMEOUT": (5, 86400),
    "MC_WORKERS_PER_CTX": (1, 8),
    "NCCL_IB_GID_INDEX": (0, 255),
}
CHOICES = {
    "MC_ENABLE_HCA_PEER_AFFINITY": ("0", "1", "true", "false"),
    "MC_ENABLE_PARALLEL_REG_MR": ("-1", "0", "1"),
    "MC_ENDPOINT_STORE_TYPE": ("FIFO", "SIEVE"),
    "MC_LOG_LEVEL": ("TRACE", "INFO", "WARNING", "ERROR"),
    "MC_MTU": ("512", "1024", "2048", "4096"),
}
# Known by name only.
OTHERS = (
    "MC_CUSTOM_TOPO_JSON", "MC_EFA_CQ_THREADS", "MC_EFA_NIC_SELECTION", "MC_HIP_NUM_EVENTS", "MC_HIP_NUM_STREAMS", "MC_LOG_DIR",
    "MC_LOG_RDMA_SLICE_AFFINITY", "MC_MAX_MR_SIZE", "MC_MAX_PRC_PORT", "MC_METADATA_CLUSTER_ID", "MC_MIN_PRC_PORT", "MC_MIN_REG_SIZE",
    "MC_MLX5_QP_LAG_PORT_BALANCE", "MC_MLX5_QP_UDP_SPORTS", "MC_MS_AUTO_DISC", "MC_MS_FILTERS", "MC_NIC_PEER_AFFINITY",
    "MC_PATH_ROUNDROBIN", "MC_RDMA_BIND_ADDRESS", "MC_RDMA_NOTIFY_BUFFER_SIZE", "MC_RDMA_NOTIFY_CONNECT_TIMEOUT_MS",
    "MC_RDMA_NOTIFY_ENABLED", "MC_RDMA_NOTIFY_MAX_PENDING_SENDS", "MC_RDMA_NOTIFY_OOB_FALLBACK", "MC_RDMA_NOTIFY_RECV_COUNT",
    "MC_REDIS_DB_INDEX", "MC_REDIS_PASSWORD", "MC_RPC_CLIENT_IO_THREADS", "MC_RPC_PROTOCOL", "MC_STORE_RPC_CLIENT_IO_THREADS",
    "MC_TCP_ADMISSION_TIMEOUT_MS", "MC_TCP_BIND_ADDRESS", "MC_TCP_ENABLE_CONNECTION_POOL", "MC_TCP_LANES_PER_PEER",
    "MC_TCP_MAX_CONNECTIONS_PER_PEER", "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER", "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER",
    "MC_TCP_PROGRESS_TIMEOUT_SEC", "MC_TCP_PROTO", "MC_TCP_SLICE_SIZE", "MC_TCP_STATUS_TIMEOUT_SEC", "MC_TE_FILTERS",
    "MC_TE_METADATA_REFRESH_INTERVAL_SECONDS", "MC_TE_METRIC", "MC_TE_METRIC_INTERVAL_SECONDS", "MC_TE_RPC_CLIENT_IO_THREADS",
    "MC_TRACK_RDMA_POSTED_SLICES", "MC_USE_HIP_IPC", "MC_USE_NVLINK_IPC", "MC_USE_RDMA_TWOSIDED", "MC_YLT_LOG_LEVEL",
)
KNOWN = tuple(sorted(set(PRESENCE) | {name for name in RANGES if name.startswith("MC_")} | set(CHOICES) | set(OTHERS)))

# Seen in other kits; Mooncake knows none of them.
NO_SUCH = {
    "MC_DISABLE_HIP_TRANSPORT": "it does not exist in Mooncake (MC_DISABLE_HIP does)",
    "MC_ENABLE_HIP_TRANSPORT": "it does not exist in Mooncake",
    "MC_RDMA_MAX_MR_SIZE_OVERRIDE": "it was proposed and never merged (MC_MAX_MR_SIZE is the limit)",
}
NO_EFFECT = ("MC_MS_AUTO_DISC", "MC_MS_FILTERS")
EPHEMERAL = (32768, 60999)


def unknown_name(name):
    """Say that a name is unknown, with the nearest that is known."""
    if name in NO_SUCH:
        return "%s: %s" % (name, NO_SUCH[name])
    near = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.7)
    hint = "; did you mean %s?" % near[0] if near else ""
    return "%s: Mooncake has no such variable%s (mooncake_allow_names lets it through)" % (name, hint)


def check_value(name, value):
    """Return what is wrong with one variable's value, or None. Values are text, as a container gets them."""
    if name in PRESENCE:
        if value.strip().lower() in ("0", "false", "no", "off", "none"):
            return "%s=%r turns it ON: Mooncake tests presence only; leave the variable out to switch it off" % (name, value)
        return None
    if name in CHOICES and value not in CHOICES[name]:
        return "%s=%r: one of %s is needed" % (name, value, ", ".join(CHOICES[name]))
    if name in RANGES:
        low, high = RANGES[name]
        if not re.match(r"^\d+$", value) or not low <= int(value) <= high:
            return "%s=%r: a whole number from %d to %d is needed; Mooncake would misread or ignore it" % (name, value, low, high)
    return None


def check_ports(env):
    """Return what is wrong with the RPC port range: Mooncake replaces the whole pair by its default then."""
    found = []
    for name in ("MC_MIN_RPC_PORT", "MC_MAX_RPC_PORT"):
        if re.match(r"^\d+$", env.get(name, "")) and EPHEMERAL[0] <= int(env[name]) <= EPHEMERAL[1]:
            found.append("%s=%s lies in the ephemeral range %d to %d; Mooncake would replace both by 15000 and 17000" % ((name, env[name]) + EPHEMERAL))
    low, high = env.get("MC_MIN_RPC_PORT", "15000"), env.get("MC_MAX_RPC_PORT", "17000")
    if low.isdigit() and high.isdigit() and int(low) > int(high):
        found.append("MC_MIN_RPC_PORT=%s is above MC_MAX_RPC_PORT=%s" % (low, high))
    return found
