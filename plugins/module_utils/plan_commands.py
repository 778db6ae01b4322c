# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Command lines of etcd, infera-router and infera-engine. SGLang's own flags are sglang_args' business."""
from __future__ import annotations

__all__ = ["etcd_command", "etcd_flags", "router_command", "engine_command", "model_command", "number"]

ETCD_DATA = "/var/lib/etcd-data"
SECRETS = "/run/infera-secrets"


def number(value):
    """Write a number as an operator would: 1000000, not 1e+06 or 1000000.0."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def etcd_scheme(values):
    return "https" if values["etcd_tls_cert_file"] else "http"


def etcd_url(values, address, port):
    host = f"[{address}]" if ":" in address else address
    return f"{etcd_scheme(values)}://{host}:{port}"


def etcd_command(values, name, address, members):
    """*members*: [(name, address)] of the whole cluster. Flags that 3.4 and 3.5 share."""
    client, peer = etcd_url(values, address, values["etcd_client_port"]), etcd_url(values, address, values["etcd_peer_port"])
    command = [
        "etcd", "--name", name, "--data-dir", ETCD_DATA,
        "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
        "--initial-cluster", ",".join(f"{n}={etcd_url(values, a, values['etcd_peer_port'])}" for n, a in members),
        "--initial-cluster-state", "new", "--initial-cluster-token", values["infera_deployment_id"],
        "--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1h",
    ]
    if values["etcd_tls_cert_file"]:
        for kind in ("", "peer-"):
            command += [f"--{kind}cert-file", f"{SECRETS}/etcd-cert.pem", f"--{kind}key-file", f"{SECRETS}/etcd-key.pem",
                        f"--{kind}trusted-ca-file", f"{SECRETS}/etcd-ca.pem", f"--{kind}client-cert-auth"]
    return command


def etcd_flags(values, endpoints):
    """The flags with which router and engine reach etcd."""
    flags = []
    for endpoint in endpoints:
        flags += ["--etcd-endpoint", endpoint]
    flags += ["--etcd-prefix", values["etcd_prefix"]]
    if values["etcd_tls_cert_file"]:
        flags += ["--etcd-ca-file", f"{SECRETS}/etcd-ca.pem", "--etcd-cert-file", f"{SECRETS}/etcd-cert.pem", "--etcd-key-file", f"{SECRETS}/etcd-key.pem"]
    if values["etcd_user"]:
        flags += ["--etcd-user", values["etcd_user"], "--etcd-password-file", f"{SECRETS}/etcd-password"]
    return flags


def router_command(values, address, endpoints, tokenizer):
    command = ["infera-router", "--host", address, "--port", str(values["router_port"])] + etcd_flags(values, endpoints)
    command += ["--router-policy", values["router_policy"]]
    if values["router_policy"] == "kv-aware":
        command += ["--kv-prefill-overlap-weight", number(values["router_kv_prefill_overlap_weight"]),
                    "--kv-decode-overlap-weight", number(values["router_kv_decode_overlap_weight"])]
    if values["router_session_affinity"] != "off":
        command += ["--session-affinity", values["router_session_affinity"]]
    command += ["--decode-input-demand", values["decode_input_demand"], "--decode-request-weight", number(values["decode_request_weight"])]
    if tokenizer:
        command += ["--router-tokenizer-path", tokenizer]
    command += ["--drain-timeout", str(values["router_drain_timeout"])]
    return command + [str(word) for word in values["router_extra_args"]]


def engine_command(values, address, endpoints, sglang_argv):
    command = ["infera-engine"] + etcd_flags(values, endpoints)
    if address.startswith("127.") or address == "::1":
        command.append("--allow-loopback")
    if not values["engine_kv_events"]:
        command += ["--kv-events", "off"]
    command += ["--lease-ttl", str(values["engine_lease_ttl"]), "--ready-timeout", str(values["engine_ready_timeout"]),
                "--drain-timeout", str(values["engine_drain_timeout"])]
    return command + ["--"] + sglang_argv


def model_command(recipe, path):
    return ["infera-make-model", "--out", path] + [word for key in ("vocab", "context", "layers") if key in recipe
                                                   for word in (f"--{key}", str(recipe[key]))]
