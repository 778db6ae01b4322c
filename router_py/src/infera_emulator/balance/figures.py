"""What a balance run prints: the figures of one run, and their table."""
from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Sequence


def percentile(values: Sequence[float], share: float, weights: Sequence[float] | None = None) -> float:
    """Linear between the closest ranks, as AgentX's aggregator does; with weights the smallest value that covers the share."""
    if not values:
        return float("nan")
    if weights is not None:
        total, seen = sum(weights), 0.0
        ordered = sorted(zip(values, weights, strict=True))
        for value, weight in ordered:
            seen += weight
            if seen >= share * total - 1e-9:
                return value
        return ordered[-1][0]
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


@dataclass(slots=True)
class Record:
    """What was seen inside the measured time. ITL of a request: (end − first token) / (output − 1), as for full-response interactivity."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    itl: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    busiest: list[float] = field(default_factory=list)
    busiest_tokens: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)        # how many steps each pair of the two above stands for

    def request(self, context: int, output: int, sent: float, first: float, end: float) -> None:
        self.prompt_tokens += context
        self.output_tokens += output
        self.ttft.append(first - sent)
        if output > 1:
            self.itl.append((end - first) / (output - 1))

    def step(self, busiest: float, tokens: float, count: int = 1) -> None:
        self.busiest.append(busiest)
        self.busiest_tokens.append(tokens)
        self.steps.append(count)


@dataclass(frozen=True, slots=True)
class Figures:
    """tok_s: (prompt + output tokens of completed requests) per second, AgentX's definition; out_tok_s: output tokens alone.

    intvty_pN: 1 / pN of ITL, tokens per second of a user; p90 is the slow tail. busiest_*: over decode steps.
    """

    weight: float
    seed: int
    requests: int
    tok_s: float
    out_tok_s: float
    intvty_p50: float
    intvty_p90: float
    ttft_p50: float
    busiest_p50: float
    busiest_p90: float
    busiest_mean: float
    tokens_p50: float
    tokens_p90: float
    changed: int                # demand decisions that differ from the ordinary policy's
    retracted: int


def summarise(record: Record, weight: float, seed: int, seconds: float, changed: int, retracted: int) -> Figures:
    steps = record.steps

    def over(values: Sequence[float], share: float) -> float:
        return percentile(values, share, steps)

    return Figures(
        weight=weight, seed=seed, requests=len(record.ttft), tok_s=(record.prompt_tokens + record.output_tokens) / seconds,
        out_tok_s=record.output_tokens / seconds, intvty_p50=1 / percentile(record.itl, 0.5), intvty_p90=1 / percentile(record.itl, 0.9),
        ttft_p50=percentile(record.ttft, 0.5), busiest_p50=over(record.busiest, 0.5), busiest_p90=over(record.busiest, 0.9),
        busiest_mean=sum(b * s for b, s in zip(record.busiest, steps, strict=True)) / (sum(steps) or 1), tokens_p50=over(record.busiest_tokens, 0.5),
        tokens_p90=over(record.busiest_tokens, 0.9), changed=changed, retracted=retracted)


COMPARED = ("weight", "busiest req p90", "change", "intvty p90", "change", "tok/s", "change", "seeds better in all")
_MEASURES = (("busiest_p90", "g"), ("intvty_p90", ".1f"), ("tok_s", ",.0f"))


def compared(figures: Sequence[Figures], published: dict[float, dict[str, float]]) -> list[tuple[str, ...]]:
    """Medians over the seeds at each weight and their change against the first one, seed by seed; then the published figures, if any.

    The published tok/s are per GPU.
    """
    weights = list(dict.fromkeys(f.weight for f in figures))
    by = {(f.weight, f.seed): f for f in figures}
    seeds = list(dict.fromkeys(f.seed for f in figures))
    rows = []
    for weight in weights:
        cells = [f"{weight:,.0f}"]
        better = set(seeds)
        for name, form in _MEASURES:
            cells.append(format(statistics.median(getattr(by[weight, s], name) for s in seeds), form))
            changes = {s: getattr(by[weight, s], name) / getattr(by[weights[0], s], name) - 1 for s in seeds}
            better -= {s for s, change in changes.items() if (change > 0 if name == "busiest_p90" else change < 0)}
            cells.append(f"{statistics.median(changes.values()):+.0%}" if weight != weights[0] else "")
        rows.append((*cells, f"{len(better)} of {len(seeds)}" if weight != weights[0] else ""))
    base: dict[str, float] | None = None
    for weight, line in published.items():
        cells = [f"published {weight:,.0f}"]
        for name, form in (("busiest_p90", "g"), ("intvty_p90", ".1f"), ("tok_s_gpu", ",.0f")):
            value = line.get(name)
            cells.append("" if value is None else format(value, form) + ("/GPU" if name == "tok_s_gpu" else ""))
            cells.append(f"{value / base[name] - 1:+.0%}" if base is not None and value is not None and base.get(name) else "")
        base = base or line
        rows.append((*cells, ""))
    return rows


HEADER = ("weight", "seed", "tok/s", "out tok/s", "intvty p50", "intvty p90", "busiest req p50", "p90", "busiest tok p50", "p90", "requests", "picks changed",
          "retracted")


def row(f: Figures) -> tuple[str, ...]:
    return (f"{f.weight:,.0f}", str(f.seed), f"{f.tok_s:,.0f}", f"{f.out_tok_s:,.0f}", f"{f.intvty_p50:.1f}", f"{f.intvty_p90:.1f}",
            f"{f.busiest_p50:g}", f"{f.busiest_p90:g}", f"{f.tokens_p50:,.0f}", f"{f.tokens_p90:,.0f}", str(f.requests), str(f.changed), str(f.retracted))


def table(figures: Sequence[Figures]) -> str:
    return aligned([HEADER, *(row(f) for f in figures)])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(r, widths, strict=True)) for r in rows)
