# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One dictionary per container, which says everything about it.

Keys: name, role, instance, host, image, command, env, ports {use: port}, mounts [{type, source, target, read_only}], devices, groups,
capabilities, security_opts, ulimits {name: soft:hard}, ipc_mode, shm_size, network_mode, restart_policy, stop_timeout (s), labels,
log {driver, options}, health {url, timeout (s)}, secrets [{path, mode, variable}], files [{path, content}], init, oneshot.
The label config_digest covers all of it, so it changes exactly when something of the container does.
"""
from __future__ import annotations

import hashlib
import json

from ansible_collections.infera.serving.plugins.module_utils import plan_commands, plan_shape

__all__ = ["Maker", "LABEL", "digest"]

LABEL = "infera.serving."
ROCM = {
    "devices": ["/dev/kfd", "/dev/dri", "/dev/infiniband"],
    "groups": ["video", "render"],
    "capabilities": ["IPC_LOCK", "SYS_PTRACE"],
    "security_opts": ["seccomp=unconfined"],
    "ulimits": {"memlock": -1, "stack": 67108864, "nofile": 1048576},
    "ipc_mode": "host",
    "shm_size": "128G",
}
CPU = {"devices": [], "groups": [], "capabilities": [], "security_opts": [], "ulimits": {}, "ipc_mode": "", "shm_size": "1G"}
LIBIONIC = "/host-libionic/libionic.so"


def digest(container):
    """Return the digest of everything in *container* but the digest itself."""
    plain = dict(container, labels={k: v for k, v in container["labels"].items() if k != LABEL + "config_digest"})
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


class Maker:
    """Makes the containers of one deployment from checked values."""

    def __init__(self, values, groups, addresses, images, model):
        self.values, self.groups, self.addresses, self.images, self.model = values, groups, addresses, images, model
        self.id = values["infera_deployment_id"]
        self.state = f"{values['infera_state_dir']}/{self.id}"
        self.endpoints = [plan_commands.etcd_url(values, addresses[h], values["etcd_client_port"]) for h in groups["etcd"]]

    def etcd(self):
        values, hosts = self.values, self.groups["etcd"]
        members = [(f"{self.id}-etcd-{n}", self.addresses[host]) for n, host in enumerate(hosts)]
        return [self._finish(
            "etcd", n, host, "etcd", plan_commands.etcd_command(values, members[n][0], self.addresses[host], members),
            ports={"client": values["etcd_client_port"], "peer": values["etcd_peer_port"]},
            mounts=[self._volume(f"{self.id}-etcd-{n}", plan_commands.ETCD_DATA)] + self._tls(),
            stop_timeout=30, health={"url": self.endpoints[n] + "/health", "timeout": 60},
        ) for n, host in enumerate(hosts)]

    def engine(self, worker, argv, env, files):
        values, form = self.values, CPU if self.values["infera_flavour"] == "cpu" else ROCM
        chosen = {name: form[name] if values[f"engine_{name}"] is None else values[f"engine_{name}"] for name in form}
        mounts = self._model_mounts() + self._tls() + self._password()
        if values["engine_libionic_file"]:
            mounts.append({"type": "bind", "source": values["engine_libionic_file"], "target": LIBIONIC, "read_only": True})
        name = f"{self.id}-{worker.role}-{worker.instance}"
        for file in files:
            mounts.append({"type": "bind", "source": self._file_source(name, file["path"]), "target": file["path"], "read_only": True})
        ports = {use: port for use, port in worker.ports.items() if use != "ranks"}
        container = self._finish(
            worker.role, worker.instance, worker.host, "sglang",
            plan_commands.engine_command(values, worker.address, self.endpoints, argv), env=env, ports=ports, mounts=mounts,
            stop_timeout=values["engine_drain_timeout"] + 40, secrets=self._secrets(),
            files=[{"path": self._file_source(name, f["path"]), "content": f["content"]} for f in files],
            health={"url": f"http://{worker.address}:{ports['http']}/health", "timeout": values["engine_ready_timeout"]},
            gpus=worker.gpus if values["infera_flavour"] == "rocm" else [], ranks=worker.ranks, listens=[p for p, _use in plan_shape.port_list(worker.ports)],
            devices=chosen["devices"], groups=[str(g) for g in chosen["groups"]], capabilities=chosen["capabilities"],
            security_opts=chosen["security_opts"], ulimits={k: _limit(v) for k, v in chosen["ulimits"].items()},
            ipc_mode=chosen["ipc_mode"], shm_size=chosen["shm_size"])
        return container

    def router(self):
        values, host = self.values, self.groups["router"][0]
        address, tokenizer = self.addresses[host], self.tokenizer()
        url = f"http://{address}:{values['router_port']}"
        return [self._finish(
            "router", 0, host, "router", plan_commands.router_command(values, address, self.endpoints, tokenizer),
            ports={"http": values["router_port"]}, mounts=(self._model_mounts() if tokenizer == self.model["path"] else []) + (
                [{"type": "bind", "source": tokenizer, "target": tokenizer, "read_only": True}] if tokenizer and tokenizer != self.model["path"] else []
            ) + self._tls() + self._password(),
            ulimits={"nofile": _limit(values["router_nofile"])} if values["router_nofile"] else {}, secrets=self._secrets(),
            stop_timeout=values["router_drain_timeout"] + 10, health={"url": url + "/health", "timeout": 60})]

    def tokenizer(self):
        wanted = self.values["router_tokenizer_path"]
        return "" if wanted == "none" else wanted or self.model["path"]

    def models(self, containers):
        """One-shot containers that make the tiny model, one on every host that mounts its volume."""
        if not self.model["made"]:
            return []
        volume = self._model_mounts()[0]["source"]
        hosts = list(dict.fromkeys(c["host"] for c in containers if any(m["source"] == volume for m in c["mounts"])))
        return [self._finish("model", n, host, "sglang", plan_commands.model_command(self.model["made"], self.model["path"]),
                             mounts=[dict(self._model_mounts()[0], read_only=False)], restart_policy="no", network_mode="none", oneshot=True,
                             health={"url": "", "timeout": 300}) for n, host in enumerate(hosts)]

    def volumes(self, containers):
        """Named volumes by host, with our labels, so that they can be found again."""
        seen = {}
        for container in containers:
            for mount in container["mounts"]:
                if mount["type"] == "volume":
                    seen[(container["host"], mount["source"])] = {"name": mount["source"], "host": container["host"],
                                                                  "labels": {LABEL + "deployment": self.id}}
        return list(seen.values())

    def _finish(self, role, instance, host, image, command, **given):
        values = self.values
        container = {
            "name": f"{self.id}-{role}-{instance}", "role": role, "instance": instance, "host": host, "image": self.images.get(image, ""),
            "command": command, "env": {}, "ports": {}, "mounts": [], "devices": [], "groups": [], "capabilities": [], "security_opts": [], "ulimits": {},
            "ipc_mode": "", "shm_size": "", "network_mode": "host", "restart_policy": "unless-stopped", "stop_timeout": 10,
            "labels": {LABEL + "deployment": self.id, LABEL + "role": role, LABEL + "instance": str(instance)},
            "log": {"driver": "json-file", "options": {"max-size": values["container_log_max_size"], "max-file": str(values["container_log_max_file"])}},
            "health": {}, "secrets": [], "files": [], "init": True, "oneshot": False,
        }
        container.update(given)
        container.setdefault("listens", sorted(container["ports"].values()))
        container["labels"][LABEL + "config_digest"] = digest(container)
        return container

    def _volume(self, name, target):
        return {"type": "volume", "source": name, "target": target, "read_only": False}

    def _model_mounts(self):
        if self.model["made"]:
            return [dict(self._volume(f"{self.id}-model", "/models"), read_only=True)]
        return [{"type": "bind", "source": self.model["path"], "target": self.model["path"], "read_only": True}]

    def _tls(self):
        if not self.values["etcd_tls_cert_file"]:
            return []
        return [{"type": "bind", "source": self.values[f"etcd_tls_{kind}_file"], "target": f"{plan_commands.SECRETS}/etcd-{kind}.pem", "read_only": True}
                for kind in ("ca", "cert", "key")]

    def _password(self):
        if not self.values["etcd_user"]:
            return []
        return [{"type": "bind", "source": f"{self.state}/etcd-password", "target": f"{plan_commands.SECRETS}/etcd-password", "read_only": True}]

    def _secrets(self):
        return [{"path": f"{self.state}/etcd-password", "mode": "0600", "variable": "etcd_password"}] if self.values["etcd_user"] else []

    def _file_source(self, name, path):
        return f"{self.state}/{name}/{path.rsplit('/', 1)[-1]}"


def _limit(value):
    text = str(value)
    return text if ":" in text else f"{text}:{text}"
