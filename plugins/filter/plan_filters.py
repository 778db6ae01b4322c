# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that pick from a plan."""
from __future__ import annotations

PORT_VARIABLES = {
    ("router", "http"): "router_port", ("etcd", "client"): "etcd_client_port", ("etcd", "peer"): "etcd_peer_port",
}


def containers_of(containers, role, host):
    """The planned containers of one role on one host."""
    return [c for c in containers if c["role"] == role and c["host"] == host]


def wait_targets(containers):
    """The targets of infera.serving.wait for planned containers that have a health URL."""
    return [{"name": c["name"], "url": c["health"]["url"], "timeout": c["health"]["timeout"]} for c in containers if c["health"].get("url")]


def planned_ports(containers, host):
    """The ports that a plan needs on a host, as infera.serving.ports_check takes them."""
    out = []
    for container in containers:
        if container["host"] != host:
            continue
        named = {port: use for use, port in container["ports"].items()}
        for port in container["listens"]:
            variable = PORT_VARIABLES.get((container["role"], named.get(port)), "engine_port_base")
            out.append({"port": port, "variable": variable, "use": f"{container['name']} {named.get(port, 'KV of a further rank')}"})
    return out


def container_facts(containers):
    """Names, ids and image digests of running containers, from docker_host_info's verbose list."""
    return {c["Names"][0].lstrip("/"): {"id": c["Id"], "image_digest": c["ImageID"], "started_at": str(c["Created"])} for c in containers}


ENGINES = ("prefill", "decode", "mixed")
IMAGE_OF_ROLE = {"etcd": "etcd", "router": "router", "prefill": "sglang", "decode": "sglang", "mixed": "sglang", "model": "sglang"}


def record_images(record):
    """The images that a running deployment was made from, as infera.serving.plan takes them."""
    return {IMAGE_OF_ROLE[c["role"]]: c["image"] for c in record["containers"] if c["role"] in IMAGE_OF_ROLE}


def beside_weight(plan, record):
    """What a plan of the router differs in from the running one, beside the weight; one line each, empty where there is nothing."""
    lines = [f"{name}: the inventory says {wanted!r}, {record['id']} runs with {runs!r}" for name, wanted, runs in (
        ("infera_deployment_id", plan["deployment"], record["id"]), ("infera_shape", plan["shape"], record["shape"]),
        ("router_url", plan["router_url"], record["router_url"])) if wanted != runs]
    planned = {c["name"]: c for c in plan["containers"] if c["role"] == "router"}
    running = {c["name"]: c for c in record["containers"] if c["role"] == "router"}
    for name in sorted(set(planned) | set(running)):
        if name not in planned or name not in running:
            lines.append(f"{name}: only in the {'inventory' if name in planned else 'running deployment'}")
            continue
        for what, wanted, runs in (("arguments", _without_weight(planned[name]["command"]), _without_weight(running[name]["argv"])),
                                   ("environment", planned[name]["env"], running[name]["env"])):
            if wanted != runs:
                lines.append(f"{name}: other {what} than the running one: {wanted} instead of {runs}")
    return lines


def rolling(plan, record, everything=False):
    """Names of the engines that a rollout replaces: those that differ from what runs, or all of them."""
    running = {c["name"]: c["config_digest"] for c in record["containers"]}
    return [c["name"] for c in plan["containers"] if c["role"] in ENGINES and c["name"] in running
            and (everything or c["labels"]["infera.serving.config_digest"] != running[c["name"]])]


def outages(plan, names, vram_wait=0):
    """One line per role that a rollout of *names* leaves without a worker, and for how long at most."""
    lines, rocm = [], plan["flavour"] == "rocm"
    for role in ENGINES:
        workers = [c for c in plan["containers"] if c["role"] == role]
        if len(workers) == 1 and workers[0]["name"] in names:
            one = workers[0]
            seconds = one["stop_timeout"] + one["health"]["timeout"] + (vram_wait if rocm else 0)
            lines.append(f"{role}: {one['name']} is its only worker; new requests get 503 for at most {seconds} s "
                         f"(drain and stop {one['stop_timeout']}, {f'VRAM {vram_wait}, ' if rocm else ''}start {one['health']['timeout']})")
    return lines


def _without_weight(argv):
    flag = "--decode-request-weight"
    place = argv.index(flag) if flag in argv else None
    return list(argv) if place is None else argv[:place] + argv[place + 2:]


class FilterModule:
    def filters(self):
        return {"containers_of": containers_of, "wait_targets": wait_targets, "planned_ports": planned_ports, "container_facts": container_facts,
                "record_images": record_images, "beside_weight": beside_weight, "rolling": rolling, "outages": outages}
