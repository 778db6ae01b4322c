# Copyright (c) 2026, the infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Docker has of this deployment on a host; asked through the docker command, read-only."""
from __future__ import annotations

import json

from .preflight_check import not_applicable, passed, warned

ENGINES = ("prefill", "decode", "mixed")


def look(module, deployment):
    """Return ``{engine: version or None, containers: [{id, name, role, running, image}]}``."""
    docker = module.get_bin_path("docker")
    if not docker:
        return {"engine": None, "containers": []}
    code, out, _err = module.run_command([docker, "version", "--format", "{{.Server.Version}}"])
    if code:
        return {"engine": None, "containers": []}
    found = {"engine": out.strip(), "containers": []}
    label = "label=infera.serving.deployment=%s" % deployment
    code, ids, _err = module.run_command([docker, "ps", "--all", "--quiet", "--no-trunc", "--filter", label])
    if code or not ids.split():
        return found
    code, out, _err = module.run_command([docker, "inspect"] + ids.split())
    for entry in json.loads(out) if not code else []:
        found["containers"].append({
            "id": entry["Id"], "name": entry["Name"].lstrip("/"), "running": entry["State"]["Running"], "image": entry["Image"],
            "role": (entry["Config"].get("Labels") or {}).get("infera.serving.role", "")})
    return found


def image_ids(module, images):
    """Return ``{reference: image id or None}`` of images on this host."""
    docker = module.get_bin_path("docker")
    found = {}
    for image in images:
        code, out, _err = module.run_command([docker, "image", "inspect", "--format", "{{.Id}}", image]) if docker else (1, "", "")
        found[image] = out.strip() if not code else None
    return found


def engine_image(found):
    """Return the image ids that this host's engine containers run, each once."""
    return sorted({container["image"] for container in found["containers"] if container["role"] in ENGINES})


def check_docker(found):
    if not found["engine"]:
        return [not_applicable("docker", "not running yet: the role container_engine installs and starts it")]
    stopped = [container["name"] for container in found["containers"] if not container["running"] and container["role"] != "model"]
    if stopped:
        return [warned("docker", "stopped containers of this deployment: %s" % ", ".join(stopped), "docker logs says why; site.yml starts them again")]
    return [passed("docker", "%s, %d containers of this deployment" % (found["engine"], len(found["containers"])))]
