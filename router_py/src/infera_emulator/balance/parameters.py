"""The parameters of a balance run, read from a file that stands before the run."""
from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class ParameterError(ValueError):
    """A parameter file that cannot be used; one line that names the field."""


@dataclass(frozen=True, slots=True)
class Case:
    """One deployment and load. kv_capacity_tokens is per rank, None for no limit."""

    name: str
    ranks: int
    prefills: int
    lanes: int
    kv_capacity_tokens: int | None
    weights: tuple[float, ...]
    published: dict[float, dict[str, float]] = field(default_factory=dict)      # weight → figures of the real deployment


@dataclass(frozen=True, slots=True)
class Parameters:
    """Times in seconds, sizes in tokens. Every distribution is log-normal, given by its median and the sigma of its logarithm."""

    step_base_s: float
    step_per_request_s: float
    tokens_per_step: float
    prefill_base_s: float
    prefill_tokens_per_s: float
    new_tokens: tuple[float, float]
    think: tuple[float, float]
    think_long_share: float
    think_long: tuple[float, float]
    subagent_share: float
    subagent: tuple[float, float]
    main: tuple[float, float]
    context_cap: int
    output: tuple[float, float]
    output_range: tuple[int, int]
    warmup_s: float
    duration_s: float
    seeds: tuple[int, ...]
    cases: dict[str, Case]

    def case(self, name: str) -> Case:
        try:
            return self.cases[name]
        except KeyError:
            raise ParameterError(f"no case {name!r}; there are {', '.join(self.cases)}") from None


def load(path: str | Path) -> Parameters:
    """Read a parameter file. Raises ParameterError."""
    try:
        data = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ParameterError(f"{path}: {error}") from None

    def number(*names: str, low: float = 0.0) -> float:
        value: Any = data
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < low:
            raise ParameterError(f"{path}: {'.'.join(names)} has to be a number of at least {low:g}, not {value!r}")
        return value

    def pair(section: str, median: str, sigma: str, *inside: str) -> tuple[float, float]:
        return number(section, *inside, median, low=1e-9), number(section, *inside, sigma)

    cases = {}
    for name, case in (data.get("cases") or {}).items():
        capacity = case.get("kv_capacity_tokens")
        if capacity is not None and capacity < data["context"]["cap"] + data["output"]["max"]:
            raise ParameterError(f"{path}: cases.{name}.kv_capacity_tokens {capacity} cannot hold the largest request "
                                 f"({data['context']['cap']} + {data['output']['max']} tokens)")
        ranks, prefills, lanes = (int(number("cases", name, field, low=1)) for field in ("ranks", "prefills", "lanes"))
        published = {float(weight): figures for weight, figures in (case.get("published") or {}).items()}
        cases[name] = Case(name, ranks, prefills, lanes, capacity, tuple(case["weights"]), published)
    return Parameters(
        step_base_s=number("step", "base_s", low=1e-9), step_per_request_s=number("step", "per_request_s"),
        tokens_per_step=number("step", "tokens_per_step", low=1), prefill_base_s=number("prefill", "base_s"),
        prefill_tokens_per_s=number("prefill", "tokens_per_s", low=1e-9), new_tokens=pair("prefill", "median", "sigma", "new_tokens"),
        think=pair("think", "median_s", "sigma"), think_long_share=number("think", "long_share"), think_long=pair("think", "long_median_s", "long_sigma"),
        subagent_share=number("context", "subagent_share"), subagent=pair("context", "subagent_median", "subagent_sigma"),
        main=pair("context", "main_median", "main_sigma"), context_cap=int(number("context", "cap", low=1)), output=pair("output", "median", "sigma"),
        output_range=(int(number("output", "min", low=2)), int(number("output", "max", low=2))), warmup_s=number("warmup_s"),
        duration_s=number("duration_s", low=1e-9), seeds=tuple(data.get("seeds", (1,))), cases=cases)
