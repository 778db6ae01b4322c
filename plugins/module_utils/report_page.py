# Copyright (c) 2026, The infera.serving maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The Pareto report: plot (SVG, PNG), a page that stands alone, and a Markdown table. Deterministic for the same rows."""
from __future__ import annotations

import html
import io
from typing import Any

from . import pareto

UNOFFICIAL = "Unofficial: a reproduction with a patched image, not an InferenceX submission."
MARKS = "os^Dv*PX"


def label(row: dict[str, Any]) -> str:
    return f"C{row['conc']}" if row.get("conc") not in (None, "") else ""


def status(row: dict[str, Any]) -> str:
    """published, valid, or why a row of ours does not count."""
    if row.get("result_class") == "published":
        return "published, not ours"
    if row.get("valid") is True:
        return "valid" if row.get("comparable", True) else "valid, not comparable"
    return f"{row.get('result_class') or 'measured'}, not valid"


def plot(rows: list[dict[str, Any]], title: str) -> dict[str, bytes]:
    """{'svg': ..., 'png': ...}. Frontier of each series as a line; points that do not count are hollow. Needs matplotlib."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    matplotlib.rcParams.update({"svg.hashsalt": "infera", "font.size": 10})
    figure, axes = pyplot.subplots(figsize=(10, 6.2), layout="constrained")
    for number, (name, line) in enumerate(pareto.series(pareto.points(rows)).items()):
        colour, mark = f"C{number % 10}", MARKS[number % len(MARKS)]
        best = pareto.frontier(line)
        axes.plot([p.x for p in best], [p.y for p in best], color=colour, linewidth=1.2)
        for one in line:
            counts = one.row.get("result_class") == "published" or one.row.get("valid") is True
            axes.plot([one.x], [one.y], mark, color=colour, markerfacecolor=colour if counts else "none", markersize=6)
            axes.annotate(label(one.row), (one.x, one.y), textcoords="offset points", xytext=(5, 4), fontsize=8)
        axes.plot([], [], mark + "-", color=colour, label=name)
    axes.set_xlabel("interactivity p90, tokens/s per user (1 / p90 of full-response inter-token latency)")
    axes.set_ylabel("tokens/s per GPU, all GPUs of the deployment")
    axes.set_title(f"{title}\n{UNOFFICIAL} Hollow: does not count.", fontsize=9)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if rows:
        axes.legend(fontsize=8)
    out = {}
    for kind, extra in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 130, "metadata": {"Software": None}})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, **extra)
        out[kind] = buffer.getvalue()
    pyplot.close(figure)
    return out


def number(value: Any, digits: int = 1) -> str:
    if value in (None, ""):
        return "–"
    try:
        return f"{float(value):,.{digits}f}"
    except (TypeError, ValueError):
        return str(value)


TABLE = (("series", "series"), ("status", "counts"), ("shape", "shape"), ("gpus", "GPUs"), ("decode_request_weight", "decode request weight"), ("conc", "C"),
         ("tok_s_gpu", "tok/s/GPU"), ("intvty_p90", "p90 full response"), ("e2e_norm_p90", "p90 e2e-norm"), ("ttft_p50", "TTFT p50 ms"),
         ("ttft_p90", "TTFT p90 ms"), ("cache_theoretical", "cache possible"), ("cache_usage", "cache used"), ("errors", "errors"),
         ("image_id", "image"), ("date", "date"))
DIGITS = {"tok_s_gpu": 0, "intvty_p90": 1, "e2e_norm_p90": 1, "ttft_p50": 0, "ttft_p90": 0, "cache_theoretical": 3, "cache_usage": 3,
          "decode_request_weight": 0, "gpus": 0, "errors": 0}


def cells(row: dict[str, Any]) -> list[str]:
    out = []
    for key, _title in TABLE:
        if key == "status":
            out.append(status(row))
        elif key in DIGITS:
            out.append(number(row.get(key), DIGITS[key]))
        else:
            text = row.get(key)
            out.append("–" if text in (None, "") else str(text).removeprefix("sha256:")[:40])
    return out


def markdown(rows: list[dict[str, Any]]) -> str:
    head = "| " + " | ".join(title for _key, title in TABLE) + " |"
    lines = [head, "|" + " --- |" * len(TABLE)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n\n" + UNOFFICIAL + "\n"


def comparisons(rows: list[dict[str, Any]]) -> list[pareto.Comparison]:
    """Each series of ours that counts against each published one."""
    ours = pareto.series(p for p in pareto.points(rows) if p.row.get("valid") is True and p.row.get("comparable", True))
    published = pareto.series(p for p in pareto.points(rows) if p.row.get("result_class") == "published")
    return [pareto.compare(pareto.frontier(a), pareto.frontier(b), (mine, theirs))
            for mine, a in sorted(ours.items()) for theirs, b in sorted(published.items())]


def page(rows: list[dict[str, Any]], title: str, svg: bytes) -> str:
    """One HTML file without any reference to another."""
    head = "".join(f"<th>{html.escape(t)}</th>" for _k, t in TABLE)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in cells(row)) + "</tr>" for row in rows)
    drawing = svg.decode()
    drawing = drawing[drawing.index("<svg"):]
    reasons = "".join(f"<li><b>{html.escape(str(row.get('run_id') or label(row)))}</b>: {html.escape('; '.join(row['reasons']))}</li>"
                      for row in rows if row.get("reasons"))
    flags = "".join(f"<li><b>{html.escape(str(row.get('run_id') or label(row)))}</b>: {html.escape('; '.join(row['warnings']))}</li>"
                    for row in rows if row.get("warnings"))
    ratios = "".join(
        f"<tr><td>{html.escape(c.ours)}</td><td>{html.escape(c.theirs)}</td><td>{c.low:.0f} to {c.high:.0f}</td><td>{c.worst:.2f} to {c.best:.2f}</td></tr>"
        if c.worst is not None else f"<tr><td>{html.escape(c.ours)}</td><td>{html.escape(c.theirs)}</td><td colspan=2>the ranges do not meet</td></tr>"
        for c in comparisons(rows))
    sources = "".join(f"<li>{html.escape(s)}</li>" for s in sorted(
        {f"{r['series']}: {r['source']}, {r['date']}; {r['provenance']}" for r in rows if r.get("result_class") == "published"}))
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<style>body{{font:14px/1.45 sans-serif;margin:2em;max-width:1500px}}table{{border-collapse:collapse;margin:1em 0}}
th,td{{border:1px solid #bbb;padding:3px 7px;text-align:left}}td{{white-space:nowrap}}th{{background:#eee}}svg{{max-width:100%;height:auto}}</style></head>
<body><h1>{html.escape(title)}</h1><p><b>{html.escape(UNOFFICIAL)}</b></p>
{drawing}
<h2>Points</h2><div style="overflow-x:auto"><table><tr>{head}</tr>{body}</table></div>
{'<h2>Why a point does not count</h2><ul>' + reasons + '</ul>' if reasons else ''}
{'<h2>Flags</h2><ul>' + flags + '</ul>' if flags else ''}
{'<h2>Ours over theirs, inside both ranges</h2><table><tr><th>ours</th><th>theirs</th><th>interactivity</th><th>ratio</th></tr>' + ratios + '</table>'
 if ratios else ''}
{'<h2>Where the published rows come from</h2><ul>' + sources + '</ul>' if sources else ''}
</body></html>
"""
