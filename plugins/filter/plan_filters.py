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


class FilterModule:
    def filters(self):
        return {"containers_of": containers_of, "wait_targets": wait_targets, "planned_ports": planned_ports, "container_facts": container_facts}
