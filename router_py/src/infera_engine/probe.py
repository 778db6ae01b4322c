"""Run by the engine's own Python: asks the installed SGLang about a command line, without starting a server.

stdin: ``{"argv": [...], "own": {...}}`` (see ask.py). stdout: one JSON object, ``{"error": line}`` or
``{"version", "argv", "notes", "values", "kv_events_config", "cacheable"}``. Everything that SGLang prints goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

VALUES = (
    "host port model_path served_model_name disaggregation_mode disaggregation_transfer_backend disaggregation_bootstrap_port "
    "kv_events_config node_rank nnodes dp_size attn_dp_size tp_size pp_size page_size speculative_algorithm disable_radix_cache "
    "disaggregation_decode_enable_radix_cache enable_metrics enable_dp_attention api_key"
).split()


class _Refused(Exception):
    pass


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise _Refused(f"sglang.launch_server arguments: {message}")


def answer(argv: list[str], own: dict[str, Any]) -> dict[str, Any]:
    """Translate, parse and complete *argv*. Raises _Refused, TranslationError or KvPlaneError with one line."""
    import sglang
    from sglang.srt import server_args as module

    from infera_engine import guard, kvplane
    from infera_engine.translate import translate

    parser = _Parser(prog="sglang.launch_server")
    module.ServerArgs.add_cli_args(parser)
    known = {name: action.dest for name, action in parser._option_string_actions.items()}
    argv, notes = translate(argv, known)
    values = vars(parser.parse_args(_with_config_file(parser, argv)))
    values = {name: values.get(name) for name in VALUES}

    extra: list[str] = []
    if not values["enable_metrics"]:
        extra.append("--enable-metrics")
    role = values["disaggregation_mode"] or "null"
    follower = bool(values["node_rank"])
    if not values["kv_events_config"] and not follower and kvplane.wanted(own["kv_events"], role):
        ranks = (values["dp_size"] or 1) * (values["attn_dp_size"] or 1)
        values["kv_events_config"] = kvplane.config(
            values["port"], ranks, values["host"] or "", own["kv_events_port"], own["kv_replay_port"], own["kv_topic"], _knows_bind())
        extra += ["--kv-events-config", values["kv_events_config"]]
    argv = _append(argv, extra)

    cacheable = not any(token == "--config" or token.startswith("--config=") for token in argv)
    reason = guard.wanted(values, known, bool(values["kv_events_config"]))
    if reason is None:
        allowed, why = guard.allows(argv, module.prepare_server_args, guard.find_model_config_of(module.ServerArgs))
        notes.append(f"decode radix cache {'on' if allowed else 'off'}: {why}")
        argv = _append(argv, [guard.FLAG] if allowed else [])
        cacheable = False
    elif role == "decode":
        notes.append(f"decode radix cache not added: {reason}")
    return {"version": getattr(sglang, "__version__", "unknown"), "argv": argv, "notes": notes, "values": values, "cacheable": cacheable}


def _with_config_file(parser: argparse.ArgumentParser, argv: list[str]) -> list[str]:
    if "--config" not in argv:
        return argv
    for module in ("sglang.srt.utils.server_args_config_parser", "sglang.srt.server_args_config_parser"):
        try:
            merger = __import__(module, fromlist=["ConfigArgumentMerger"]).ConfigArgumentMerger(parser)
        except ImportError:
            continue
        return merger.merge_config_with_args(argv)
    raise _Refused("sglang.launch_server arguments: --config is given, but this SGLang has no reader for it")


def _knows_bind() -> bool:
    try:
        from sglang.srt.disaggregation.kv_events import KVEventsConfig
    except Exception:
        return False
    return "bind" in getattr(KVEventsConfig, "model_fields", {})


def _append(argv: list[str], extra: list[str]) -> list[str]:
    end = argv.index("--") if "--" in argv else len(argv)
    return argv[:end] + extra + argv[end:]


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    # Our own files first and by themselves, so that nothing beside them can shadow what SGLang imports.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from infera_engine import guard, kvplane, translate  # noqa: F401
    from infera_engine.kvplane import KvPlaneError
    from infera_engine.translate import TranslationError

    sys.path.append(sys.path.pop(0))
    try:
        result = answer(request["argv"], request["own"])
    except (_Refused, KvPlaneError, TranslationError) as error:
        result = {"error": str(error)}
    except ImportError as error:
        result = {"error": f"{sys.executable} cannot import sglang.srt.server_args: {error}"}
    json.dump(result, out, default=str)
    out.flush()
    os._exit(0)  # SGLang's imports may have left threads behind


if __name__ == "__main__":
    main()
