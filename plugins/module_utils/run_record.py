# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""run.json, schema 1: what was deployed. Everything that acts on a running deployment reads this and not group_vars.

``SCHEMA`` is the JSON Schema. Readers ignore fields that they do not know; ``validate`` checks the part of JSON Schema that SCHEMA uses,
so hosts need no library for it. A value derived from the record (a URL) is computed after it was read.
"""
from __future__ import annotations

import json
import os
import re
import tempfile

__all__ = ["FILE", "SCHEMA", "RecordError", "build", "conflicts", "load", "same", "save", "validate"]

FILE = "run.json"
_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_TIME = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"}

SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "infera.serving run record",
    "type": "object",
    "required": ["schema", "id", "shape", "flavour", "hosts", "containers", "router_url", "weight", "model", "settings", "versions", "times"],
    "properties": {
        "schema": {"const": 1},
        "id": {"type": "string", "pattern": "^[a-z0-9][a-z0-9-]*$"},
        "shape": _TEXT,
        "flavour": {"enum": ["rocm", "cpu"]},
        "gpus": {"type": "integer", "minimum": 0},
        "router_url": {"type": "string", "pattern": "^https?://"},
        "weight": {"type": "number", "minimum": 0},
        "model": {"type": "object", "required": ["name", "path"], "properties": {"name": _TEXT, "path": _TEXT, "made": {"type": "object"}}},
        "settings": {"type": "object"},
        "state_dir": _TEXT,
        "hosts": {"type": "array", "items": {
            "type": "object", "required": ["name", "address", "roles"],
            "properties": {"name": _TEXT, "address": _TEXT, "roles": _TEXTS, "gpus": {"type": "array", "items": {"type": "integer", "minimum": 0}}}}},
        "containers": {"type": "array", "items": {
            "type": "object",
            "required": ["name", "role", "instance", "host", "id", "image", "image_digest", "argv", "env", "ports", "config_digest"],
            "properties": {
                "name": _TEXT, "role": {"enum": ["etcd", "prefill", "decode", "mixed", "router"]}, "instance": {"type": "integer", "minimum": 0},
                "host": _TEXT, "id": {"type": "string", "pattern": "^[0-9a-f]*$"}, "image": _TEXT, "image_digest": _TEXT, "argv": _TEXTS,
                "env": {"type": "object", "additionalProperties": _TEXT}, "ports": {"type": "object", "additionalProperties": _PORT},
                "gpus": {"type": "array", "items": {"type": "integer", "minimum": 0}}, "ranks": {"type": "integer", "minimum": 1},
                "config_digest": _TEXT, "stop_timeout": {"type": "integer", "minimum": 0}, "started_at": _TEXT}}},
        "volumes": {"type": "array", "items": {"type": "object", "required": ["name", "host"], "properties": {"name": _TEXT, "host": _TEXT}}},
        "versions": {"type": "object", "additionalProperties": _TEXT},
        "times": {"type": "object", "required": ["created", "updated"], "properties": {"created": _TIME, "updated": _TIME}},
    },
}
_TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float)}


class RecordError(ValueError):
    """The record is absent, unreadable, or not what its schema says; the text names the file and the reason."""


def validate(value, schema=None, path="run.json"):
    """Return a list of faults, empty when *value* fits. Knows type, const, enum, pattern, minimum, maximum, required, properties,
    additionalProperties (as a schema) and items."""
    schema = SCHEMA if schema is None else schema
    if "const" in schema and value != schema["const"]:
        return [f"{path}: {value!r} is not {schema['const']!r}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{path}: {value!r} is none of {schema['enum']}"]
    kind = schema.get("type")
    if kind and (not isinstance(value, _TYPES[kind]) or isinstance(value, bool)):
        return [f"{path}: {value!r} is not of type {kind}"]
    faults = []
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        faults.append(f"{path}: {value!r} does not fit {schema['pattern']}")
    if isinstance(value, (int, float)):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            faults.append(f"{path}: {value!r} is out of range")
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            faults += validate(item, schema["items"], f"{path}[{number}]")
    if isinstance(value, dict):
        faults += [f"{path}: {name} is missing" for name in schema.get("required", []) if name not in value]
        known = schema.get("properties", {})
        for name, item in value.items():
            if name in known:
                faults += validate(item, known[name], f"{path}.{name}")
            elif isinstance(schema.get("additionalProperties"), dict):
                faults += validate(item, schema["additionalProperties"], f"{path}.{name}")
    return faults


def build(plan, facts, versions, now, previous=None):
    """Return the record of *plan* after a run.

    *facts*: {container name: {id, image_digest, started_at}} of the hosts that this run reached. Containers of hosts that it did not
    reach keep their *previous* entry, as they run on as they were; one that never ran is left out.
    *now*: UTC time as YYYY-MM-DDThh:mm:ssZ. ``times.updated`` moves only when something else did.
    """
    old = {c["name"]: c for c in (previous or {}).get("containers", [])}
    containers = []
    for planned in plan["containers"]:
        if planned.get("oneshot"):
            continue
        name, seen = planned["name"], facts.get(planned["name"])
        if seen is None:
            if name in old:
                containers.append(old[name])
            continue
        containers.append({
            "name": name, "role": planned["role"], "instance": planned["instance"], "host": planned["host"], "id": seen.get("id", ""),
            "image": planned["image"], "image_digest": seen.get("image_digest", ""), "argv": list(planned["command"]), "env": dict(planned["env"]),
            "ports": dict(planned["ports"]), "gpus": list(planned.get("gpus", [])), "ranks": planned.get("ranks", 1),
            "config_digest": planned["labels"]["infera.serving.config_digest"], "stop_timeout": planned["stop_timeout"],
            "started_at": seen.get("started_at", "")})
    router_ran = any(c["role"] == "router" and c["name"] in facts for c in plan["containers"])
    weight = plan["weight"] if router_ran or not previous else previous["weight"]
    record = {
        "schema": 1, "id": plan["deployment"], "shape": plan["shape"], "flavour": plan["flavour"], "gpus": plan["gpus"],
        "router_url": plan["router_url"], "weight": weight, "model": plan["model"], "settings": plan["settings"], "state_dir": plan["state_dir"],
        "hosts": plan["hosts"], "containers": containers, "volumes": [{"name": v["name"], "host": v["host"]} for v in plan["volumes"]],
        "versions": dict(versions), "times": {"created": (previous or {}).get("times", {}).get("created", now), "updated": now},
    }
    if previous and same(previous, record):
        record["times"] = previous["times"]
    return record


def same(one, other):
    """True when two records differ in nothing but the time of the last change."""
    plain = [json.dumps(dict(r, times=None), sort_keys=True) for r in (one, other)]
    return plain[0] == plain[1]


def conflicts(record, given):
    """Return one line for each value of *given* (command-line variables) that contradicts the record."""
    settings = record.get("settings", {})
    known = dict(settings)
    known.update({"infera_deployment_id": record["id"], "infera_shape": record["shape"], "infera_flavour": record["flavour"],
                  "router_url": record["router_url"], "decode_request_weight": record["weight"], "DECODE_REQUEST_WEIGHT": record["weight"],
                  "router_decode_request_weight": record["weight"], "infera_served_model_name": record["model"]["name"]})
    if not record["model"].get("made"):
        known["infera_model_path"] = record["model"]["path"]
    lines = []
    for name, value in given.items():
        if name in known and not _equal(known[name], value):
            lines.append(f"{name}: {value!r} on the command line, but the running deployment has {known[name]!r}; leave it out, or deploy first")
    return lines


def _equal(recorded, given):
    if isinstance(recorded, (int, float)) and not isinstance(recorded, bool):
        try:
            return float(given) == float(recorded)
        except (TypeError, ValueError):
            return False
    return str(given) == str(recorded)


def load(path):
    """Return the record at *path*, or None where there is none; raises RecordError when it is damaged."""
    try:
        with open(path, encoding="utf-8") as handle:
            record = json.load(handle)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from None
    faults = validate(record)
    if faults:
        raise RecordError(f"{path}: not a run record of schema 1: " + "; ".join(faults[:3]))
    return record


def save(path, record):
    """Write *record* to *path*, mode 0600, all or nothing; the folder is made with mode 0700. Raises RecordError for a wrong record."""
    faults = validate(record)
    if faults:
        raise RecordError(f"{path}: would not be a run record of schema 1: " + "; ".join(faults[:3]))
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".run.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(record, out, indent=1, sort_keys=True)
            out.write("\n")
            out.flush()
            os.fsync(out.fileno())
        os.chmod(temporary, 0o600)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
