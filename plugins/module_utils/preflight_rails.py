# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of a host's rails for the engines that will use them, from what rails_info found."""
from __future__ import annotations

from .mooncake_checks import check_environment
from .preflight_check import failed, not_applicable, passed, verdict, warned
from .rails_nics import PENSANDO

NAMES = ("rails", "gpu rails", "gid", "rail network", "memory path", "libionic", "environment")
# A RoCE packet with 4096 bytes of payload and its headers.
MIN_MTU = 4200


def check_rails(facts, gpus=(), expect_rails=None, min_rate_gbps=0, min_mtu=MIN_MTU, libionic=None, environments=None, vendors=(PENSANDO,),
                allow_names=()):
    """Check a host's rails. ``gpus``: HIP ordinals that engines use; ``environments``: ``{container: env}`` as planned.

    ``libionic``: the result of libionic_info, or None. Returns checks.
    """
    rails = facts["rails"]
    usable = [rail for rail in rails if rail["usable"]]
    faults = [("rail %s (%s) %s" % (rail["name"], rail["bdf"], "; ".join(rail["reasons"])), _remedy(rail)) for rail in rails if not rail["usable"]]
    if expect_rails and len(usable) < expect_rails:
        what = "no RDMA device of vendor %s" % ", ".join(vendors) if not rails else "%d of %d rails usable" % (len(usable), expect_rails)
        faults.append((what, "check the cards and their driver (ionic, ionic_rdma); other vendors go into preflight_vendor_ids"))
    checks = verdict("rails", faults, "%d usable: %s" % (len(usable), ", ".join(rail["name"] for rail in usable)))
    return (checks + _pairs(facts, gpus) + _gids(facts, usable) + _network(usable, min_rate_gbps, min_mtu) + _memory_path(facts)
            + _libionic(rails, libionic) + check_environments(facts, environments or {}, allow_names))


def _remedy(rail):
    text = " ".join(rail["reasons"])
    if "routable" in text:
        return "give its network device an address (IPv4, or global IPv6) so that it gets a routable RoCE v2 GID"
    if rail["state"] != "ACTIVE":
        return "check cable, transceiver and switch port, and that its network device is up"
    return "see the driver's messages in the kernel's log"


def _pairs(facts, gpus):
    wanted = set(gpus) or {gpu["hip_index"] for gpu in facts["gpus"]}
    near = {link["gpu"]: link for link in facts["fallback"]}
    faults = []
    for gpu in facts["unpaired_gpus"]:
        if gpu in wanted:
            link = near.get(gpu)
            faults.append("GPU %d has no rail on its switch%s" % (gpu, "; the nearest is %s (%s)" % (link["rail"], link["kind"]) if link else ""))
    own = [link for link in facts["pairs"] if link["gpu"] in wanted]
    text = ", ".join("%d-%s" % (link["gpu"], link["rail"]) for link in own)
    if faults:
        return verdict("gpu rails", faults, "", "repair the rail on its switch; see PCI paths with rails_info")
    mismatched = [link for link in own if link["numa_match"] is False]
    if mismatched:
        return [warned("gpu rails", "%s; NUMA nodes disagree for %d of them" % (text, len(mismatched)),
                       "the firmware's NUMA table is wrong; Mooncake would choose remote rails, so a topology file is rendered")]
    return [passed("gpu rails", text)] if own else [not_applicable("gpu rails", "no GPU")]


def _gids(facts, usable):
    if not usable:
        return [not_applicable("gid", "no usable rail")]
    if facts["gid_index_common"] is not None:
        return [passed("gid", "index %d on every rail" % facts["gid_index_common"])]
    return [warned("gid", "no index in common: %s" % ", ".join("%s: %s" % item for item in facts["gid_indexes"].items()),
                   "MC_GID_INDEX stays unset and Mooncake chooses per rail; give every rail its addresses in the same order to pin it")]


def _network(usable, min_rate_gbps, min_mtu):
    if not usable:
        return [not_applicable("rail network", "no usable rail")]
    faults = [("rail %s runs at %s Gb/s, %s wanted" % (rail["name"], rail["rate_gbps"], min_rate_gbps),
               "check cable and switch port, or lower preflight_min_rate_gbps")
              for rail in usable if min_rate_gbps and (rail["rate_gbps"] or 0) < min_rate_gbps]
    faults += [("rail %s (%s) has MTU %d, at least %d wanted" % (rail["name"], rail["netdev"], rail["mtu"], min_mtu),
                "set the MTU (9000) on host and switch, or lower preflight_min_mtu")
               for rail in usable if rail["mtu"] is not None and rail["mtu"] < min_mtu]
    for key, what in (("rate_gbps", "rates"), ("mtu", "MTUs")):
        values = sorted({str(rail[key]) for rail in usable})
        if len(values) > 1:
            faults.append(("rails have different %s: %s" % (what, ", ".join(values)), "make them equal"))
    return verdict("rail network", faults, "%s Gb/s, MTU %s" % (usable[0]["rate_gbps"], usable[0]["mtu"]))


def _memory_path(facts):
    path, peer, p2p = facts["gpu_mr_path"], facts["peermem"], facts["p2pdma"]
    if path is None:
        return [warned("memory path", "the kernel does not say whether it has PCI peer-to-peer DMA", "mount /boot or enable /proc/config.gz for the check")]
    if path == "none":
        missing = ", ".join(sorted(name for name, there in p2p["options"].items() if not there))
        return [failed("memory path", "no peer memory module, and the kernel lacks %s (%s): GPU memory cannot be registered" % (missing, p2p["source"]),
                       "load a peer memory module (ib_peer_mem, amdp2p), or use a kernel with both options")]
    if path == "peermem":
        return [passed("memory path", "peer memory module: %s; dma-buf is switched off" % ", ".join(peer["evidence"]))]
    if path == "dmabuf_pinned":
        return [warned("memory path", "dma-buf without on-demand paging: registered memory is pinned, and KFD counts it a second time",
                       "works on ionic (%s); leave room in engine_mem_fraction_static" % p2p["source"])]
    return [passed("memory path", "dma-buf (%s)" % p2p["source"])]


def _libionic(rails, libionic):
    if not any(rail["vendor"] == PENSANDO for rail in rails):
        return [not_applicable("libionic", "no ionic rail")]
    if libionic is None:
        return [not_applicable("libionic", "not looked at")]
    text = "; ".join(libionic["reasons"])
    if libionic["action"] == "mismatch":
        return [failed("libionic", text, "make the host's driver and libionic fit each other, then set engine_libionic_file")]
    return [passed("libionic", "%s: %s (kernel ABI %s)" % (libionic["action"], text, ", ".join(map(str, libionic["kernel_abi"])) or "unknown"))]


def check_environments(facts, environments, allow_names=()):
    """Traps in the planned containers' MC_* variables."""
    ionic = any(rail["vendor"] == PENSANDO for rail in facts["rails"])
    faults, notes = [], []
    for name, env in sorted(environments.items()):
        errors, warnings = check_environment(env, ionic=ionic, gid_index_common=facts["gid_index_common"], gid_indexes=facts["gid_indexes"],
                                             allow_names=allow_names)
        faults += ["%s: %s" % (name, error) for error in errors]
        notes += ["%s: %s" % (name, warning) for warning in warnings]
    if not environments:
        return [not_applicable("environment", "no engine on this host uses Mooncake")]
    checks = verdict("environment", faults, "no trap in %d containers" % len(environments), "correct the engines' env variables")
    return checks + [warned("environment", note) for note in notes]
