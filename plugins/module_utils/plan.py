# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables in, the list of containers out. Pure: no file, no host, no clock.

``build(variables)`` takes the names of plan_options.OPTIONS, the engine keys (plan_engines.known_names()), and

* ``groups``: {prefill, decode, mixed, router, etcd: [host, ...]}
* ``addresses``: {host: address of the fleet's network}
* ``images``: {sglang, router, etcd: reference}; absent while only the values are being checked
* ``rails``: {host: result of rails_info}, where it is known
* ``machines``: the hosts of the group mi355x, where there is one; ``addressed``: the hosts that have an address of their own
* ``weight_override``: what ``-e DECODE_REQUEST_WEIGHT`` said, or None
* ``seen``: names of variables that start like ours, to find mistyped ones; ``others``: those that roles and playbooks read

and returns a Plan, or raises PlanError with every fault found, one line each: the option, the value, the fix.
"""
from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List

from ansible_collections.infera.serving.plugins.module_utils import plan_containers, plan_engines, plan_names, plan_options, plan_shape

__all__ = ["Plan", "PlanError", "build", "variable_names"]


class PlanError(ValueError):
    """The variables make no deployment; ``faults`` holds one line for each reason."""

    def __init__(self, faults):
        self.faults = list(faults)
        super().__init__("\n".join(self.faults))


@dataclass
class Plan:
    """A deployment as it shall be. ``containers`` are in start order and say everything about each one."""

    deployment: str
    shape: str
    flavour: str
    model: Dict[str, Any]
    router_url: str
    weight: Any
    settings: Dict[str, Any]
    hosts: List[Dict[str, Any]]
    containers: List[Dict[str, Any]]
    volumes: List[Dict[str, Any]] = field(default_factory=list)
    gpus: int = 0
    state_dir: str = ""
    warnings: List[str] = field(default_factory=list)

    def as_dict(self):
        return asdict(self)


def variable_names():
    """Every inventory variable that the plan reads."""
    return list(plan_options.OPTIONS) + plan_engines.known_names()


def build(variables):
    """Return the Plan of *variables*; see the module's text."""
    faults = plan_options.Faults()
    values = plan_options.read(variables, faults)
    notes = plan_names.check(variables.get("seen") or (), variable_names(), variables.get("others") or (), faults)
    if faults.lines:
        # A default in a wrong value's place would only bring faults that are none.
        raise PlanError(faults.lines)
    values["infera_deployment_id"] = values["infera_deployment_id"] or values["infera_shape"].replace("_", "-")
    _check_values(values, variables, faults)
    groups, addresses = variables.get("groups") or {}, variables.get("addresses") or {}
    plan_shape.check_machines(values, groups, variables.get("machines") or (), variables.get("addressed") or (), faults)
    if faults.lines:
        raise PlanError(faults.lines)
    plan_shape.check_hosts(values, groups, addresses, faults)
    if faults.lines:
        raise PlanError(faults.lines)

    roles = {role: plan_engines.role_values(role, values, variables, faults) for role in plan_shape.ENGINE_ROLES if values[f"{role}_workers"]}
    ranks = {role: plan_engines.rank_counts(role, out, values, faults) for role, out in roles.items()}
    workers = plan_shape.place(dict(values, **{f"{r}_workers": 0 for r in plan_shape.ENGINE_ROLES if r not in roles}), groups, addresses, ranks, faults)
    plan_shape.check_ports(values, groups, workers, faults)
    if values["engine_published"] is not False and values["infera_flavour"] == "rocm":
        plan_shape.check_name(values, workers, faults)
    if faults.lines:
        raise PlanError(faults.lines)
    model = _model(values)
    maker = plan_containers.Maker(values, groups, addresses, variables.get("images") or {}, model)
    containers, warnings = maker.etcd(), notes
    for worker in workers:
        argv, env, files, own = plan_engines.engine_args(worker, roles[worker.role], values, model, variables.get("rails") or {}, faults)
        containers.append(maker.engine(worker, argv, env, files))
        warnings += [f"{worker.label}: {note}" for note in own]
    containers += maker.router()
    if faults.lines:
        raise PlanError(list(dict.fromkeys(faults.lines)))
    containers = maker.models(containers) + containers
    router = groups["router"][0]
    return Plan(
        deployment=values["infera_deployment_id"], shape=values["infera_shape"], flavour=values["infera_flavour"], model=model,
        router_url=f"http://{addresses[router]}:{values['router_port']}", weight=values["decode_request_weight"],
        settings=_settings(values, maker.endpoints), hosts=_hosts(groups, addresses, workers, containers), containers=containers,
        volumes=maker.volumes(containers), gpus=sum(len(w.gpus) for w in workers),
        state_dir=f"{values['infera_state_dir']}/{values['infera_deployment_id']}", warnings=warnings)


def _check_values(values, variables, faults):
    weight, override = values["decode_request_weight"], variables.get("weight_override")
    if override is not None:
        wanted = plan_options.OPTIONS["decode_request_weight"].convert(override, faults)
        if wanted != weight and not any(line.startswith("decode_request_weight") for line in faults.lines):
            faults.add("decode_request_weight", weight, f"DECODE_REQUEST_WEIGHT is {override!r} and the inventory's line holds another value; "
                       "remove one of them, or restore the line that reads DECODE_REQUEST_WEIGHT")
    if weight > 0 and values["decode_input_demand"] == "off":
        faults.add("decode_request_weight", weight, "needs decode_input_demand on or shadow, it is off; set decode_input_demand: on, or the weight to 0")
    if values["router_session_affinity"] != "off" and values["prefill_workers"] == 0:
        faults.add("router_session_affinity", values["router_session_affinity"], "there is no prefill worker; set it to off")
    if values["router_policy"] == "kv-aware" and values["router_tokenizer_path"] == "none":
        faults.add("router_tokenizer_path", "none", "router_policy kv-aware needs a tokenizer; leave it empty for the model's own")
    if bool(values["infera_model_path"]) == bool(values["infera_model_make"]):
        faults.add("infera_model_path", values["infera_model_path"], "set either the model's folder, or infera_model_make for a tiny one")
    rails = values["engine_rails"]
    if len(set(map(str, rails))) != len(rails):
        faults.add("engine_rails", rails, "names a device twice; list every RDMA device of the host once, in rail order")
    for key in values["infera_model_make"]:
        if key not in ("vocab", "context", "layers"):
            faults.add("infera_model_make", key, "unknown key; it has vocab, context, layers")
    published = values["engine_published"] if values["engine_published"] is not None else values["infera_flavour"] == "rocm"
    if published and values["decode_workers"] and values["decode_gpus"] not in (4, 8):
        faults.add("decode_gpus", values["decode_gpus"], "the published decodes use 4 or 8 GPUs; set one of them, or engine_published: false")
    tls = [name for name in ("etcd_tls_ca_file", "etcd_tls_cert_file", "etcd_tls_key_file") if values[name]]
    if tls and len(tls) < 3:
        faults.add("etcd_tls_ca_file", values["etcd_tls_ca_file"], "TLS needs etcd_tls_ca_file, etcd_tls_cert_file and etcd_tls_key_file together")
    if bool(values["etcd_user"]) != bool(values["etcd_password"]):
        faults.add("etcd_user", values["etcd_user"], "etcd_user and etcd_password only go together")


def _model(values):
    if values["infera_model_make"]:
        name = values["infera_served_model_name"] or "tiny"
        made = dict(values["infera_model_make"])
        # Another recipe is another folder, so a change of it reaches everything that reads the model.
        return {"name": name, "path": "/models/" + "-".join([name] + [f"{key}{made[key]}" for key in sorted(made)]), "made": made}
    path = values["infera_model_path"].rstrip("/")
    return {"name": values["infera_served_model_name"] or path.rsplit("/", 1)[-1], "path": path, "made": {}}


def _settings(values, endpoints):
    """What clients of a running deployment need to know and must not read from group_vars."""
    names = ("router_port", "etcd_client_port", "etcd_peer_port", "etcd_prefix", "decode_input_demand", "router_policy", "router_session_affinity",
             "router_drain_timeout", "engine_drain_timeout", "engine_ready_timeout", "engine_lease_ttl", "infera_flavour", "infera_gpus_per_host")
    return dict({name: values[name] for name in names}, etcd_endpoints=list(endpoints))


def _hosts(groups, addresses, workers, containers):
    used = list(dict.fromkeys(container["host"] for container in containers))
    return [{"name": host, "address": addresses[host], "roles": [role for role in ("etcd", "prefill", "decode", "mixed", "router")
                                                                  if any(c["host"] == host and c["role"] == role for c in containers)],
             "gpus": sorted(gpu for w in workers if w.host == host for gpu in w.gpus)} for host in used]
