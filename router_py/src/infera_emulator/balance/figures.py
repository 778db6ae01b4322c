"""What a balance run prints: the figures of one run, and their table."""
from __future__ import annotations

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


HEADER = ("weight", "seed", "tok/s", "out tok/s", "intvty p50", "intvty p90", "busiest req p50", "p90", "busiest tok p50", "p90", "requests", "picks changed",
          "retracted")


def row(f: Figures) -> tuple[str, ...]:
    return (f"{f.weight:,.0f}", str(f.seed), f"{f.tok_s:,.0f}", f"{f.out_tok_s:,.0f}", f"{f.intvty_p50:.1f}", f"{f.intvty_p90:.1f}",
            f"{f.busiest_p50:g}", f"{f.busiest_p90:g}", f"{f.tokens_p50:,.0f}", f"{f.tokens_p90:,.0f}", str(f.requests), str(f.changed), str(f.retracted))


def table(figures: Sequence[Figures]) -> str:
    rows = [HEADER, *(row(f) for f in figures)]
    widths = [max(len(r[i]) for r in rows) for i in range(len(HEADER))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(r, widths, strict=True)) for r in rows)
