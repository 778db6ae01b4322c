# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From rails to one worker's environment, the variables that it must not have, and its device argument."""
from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from .mooncake_checks import check_environment
from .mooncake_devices import DeviceSpecError, parse_nic_peer_affinity, render_map
from .mooncake_mr import MrSizeError, check
from .mooncake_topology import build
from .rails_nics import PENSANDO

TRANSPORTS = ("rdma", "tcp")
MR_PATHS = ("auto", "dmabuf", "peermem")
PEER_RAIL_POLICIES = ("same_name", "destination_preferred", "explicit")
IB_DEVICE_MODES = ("auto", "shared", "map", "file", "topology")
LAUNCHERS = ("sglang", "infera")
TOPOLOGY_PATH = "/etc/infera/mooncake/topology.json"
DEVICE_MAP_PATH = "/etc/infera/mooncake/ib_device.json"

# Set by other kits or baked into images; each would change what is rendered here.
_NEVER_RDMA = ("MC_FORCE_TCP", "MC_MS_AUTO_DISC", "MC_MS_FILTERS", "MC_TE_FILTERS", "MC_USE_TENT", "MC_USE_TEV1", "NCCL_IB_GID_INDEX")
_NEVER_TCP = ("MC_CUSTOM_TOPO_JSON", "MC_ENABLE_DEST_DEVICE_AFFINITY", "MC_ENABLE_HCA_PEER_AFFINITY", "MC_FORCE_HCA", "MC_GID_INDEX",
              "MC_NIC_PEER_AFFINITY", "MC_TE_FILTERS", "MC_USE_TENT", "MC_USE_TEV1", "MORI_IB_GID_INDEX", "NCCL_IB_GID_INDEX")


class MooncakeEnvError(ValueError):
    """What was asked for cannot be rendered; ``faults`` holds one line each."""

    def __init__(self, faults):
        self.faults = list(faults)
        super().__init__("; ".join(self.faults))


@dataclass
class WorkerEnv:
    """One worker's transfer settings.

    ``env``: text by name. ``unset``: names that must be absent, whatever the image sets. ``ib_device``: the value of
    --disaggregation-ib-device, or None. ``ib_device_file`` and ``topology``: contents of the files that ``ib_device`` and
    MC_CUSTOM_TOPO_JSON name, or None. ``transfer_backend``: SGLang's name for it. ``host_ip``, ``netdev``: the address and
    the device of the worker's first rail, or None.
    """

    env: Dict[str, str]
    unset: List[str]
    ib_device: Optional[str]
    topology: Optional[Dict[str, Any]]
    warnings: List[str]
    ib_device_file: Optional[str] = None
    transfer_backend: str = "mooncake"
    gpu_mr_path: Optional[str] = None
    host_ip: Optional[str] = None
    netdev: Optional[str] = None
    devices: List[str] = field(default_factory=list)


def _choice(faults, name, value, allowed):
    if value not in allowed:
        faults.append("%s=%r: one of %s is needed" % (name, value, ", ".join(allowed)))


def gpu_keys(gpus, visible_devices=None, base_gpu_id=0, host_gpus=()):
    """Return ``{HIP ordinal on the host: index within the visible devices}``, the keys that SGLang looks up.

    ``host_gpus``: the ordinals that the host has, empty when unknown.
    Two workers of one host differ either by visible devices (keys start at 0 again) or by --base-gpu-id (keys go on).
    Raises MooncakeEnvError.
    """
    faults = []
    wrong = [gpu for gpu in gpus if not isinstance(gpu, int) or isinstance(gpu, bool) or gpu < 0 or host_gpus and gpu not in host_gpus]
    if wrong:
        faults.append("gpus=%s: no GPU %s on this host; it has %s" % (list(gpus), ", ".join(map(str, wrong)), ", ".join(map(str, host_gpus)) or "none"))
    if len(set(gpus)) != len(gpus):
        faults.append("gpus=%s names a GPU twice" % list(gpus))
    if visible_devices is not None:
        hidden = [gpu for gpu in gpus if gpu not in visible_devices]
        if hidden:
            faults.append("gpus=%s: %s not among visible_devices=%s" % (list(gpus), ", ".join(map(str, hidden)), list(visible_devices)))
    if faults:
        raise MooncakeEnvError(faults)
    keys = {gpu: list(visible_devices).index(gpu) if visible_devices is not None else gpu for gpu in gpus}
    if gpus and base_gpu_id != min(keys.values()):
        raise MooncakeEnvError(["base_gpu_id=%d, but the worker's first GPU has index %d within the visible devices" % (
            base_gpu_id, min(keys.values()))])
    return keys


def _rails_by_gpu(facts, keys, faults, warnings):
    own = {}
    links = {link["gpu"]: link for link in facts.get("fallback", [])}
    links.update({link["gpu"]: link for link in facts.get("pairs", [])})
    for gpu, key in keys.items():
        if gpu not in links:
            faults.append("GPU %d has no rail of its own: a device map is impossible; repair the rail or use ib_device_mode=shared" % gpu)
            continue
        if links[gpu]["kind"] != "pcie_switch" or links[gpu].get("shared"):
            warnings.append("GPU %d uses rail %s, which is not its own (%s)" % (gpu, links[gpu]["rail"], links[gpu]["kind"]))
        own[key] = [links[gpu]["rail"]]
    return own


def _local_paths(mode, ib_device_path, topology_path, faults):
    if mode == "file" and not ib_device_path.endswith(".json"):
        faults.append("ib_device_path=%s: SGLang reads a file only when its name ends in .json" % ib_device_path)
    if not topology_path.startswith("/"):
        faults.append("topology_path=%r: an absolute path inside the container is needed" % topology_path)


def _pick_mode(mode, facts, keys):
    if mode != "auto":
        return mode
    return "topology" if keys and facts.get("map_required") else "shared"


def _resolve_mr_path(wanted, facts, ionic, faults, warnings):
    found = facts.get("gpu_mr_path")
    if wanted == "auto":
        if found == "none":
            faults.append("neither a peer memory module nor dma-buf (CONFIG_PCI_P2PDMA and CONFIG_DMABUF_MOVE_NOTIFY) is there: "
                          "GPU memory cannot be registered")
        path = "peermem" if found == "peermem" else "dmabuf"
    else:
        path = wanted
        if path == "peermem" and facts.get("peermem", {}).get("present") is False and facts.get("p2pdma", {}).get("source"):
            warnings.append("gpu_mr_path=peermem, but no peer memory module is loaded")
    if path == "dmabuf" and ionic:
        warnings.append("dma-buf on ionic pins what it registers (dmabuf_pinned), and KFD counts the pinned memory a second time: "
                        "leave room for it in --mem-fraction-static")
    return path


def _engine_gate(engine, path, ionic, allow_unverified, faults, warnings):
    """Refuse an engine that would cut a large registration short, or whose capabilities could not be read."""
    if engine is None:
        if ionic:
            warnings.append("the engine was not checked (mooncake_engine_info): on ionic it has to split registrations, Mooncake 0.3.13 or newer")
        return
    if path == "dmabuf" and engine.get("dmabuf") is False:
        faults.append("the engine has no dma-buf registration, which gpu_mr_path=dmabuf needs")
    split = engine.get("mr_split")
    if split or not ionic:
        return
    text = ("the engine cuts an oversized registration short and still advertises all of it (Mooncake before 0.3.13): MC_MAX_MR_SIZE makes it worse"
            if split is False else "the engine does not say whether it splits registrations")
    (warnings if allow_unverified else faults).append(text + ("" if allow_unverified else "; allow_unverified_engine overrides"))


def render(rails_facts=None, gpus=(), visible_devices=None, transport="rdma", gpu_mr_path="auto", peer_rail_policy="same_name",
           mr_size="1GiB", ib_device_mode="auto", extra_env=None, base_gpu_id=None, launcher="sglang", nic_peer_affinity=None,
           engine=None, allow_unverified_engine=False, allow_names=(), force_hca=True, pin_host_ip=True,
           topology_path=TOPOLOGY_PATH, ib_device_path=DEVICE_MAP_PATH, one_visible_device=False):
    """Render a worker's transfer settings; a pure function, the same result for the same arguments.

    ``rails_facts``: the result of `rails.collect` with every GPU of the host visible. ``gpus``: the worker's GPUs as HIP
    ordinals of the host. ``visible_devices``: its HIP_VISIBLE_DEVICES, None for all. ``engine``: result of
    mooncake_engine_info, None when unread. ``extra_env``: the operator's own variables; they win, after the checks.
    Returns a WorkerEnv; raises MooncakeEnvError with every fault.
    """
    faults, warnings = [], []
    extra = dict(extra_env or {})
    for name, value, allowed in (("transport", transport, TRANSPORTS), ("gpu_mr_path", gpu_mr_path, MR_PATHS),
                                 ("peer_rail_policy", peer_rail_policy, PEER_RAIL_POLICIES),
                                 ("ib_device_mode", ib_device_mode, IB_DEVICE_MODES), ("launcher", launcher, LAUNCHERS)):
        _choice(faults, name, value, allowed)
    if faults:
        raise MooncakeEnvError(faults)
    if transport == "tcp":
        return _render_tcp(extra, mr_size, allow_names)

    facts = rails_facts or {}
    rails = [rail for rail in facts.get("rails", []) if rail["usable"]]
    if not rails:
        raise MooncakeEnvError(["transport=rdma, but no usable rail was found%s; repair the rails, or say transport=tcp" % "".join(
            "; rail %s %s" % (rail["name"], ", ".join(rail["reasons"])) for rail in facts.get("rails", []))])
    ionic = any(rail["vendor"] == PENSANDO for rail in rails)
    _local_paths(ib_device_mode, ib_device_path, topology_path, faults)
    indexes = [list(visible_devices).index(gpu) if visible_devices is not None and gpu in visible_devices else gpu for gpu in gpus]
    keys = gpu_keys(gpus, visible_devices, min(indexes or [0]) if base_gpu_id is None else base_gpu_id,
                    [gpu["hip_index"] for gpu in facts.get("gpus", [])])
    path = _resolve_mr_path(gpu_mr_path, facts, ionic, faults, warnings)
    _engine_gate(engine, path, ionic, allow_unverified_engine, faults, warnings)
    result = WorkerEnv(env={}, unset=[], ib_device=None, topology=None, warnings=warnings, gpu_mr_path=path)
    env = result.env
    if force_hca:
        env["MC_FORCE_HCA"] = "1"
    _peer_rails(env, peer_rail_policy, nic_peer_affinity, launcher, [rail["name"] for rail in rails], faults)
    try:
        size, notes = check(mr_size, "ionic" if ionic else "other", path)
        warnings += notes
        if size is not None:
            env["MC_MAX_MR_SIZE"] = "%d" % size
    except MrSizeError as error:
        faults.append(str(error))
    common = facts.get("gid_index_common")
    if common is not None:
        env["MC_GID_INDEX"] = env["MORI_IB_GID_INDEX"] = "%d" % common
    if path == "peermem":
        env["MOONCAKE_DISABLE_HIP_DMABUF"] = env["RDMAV_FORK_SAFE"] = "1"

    mode = _pick_mode(ib_device_mode, facts, keys)
    result.devices = [rail["name"] for rail in rails]
    own = _rails_by_gpu(facts, keys, faults, warnings) if mode in ("map", "file", "topology") else {}
    if mode != "shared" and not keys:
        faults.append("ib_device_mode=%s needs the worker's gpus" % mode)
    if one_visible_device and mode in ("map", "file"):
        faults.append("with one visible device per process every GPU has index 0: a device map cannot tell them apart; use shared or topology")
    if mode == "shared":
        result.ib_device = ",".join(result.devices)
        if facts.get("map_required"):
            warnings.append("with a shared device list Mooncake would prefer other rails than the GPUs' own; ib_device_mode=topology keeps them")
    elif mode == "topology":
        prefix = (engine or {}).get("gpu_prefix") or "hip"
        nodes = [gpu["numa"] for gpu in facts.get("gpus", []) if gpu["numa"] is not None and gpu["numa"] >= 0]
        result.topology = build(own, rails, nodes, prefix)
        env["MC_CUSTOM_TOPO_JSON"] = topology_path
    elif own:
        result.ib_device = render_map(own)
        result.devices = sorted({name for names in own.values() for name in names}, key=result.devices.index)
        if mode == "file":
            result.ib_device_file, result.ib_device = result.ib_device + "\n", ib_device_path
        if peer_rail_policy == "same_name":
            warnings.append("each process opens its own rail only: a peer on a rail of another name is out of reach under same_name")
    first = next((rail for rail in rails if rail["name"] in (own[min(own)] if own else result.devices)), None)
    if first and pin_host_ip:
        result.host_ip, result.netdev = first["ipv4"] or (first["gid"] if first["gid_kind"] == "ipv6_global" else None), first["netdev"]
        if result.host_ip:
            env["SGLANG_HOST_IP"] = env["HOST_IP"] = result.host_ip
    return _finish(result, extra, _NEVER_RDMA, faults, {
        "ionic": ionic, "gid_index_common": common, "gid_indexes": facts.get("gid_indexes"), "device_list": result.ib_device is not None,
        "gpu_mr_path": path, "allow_names": allow_names})


def _peer_rails(env, policy, affinity, launcher, names, faults):
    if affinity and policy != "explicit":
        faults.append("nic_peer_affinity is given, but peer_rail_policy=%s does not use it" % policy)
    if policy == "same_name":
        env["MC_ENABLE_DEST_DEVICE_AFFINITY"] = "1"
    elif launcher == "infera":
        # That launcher sets the variable unless it finds "0", which it deletes; Mooncake itself never sees it.
        env["MC_ENABLE_DEST_DEVICE_AFFINITY"] = "0"
    if policy == "explicit":
        if not affinity:
            faults.append("peer_rail_policy=explicit needs nic_peer_affinity (local=peer[,peer];...)")
        else:
            env["MC_ENABLE_HCA_PEER_AFFINITY"] = "1"
            env["MC_NIC_PEER_AFFINITY"] = affinity
            try:
                strangers = [name for name in parse_nic_peer_affinity(affinity) if name not in names]
            except DeviceSpecError:
                strangers = []
            if strangers:
                faults.append("nic_peer_affinity: %s is no usable rail of this host (there are: %s)" % (", ".join(strangers), ", ".join(names)))


def _render_tcp(extra, mr_size, allow_names):
    warnings, faults = [], []
    env = {"MC_FORCE_TCP": "1"}
    if mr_size is not None and "MC_MAX_MR_SIZE" in extra:
        warnings.append("MC_MAX_MR_SIZE has no effect on TCP")
    result = WorkerEnv(env=env, unset=[], ib_device=None, topology=None, warnings=warnings, transfer_backend="mooncake_tcp")
    return _finish(result, extra, _NEVER_TCP, faults, {"transport": "tcp", "allow_names": allow_names})


def _finish(result, extra, never, faults, context):
    rendered = dict(result.env)
    opt_out = rendered.get("MC_ENABLE_DEST_DEVICE_AFFINITY") == "0"
    for name, value in sorted(extra.items(), key=lambda item: str(item[0])):
        text = value if isinstance(value, str) else json.dumps(value) if isinstance(value, (bool, int, float)) else value
        if name in rendered and rendered[name] != text:
            if name in ("MC_MAX_MR_SIZE", "MC_GID_INDEX", "MC_CUSTOM_TOPO_JSON", "MC_FORCE_TCP", "MC_NIC_PEER_AFFINITY"):
                faults.append("extra_env sets %s=%r, the rails give %r: use the option for it instead" % (name, text, rendered[name]))
        result.env[name] = text
    checked = {name: value for name, value in result.env.items() if not (opt_out and name == "MC_ENABLE_DEST_DEVICE_AFFINITY" and name not in extra)}
    errors, notes = check_environment(checked, **context)
    result.warnings += notes
    faults += errors
    if faults:
        raise MooncakeEnvError(list(dict.fromkeys(faults)))
    absent = set(never) | {"MC_CUSTOM_TOPO_JSON", "MC_ENABLE_DEST_DEVICE_AFFINITY", "MC_ENABLE_HCA_PEER_AFFINITY", "MC_GID_INDEX",
                           "MC_NIC_PEER_AFFINITY", "MOONCAKE_DISABLE_HIP_DMABUF", "MORI_IB_GID_INDEX"}
    result.unset = sorted(absent - set(result.env))
    result.env = dict(sorted(result.env.items()))
    result.warnings = list(dict.fromkeys(result.warnings))
    return result
