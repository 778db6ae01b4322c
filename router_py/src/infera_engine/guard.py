"""May this decode keep a radix cache? Asked of the installed SGLang, in the probe's process; nothing is assumed.

Only a yes from SGLang itself appends ``--disaggregation-decode-enable-radix-cache``; any doubt leaves the arguments as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

FLAG = "--disaggregation-decode-enable-radix-cache"


def wanted(values: Mapping[str, Any], known: Mapping[str, str], events_on: bool) -> str | None:
    """None when the question is worth asking, else why it is not."""
    if values.get("disaggregation_mode") != "decode":
        return "not a decode"
    if not events_on:
        return "KV events are off"
    if values.get("disaggregation_decode_enable_radix_cache"):
        return "given already"
    if FLAG not in known:
        return f"this SGLang has no {FLAG}"
    if values.get("speculative_algorithm"):
        return f"speculation ({values['speculative_algorithm']}) is on"
    if values.get("disable_radix_cache"):
        return "--disable-radix-cache is given"
    return None


def allows(argv: Sequence[str], prepare: Callable[[list[str]], Any], model_config_of: Callable[[Any], Any] | None) -> tuple[bool, str]:
    """Let SGLang resolve *argv* with the flag; ``(yes, why)``.

    *prepare* is SGLang's own ``prepare_server_args``; 0.5.22 only parses there and checks in ``resolve_once``, which the server calls at its
    start. The resolved arguments are a copy of this process, so the child's are untouched.
    """
    if model_config_of is None:
        return False, "no way to read the model's configuration was found in this SGLang"
    try:
        args = prepare([*argv, FLAG])
        if hasattr(args, "resolve_once"):
            args.resolve_once()
        model = model_config_of(args)
    except (Exception, SystemExit) as error:
        return False, f"SGLang refuses it: {_line(error)}"
    if model is None:
        return False, "the model's configuration could not be read"
    if getattr(model, "is_deepseek_v4_arch", False) or getattr(model, "is_hybrid_swa_compress", False):
        return False, "SGLang cannot keep a decode radix cache for this model's compressed KV"
    if getattr(model, "is_hybrid_swa", False) and getattr(args, "enable_hierarchical_cache", False):
        return False, "a sliding-window model with a hierarchical cache cannot have it"
    return True, "SGLang accepts it"


def find_model_config_of(server_args_class: type) -> Callable[[Any], Any] | None:
    """The method of older SGLangs, or the function that took its place (0.5.22), or None."""
    if hasattr(server_args_class, "get_model_config"):
        return lambda args: args.get_model_config()
    for module in ("sglang.srt.arg_groups.overrides", "sglang.srt.arg_groups.model_override_base"):
        try:
            found = getattr(__import__(module, fromlist=["model_config_of"]), "model_config_of", None)
        except Exception:
            continue
        if found is not None:
            return found
    return None


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
