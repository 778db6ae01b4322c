# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of a deployment: names, types, defaults, and the checks that need one variable alone.

Values arrive as Ansible gives them, so a number may be text (``-e`` passes only text) and is converted here, once.
"""
from __future__ import annotations

import math
import re

__all__ = ["OPTIONS", "Option", "Faults", "read"]

ID_PATTERN = r"[a-z0-9][a-z0-9-]{0,39}"
SHAPE_PATTERN = r"[a-z0-9][a-z0-9_-]{0,39}"
# What a pattern asks for, in words.
_IN_WORDS = {"/.+": "write an absolute path", "/.*/": "begin and end it with /", ID_PATTERN: "use small letters, digits and -, 40 at most",
             SHAPE_PATTERN: "use small letters, digits, - and _, 40 at most"}


class Faults:
    """Collects one line per wrong variable: the option, the value, the fix."""

    def __init__(self):
        self.lines = []

    def add(self, option, value, fix, shown=None):
        shown = shown or ("not set" if value in (None, "") else repr(value))
        line = f"{option}: {shown}: {fix}"
        if line not in self.lines:
            self.lines.append(line)


class Option:
    """One variable: its name, type, default, bounds or choices, and what it means."""

    def __init__(self, name, kind, default, text, choices=None, low=None, high=None, pattern=None):
        self.name, self.kind, self.default, self.text = name, kind, default, text
        self.choices, self.low, self.high, self.pattern = choices, low, high, pattern

    def convert(self, value, faults, given=True):
        """Return the typed value; report what is wrong and return the default instead. *given*: somebody wrote it."""
        if isinstance(self.default, (list, dict)) and value is None:
            return type(self.default)(self.default)
        if value is None or (value == "" and self.kind not in ("str", "list", "dict")):
            # A knob that is there without a value was meant to have one; where the default is to have none, empty says that.
            if given and self.default not in (None, ""):
                faults.add(self.name, value, f"give it a value, or remove the line for {self._shown_default()}", shown="empty")
            return self.default
        try:
            return getattr(self, "_" + self.kind)(value)
        except ValueError as error:
            faults.add(self.name, value, str(error))
            return self.default

    def _shown_default(self):
        return repr(self.default) if isinstance(self.default, str) else str(self.default).lower()

    def _str(self, value):
        if isinstance(value, (dict, list)):
            raise ValueError("is not text")
        value = str(value)
        if self.choices and value not in self.choices:
            raise ValueError("is unknown; set one of " + ", ".join(self.choices))
        if self.pattern and value and not re.fullmatch(self.pattern, value):
            raise ValueError(_IN_WORDS.get(self.pattern) or f"does not fit the pattern {self.pattern}")
        return value

    def _bool(self, value):
        if isinstance(value, bool):
            return value
        text = str(value).strip().lower()
        if text in ("true", "yes", "on", "1"):
            return True
        if text in ("false", "no", "off", "0"):
            return False
        raise ValueError("is neither true nor false")

    def _choice(self, value):
        # YAML reads a bare `on` or `off` as a boolean.
        value = {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value
        text = {"true": "on", "false": "off"}.get(str(value).lower(), str(value))
        if text not in self.choices:
            raise ValueError("is unknown; set one of " + ", ".join(self.choices))
        return text

    def _int(self, value):
        if isinstance(value, bool) or isinstance(value, float) and not value.is_integer():
            raise ValueError("is not a whole number")
        try:
            return self._bounds(int(value) if not isinstance(value, str) else int(value.strip(), 10))
        except (TypeError, OverflowError):
            raise ValueError("is not a whole number") from None
        except ValueError as error:
            raise ValueError(str(error) if "must be" in str(error) else "is not a whole number") from None

    def _float(self, value):
        if isinstance(value, bool):
            raise ValueError("is not a number")
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError("is not a number; set a number" + self._range()) from None
        if not math.isfinite(number):
            raise ValueError("is not a finite number; set a number" + self._range())
        number = self._bounds(number)
        return int(number) if number.is_integer() else number

    def _list(self, value):
        if isinstance(value, str):
            return [item.strip() for item in value.split(",") if item.strip()]
        if not isinstance(value, (list, tuple)):
            raise ValueError("is not a list")
        return list(value)

    def _dict(self, value):
        if value == "":
            return {}
        if not isinstance(value, dict):
            raise ValueError("is not a dictionary")
        return dict(value)

    def _bounds(self, number):
        if self.low is not None and number < self.low or self.high is not None and number > self.high:
            raise ValueError("must be a number" + self._range())
        return number

    def _range(self):
        if self.high is not None:
            return f" from {self.low} to {self.high}"
        return f" of at least {self.low}" if self.low is not None else ""


def _ports(role, what):
    return Option(f"{role}_ports", "list", [], f"HTTP port of each {what} worker, in order. Default: engine_port_base and steps of engine_port_step.")


def _port(name, default, text):
    return Option(name, "int", default, text, low=1, high=65535)


OPTIONS = {o.name: o for o in (
    Option("infera_deployment_id", "str", "", "Name of the deployment; part of every container's name. Default: the shape.", pattern=ID_PATTERN),
    Option("infera_shape", "str", "custom", "Name of the shape; results of different names never mix.", pattern=SHAPE_PATTERN),
    Option("infera_flavour", "str", "rocm", "Engine image: rocm for MI355X, cpu for machines without a GPU.", choices=("rocm", "cpu")),
    Option("infera_site_file", "str", "inventories/site/hosts.yml", "The file that error messages about addresses name."),
    Option("infera_state_dir", "str", "/var/lib/infera", "Folder on the hosts under which a deployment keeps its state.", pattern=r"/.+"),
    Option("infera_runs_dir", "str", "runs", "Folder on the controller for run records and logs; relative to where ansible-playbook runs."),
    Option("infera_gpus_per_host", "int", 8, "GPUs of one host.", low=1, high=64),
    # The model
    Option("infera_model_path", "str", "", "Folder of the model on every host, mounted read-only at the same path.", pattern=r"/.+"),
    Option("infera_model_make", "dict", {}, "Make a tiny random model instead (keys vocab, context, layers): kept on a volume. For flavour cpu."),
    Option("infera_served_model_name", "str", "", "Name that clients ask for. Default: the last part of the model's path."),
    Option("infera_model_layers", "int", None, "Layers of the model; a pipeline partition must sum to it.", low=1),
    Option("infera_planned_concurrency", "int", None, "Requests that are meant to run at once; an engine that may run fewer is refused.", low=1),
    # The shape
    Option("prefill_workers", "int", 0, "Number of prefill workers.", low=0, high=64),
    Option("prefill_gpus", "int", 4, "GPUs of one prefill worker: tensor parallel size x pipeline stages.", low=1, high=64),
    Option("prefill_gpu_ids", "list", [], "GPUs of each prefill worker, one list per worker. Default: the next free ones of its host."),
    _ports("prefill", "prefill"),
    Option("decode_workers", "int", 0, "Number of decode workers.", low=0, high=64),
    Option("decode_gpus", "int", 8, "GPUs of one decode worker: tp = attention data-parallel ranks.", low=1, high=64),
    Option("decode_gpu_ids", "list", [], "GPUs of each decode worker, one list per worker. Default: the next free ones of its host."),
    _ports("decode", "decode"),
    Option("mixed_workers", "int", 0, "Number of aggregated workers.", low=0, high=64),
    Option("mixed_gpus", "int", 4, "GPUs of one aggregated worker: tp = attention data-parallel ranks.", low=1, high=64),
    Option("mixed_gpu_ids", "list", [], "GPUs of each aggregated worker, one list per worker. Default: the next free ones of its host."),
    _ports("mixed", "aggregated"),
    # Ports
    _port("router_port", 8000, "Port of the router."),
    _port("etcd_client_port", 2379, "etcd's client port."),
    _port("etcd_peer_port", 2380, "etcd's peer port."),
    _port("engine_port_base", 31000, "HTTP port of the first engine on a host."),
    Option("engine_port_step", "int", 400, "Distance between the HTTP ports of two engines on one host.", low=300),
    Option("engine_bootstrap_offset", "int", 300, "Bootstrap port minus HTTP port.", low=1),
    Option("engine_kv_events_offset", "int", 310, "First KV event port minus HTTP port; ranks are contiguous.", low=1),
    Option("engine_kv_replay_offset", "int", 340, "First KV replay port minus HTTP port; ranks are contiguous.", low=1),
    # Router
    Option("decode_input_demand", "choice", "off", "Decode input demand.", choices=("off", "shadow", "on")),
    Option("decode_request_weight", "float", 0, "DECODE_REQUEST_WEIGHT: tokens that one held request counts for.", low=0),
    Option("router_policy", "str", "round-robin", "Routing policy.", choices=("round-robin", "kv-aware")),
    Option("router_session_affinity", "choice", "off", "Session affinity.", choices=("off", "prefill", "both")),
    Option("router_kv_prefill_overlap_weight", "float", 20, "Overlap weight of prefill picks under kv-aware.", low=0),
    Option("router_kv_decode_overlap_weight", "float", 2, "Overlap weight of decode picks under kv-aware.", low=0),
    Option("router_tokenizer_path", "str", "", "Tokenizer that the router counts tokens with. Default: the model's path; none turns it off."),
    Option("router_drain_timeout", "int", 600, "Seconds that a stopping router lets open requests finish.", low=0, high=86400),
    Option("router_extra_args", "list", [], "Further arguments of infera-router."),
    Option("router_nofile", "int", 0, "Limit of open files of the router's container; 0 keeps Docker's default.", low=0),
    # etcd
    Option("etcd_prefix", "str", "/infera/workers/", "Key prefix of the worker records.", pattern=r"/.*/"),
    Option("etcd_tls_ca_file", "str", "", "CA certificate on the hosts; setting the three TLS files turns TLS on."),
    Option("etcd_tls_cert_file", "str", "", "Certificate on the hosts, for server, peer and client use."),
    Option("etcd_tls_key_file", "str", "", "Key on the hosts, mode 0600."),
    Option("etcd_user", "str", "", "etcd user of router and engines."),
    Option("etcd_password", "str", "", "Password of etcd_user, from a vault; written to 0600 files only."),
    # Engines
    Option("engine_drain_timeout", "int", 600, "Seconds that a stopping engine lets held requests finish.", low=0, high=86400),
    Option("engine_ready_timeout", "int", 1800, "Seconds that an engine may take to start.", low=1, high=86400),
    Option("engine_lease_ttl", "int", 30, "Seconds after which a silent worker leaves the fleet.", low=5, high=600),
    Option("engine_devices", "list", None, "Devices of an engine. Default for rocm: /dev/kfd, /dev/dri, /dev/infiniband."),
    Option("engine_groups", "list", None, "Supplementary groups of an engine. Default for rocm: video, render."),
    Option("engine_capabilities", "list", None, "Capabilities of an engine. Default for rocm: IPC_LOCK, SYS_PTRACE."),
    Option("engine_security_opts", "list", None, "Security options of an engine. Default for rocm: seccomp=unconfined."),
    Option("engine_ulimits", "dict", None, "Limits of an engine. Default for rocm: memlock -1, stack 67108864, nofile 1048576."),
    Option("engine_ipc_mode", "str", None, "IPC mode of an engine. Default for rocm: host."),
    Option("engine_shm_size", "str", None, "Shared memory of an engine. Default: 128G for rocm, 1G for cpu."),
    Option("engine_libionic_file", "str", "", "The host's libionic, mounted for the image to take over; a missing file is an error.", pattern=r"/.+"),
    Option("engine_published", "bool", None, "Start from the published values of the role. Default: true for rocm, false for cpu."),
    Option("engine_kv_events", "bool", True, "Prefill and aggregated engines publish KV events (a decode under speculation keeps no radix cache)."),
    Option("engine_rails", "list", [], "RDMA devices of a host in rail order, as planned; the rails that preflight finds replace it."),
    Option("mooncake_allow_names", "list", [], "MC_* variables that are let through although Mooncake is not known to read them."),
    Option("container_log_max_size", "str", "100m", "Size at which a container's log file is rotated."),
    Option("container_log_max_file", "int", 5, "Log files kept per container.", low=1),
)}


def read(variables, faults):
    """Return every option, typed, from *variables*; unknown keys are left out. Faults are collected, never raised."""
    values = {}
    for name, option in OPTIONS.items():
        values[name] = option.convert(variables.get(name), faults, given=name in variables)
    return values
