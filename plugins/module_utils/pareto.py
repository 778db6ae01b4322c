# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pareto frontiers over (interactivity p90, tok/s/GPU), and comparisons between lines inside their common range."""
from __future__ import annotations

import csv
import dataclasses
from typing import Any, Iterable

COLUMNS = ("series", "shape", "gpus", "decode_request_weight", "conc", "tok_s_gpu", "intvty_p90", "intvty_last_p90", "e2e_norm_p90", "ttft_p50", "ttft_p90",
           "cache_theoretical", "cache_usage", "errors", "result_class", "valid", "comparable", "image_id", "hardware", "date", "source", "provenance",
           "run_id")


class PointsError(ValueError):
    """A row of the reference file or a result cannot be used; the text names the row and the column."""


@dataclasses.dataclass(frozen=True)
class Point:
    """x: interactivity p90, tokens per second and user; y: tokens per second and GPU over all GPUs of the deployment."""

    series: str
    x: float
    y: float
    row: dict[str, Any] = dataclasses.field(hash=False, compare=False, default_factory=dict)


def read_reference(path: str) -> list[dict[str, Any]]:
    """Rows of a reference CSV; every row needs series, tok_s_gpu, intvty_p90, date, source and provenance."""
    with open(path, encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    for number, row in enumerate(rows, 2):
        for column in ("series", "date", "source", "provenance"):
            if not row.get(column):
                raise PointsError(f"{path}:{number}: {column} is empty; a published row needs its date, source and provenance")
        for column in ("tok_s_gpu", "intvty_p90"):
            try:
                row[column] = float(row[column])
            except (TypeError, ValueError):
                raise PointsError(f"{path}:{number}: {column} is {row.get(column)!r}, not a number") from None
        row["result_class"] = "published"
    return rows


def points(rows: Iterable[dict[str, Any]]) -> list[Point]:
    return [Point(r["series"], float(r["intvty_p90"]), float(r["tok_s_gpu"]), r) for r in rows if r.get("intvty_p90") and r.get("tok_s_gpu")]


def frontier(line: Iterable[Point]) -> list[Point]:
    """Points that no other point of the line beats on both axes, by rising x."""
    best: list[Point] = []
    top = float("-inf")
    for candidate in sorted(line, key=lambda p: (-p.x, -p.y)):
        if candidate.y > top:
            best.append(candidate)
            top = candidate.y
    return best[::-1]


def at(line: list[Point], x: float) -> float | None:
    """y of a frontier at x, linear between its points; None outside its range: a line says nothing beyond its ends."""
    for left, right in zip(line, line[1:]):
        if left.x <= x <= right.x:
            share = 0.0 if right.x == left.x else (x - left.x) / (right.x - left.x)
            return left.y + share * (right.y - left.y)
    return line[0].y if len(line) == 1 and line[0].x == x else None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """ours / theirs inside the common range [low, high]: the smallest and largest ratio at the points of either line."""

    ours: str
    theirs: str
    low: float | None
    high: float | None
    worst: float | None
    best: float | None


def compare(ours: list[Point], theirs: list[Point], names: tuple[str, str]) -> Comparison:
    """Ratios at every x of either frontier that lies in both ranges; all None when the ranges do not meet."""
    ratios = []
    for x in sorted({p.x for p in ours} | {p.x for p in theirs}):
        a, b = at(ours, x), at(theirs, x)
        if a is not None and b:
            ratios.append((x, a / b))
    if not ratios:
        return Comparison(*names, None, None, None, None)
    values = [ratio for _x, ratio in ratios]
    return Comparison(*names, ratios[0][0], ratios[-1][0], min(values), max(values))


def series(all_points: Iterable[Point]) -> dict[str, list[Point]]:
    out: dict[str, list[Point]] = {}
    for one in all_points:
        out.setdefault(one.series, []).append(one)
    return out


def write_csv(path: str, rows: Iterable[dict[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", restval="")
        writer.writeheader()
        writer.writerows(rows)
