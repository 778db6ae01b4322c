"""Old spellings of SGLang's flags onto those that the installed SGLang knows. Pure: no SGLang is imported here.

An older SGLang that still has the exact old spelling is left alone. Only whole tokens before a ``--`` are touched, never values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

RENAMED = {
    "--cuda-graph-max-bs": "--cuda-graph-max-bs-decode",
    "--cuda-graph-bs": "--cuda-graph-bs-decode",
    "--nsa-prefill-backend": "--dsa-prefill-backend",
    "--nsa-decode-backend": "--dsa-decode-backend",
}
ATTN_DP = "--attn-dp-size"
DP_ATTENTION = "--enable-dp-attention"
DP = "--dp-size"
_DP_NAMES = (DP, "--dp", "--data-parallel-size")


class TranslationError(ValueError):
    """Arguments that contradict each other; one line that names them."""


def translate(argv: Sequence[str], known: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """``(argv, notes)`` for a parser whose exact option strings are the keys of *known*."""
    head, tail = _split(argv)
    notes: list[str] = []
    for old, new in RENAMED.items():
        if old in known or new not in known:
            continue
        places = _places(head, old)
        if not places:
            continue
        if _places(head, new):
            raise TranslationError(f"{old} and {new} are both given, and this SGLang knows only {new}: give one of them")
        for index in places:
            head[index] = new + head[index][len(old):]
        notes.append(f"{old} is {new} in this SGLang")
    head = _translate_dp(head, known, notes)
    return head + tail, notes


def _translate_dp(argv: list[str], known: Mapping[str, str], notes: list[str]) -> list[str]:
    attention, new = DP_ATTENTION in argv, _places(argv, ATTN_DP)
    sizes = [place for name in _DP_NAMES for place in _places(argv, name)]
    if attention and new:
        raise TranslationError(f"{ATTN_DP} and {DP_ATTENTION} are both given: give one of them")
    if attention and ATTN_DP in known and sizes:
        argv = _rename(argv, sizes, ATTN_DP)
        argv = [token for token in argv if token != DP_ATTENTION]
        notes.append(f"{DP} N {DP_ATTENTION} is {ATTN_DP} N in this SGLang")
    elif new and ATTN_DP not in known and DP in known and DP_ATTENTION in known:
        if sizes:
            raise TranslationError(f"{ATTN_DP} and {DP} are both given, and this SGLang has one size for both: give {DP} {DP_ATTENTION}")
        argv = [*_rename(argv, new, DP), DP_ATTENTION]
        notes.append(f"{ATTN_DP} N is {DP} N {DP_ATTENTION} in this SGLang")
    return argv


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    end = argv.index("--") if "--" in argv else len(argv)
    return list(argv[:end]), list(argv[end:])


def _places(argv: Sequence[str], name: str) -> list[int]:
    return [index for index, token in enumerate(argv) if token == name or token.startswith(name + "=")]


def _rename(argv: Sequence[str], places: Sequence[int], name: str) -> list[str]:
    result = list(argv)
    for index in places:
        _, equals, value = result[index].partition("=")
        result[index] = name + equals + value
    return result
