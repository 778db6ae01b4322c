# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From variables to one engine's values for sglang_args: published values, then engine_*, then the role's own variables."""
from __future__ import annotations

import re

from ansible_collections.infera.serving.plugins.module_utils import mooncake_checks, mooncake_devices, mooncake_env, sglang_args, sglang_keys

__all__ = ["engine_args", "known_names", "rank_counts", "role_values"]

# Engine keys that the plan decides, and the variable that moves them; a variable of the key's own name would be a second truth.
PLAN_OWNED = {
    "port": "{role}_ports, or engine_port_base", "bootstrap_port": "engine_bootstrap_offset", "kv_events_port": "engine_kv_events_offset",
    "kv_replay_port": "engine_kv_replay_offset", "host": "infera_host_address", "host_ip": "infera_host_address", "kv_events_host": "infera_host_address",
    "model_path": "infera_model_path", "served_model_name": "infera_served_model_name", "model_layers": "infera_model_layers",
    "flavour": "infera_flavour", "visible_devices": "{role}_gpu_ids", "planned_concurrency": "infera_planned_concurrency",
    "mooncake_env": "engine_env, or a variable of the role mooncake",
}
PREFIXES = ("engine", "prefill", "decode", "mixed")
SETTABLE = [key for key in list(sglang_keys.KEYS) + list(sglang_keys.SPECIAL) if key not in PLAN_OWNED]


def known_names():
    """Names of all variables that set an engine key: engine_<key> for every role, <role>_<key> for one."""
    return [f"{prefix}_{key}" for prefix in PREFIXES for key in SETTABLE]


def role_values(role, values, variables, faults):
    """Return the role's values for sglang_args, without what depends on the worker."""
    rocm = values["infera_flavour"] == "rocm"
    gpus = values[f"{role}_gpus"]
    published = values["engine_published"] if values["engine_published"] is not None else rocm
    if published:
        out = sglang_args.published(role, values["decode_gpus"])
        if role == "mixed":
            out.update(tp_size=gpus, attn_dp_size=gpus)
    elif role == "prefill":
        out = {"tp_size": 1, "pp_size": gpus}
    else:
        out = {"tp_size": gpus, "attn_dp_size": gpus}
    if not rocm and role != "mixed":
        out["transfer_backend"] = "mooncake_tcp"
    for prefix in ("engine", role):
        for key in SETTABLE:
            value = variables.get(f"{prefix}_{key}")
            if value is None or value == "":
                continue
            if key == "env":
                if not isinstance(value, dict):
                    faults.add(f"{prefix}_env", value, "is not a dictionary; write NAME: value, one line each")
                    continue
                value = dict(out.get("env", {}), **value)
            if key == "transfer_backend" and role == "mixed" and prefix == "engine":
                continue
            out[key] = value
    out["flavour"] = values["infera_flavour"]
    if values["infera_model_layers"] is not None and out.get("pp_layers"):
        out["model_layers"] = values["infera_model_layers"]
    if values["infera_planned_concurrency"]:
        out["planned_concurrency"] = values["infera_planned_concurrency"]
    if not rocm and "cpu_threads" not in out:
        ranks = max(_int(out.get("tp_size")) * _int(out.get("pp_size")), _int(out.get("dp_size")))
        if ranks > 1:
            out["cpu_threads"] = "|".join(str(n) for n in range(ranks))
    return out


def rank_counts(role, out, values, faults):
    """Return the number of ranks that one worker registers, and check that its parallel sizes use its GPUs exactly."""
    used = _int(out.get("tp_size")) * _int(out.get("pp_size")) * _int(out.get("dp_size"))
    if used != values[f"{role}_gpus"]:
        faults.add(f"{role}_gpus", values[f"{role}_gpus"], f"tensor x pipeline x data parallel sizes use {used}; make them equal")
    return _int(out.get("dp_size")) * _int(out.get("attn_dp_size"))


def engine_args(worker, out, values, model, rails, faults):
    """Return (argv, env, files, warnings) of one worker; files are [{path, content}] that its settings name."""
    given = dict(out, host=worker.address, port=worker.ports["http"], host_ip=worker.address, model_path=model["path"], served_model_name=model["name"])
    if worker.role == "prefill":
        given["bootstrap_port"] = worker.ports["bootstrap"]
    if "kv_events" in worker.ports:
        given.update(kv_events_port=worker.ports["kv_events"], kv_replay_port=worker.ports["kv_replay"])
    files, warnings = [], []
    if values["infera_flavour"] == "rocm":
        given["visible_devices"] = worker.gpus
        if given.get("transfer_backend") == "mooncake":
            files, warnings = _rails(worker, given, values, rails, faults)
    elif str(worker.address).startswith("127."):
        given["socket_ifname"] = "lo"
    try:
        made = sglang_args.engine(worker.role, given)
    except sglang_args.ArgsError as error:
        for fault in error.faults:
            key, colon, text = fault.partition(": ")
            # The key as the operator writes it.
            option = f"{worker.role}_{key}" if key.split(".")[0] in SETTABLE else key
            text = re.sub(r"is written by the key (\w+); set \1 instead", lambda found: "is written by " + _variable(worker.role, found[1]), text)
            faults.lines.append(f"{option}{colon}{text}")
        return [], {}, [], []
    return made.argv, made.env, files, warnings


def _variable(role, key):
    """The variable that sets an engine key."""
    return f"the plan; set {PLAN_OWNED[key].format(role=role)} instead" if key in PLAN_OWNED else f"the key {key}; set {role}_{key} instead"


def _rails(worker, given, values, rails, faults):
    """Rail settings from the rails that were found on the host, or as planned where nobody has looked yet."""
    facts, allowed = rails.get(worker.host), values["mooncake_allow_names"]
    own = {name: value for name, value in (given.get("env") or {}).items() if str(name).startswith(mooncake_checks.PREFIXES)}
    if not facts:
        if values["engine_rails"] and "ib_device" not in given:
            given["ib_device"] = values["engine_rails"]
        given["mooncake_env"] = {"MC_FORCE_HCA": "1"}
        errors, _notes = mooncake_checks.check_environment({name: str(value) for name, value in own.items()}, allow_names=allowed)
        _tell(faults, worker, errors)
        return [], []
    # What the role mooncake decided about the transfer travels with the rails.
    options = dict(facts.get("mooncake") or {}, extra_env=own, allow_names=allowed)
    if "ib_device" in given:
        options["ib_device_mode"] = "shared"
        _check_devices(worker, given["ib_device"], facts, faults)
    try:
        made = mooncake_env.render(facts, gpus=worker.gpus, visible_devices=worker.gpus, **options)
    except mooncake_env.MooncakeEnvError as error:
        _tell(faults, worker, error.faults)
        return [], []
    # None takes a name out of what is published.
    given["mooncake_env"] = dict(dict.fromkeys(made.unset), **made.env)
    given.pop("host_ip", None)
    if "SGLANG_HOST_IP" not in made.env:
        given["host_ip"] = worker.address
    if made.netdev and "SGLANG_HOST_IP" in made.env:
        given.setdefault("socket_ifname", made.netdev)
    if made.ib_device and "ib_device" not in given:
        given["ib_device"] = made.ib_device
    files = []
    if made.topology is not None:
        files.append({"path": made.env["MC_CUSTOM_TOPO_JSON"], "content": mooncake_env.json.dumps(made.topology, sort_keys=True) + "\n"})
    if made.ib_device_file:
        files.append({"path": made.ib_device, "content": made.ib_device_file})
    return files, made.warnings


def _tell(faults, worker, lines):
    for line in lines:
        text = f"rails of {worker.host}, {worker.label}: {line}"
        if text not in faults.lines:
            faults.lines.append(text)


def _check_devices(worker, value, facts, faults):
    usable = [rail["name"] for rail in facts.get("rails", []) if rail["usable"]]
    try:
        strangers = [name for name in mooncake_devices.parse(value)["devices"] if name not in usable]
    except mooncake_devices.DeviceSpecError as error:
        faults.add(f"{worker.role}_ib_device", value, str(error))
        return
    if strangers:
        faults.add(f"{worker.role}_ib_device", value, f"{', '.join(strangers)}: no usable rail of {worker.host} (there are: {', '.join(usable) or 'none'})")


def _int(value):
    try:
        return max(1, int(value))
    except (TypeError, ValueError):
        return 1
