"""From measurements to numbers, and from numbers to a Markdown table and a plot of ratios.

A ratio above 1 always means that runnel is ahead, whether more is better (steps per second) or less is (seconds).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from statistics import median
from typing import Any

Row = dict[str, Any]


def middle(values: Sequence[float | None], *, more_is_better: bool) -> float | None:
    """The median, in which a missing value (a task not solved within its limit) is worse than any other.

    None if the median itself falls on a missing value, or if there is none.

    >>> middle([1.0, None, 3.0], more_is_better=False), middle([1.0, None], more_is_better=False)
    (3.0, None)
    """
    if not values:
        return None
    worst = -math.inf if more_is_better else math.inf
    found = median([worst if v is None else v for v in values])
    return found if math.isfinite(found) else None


def ratio(ours: float | None, theirs: float | None, *, more_is_better: bool) -> float | None:
    """How many times better ours is. None where either is missing or zero.

    >>> ratio(20.0, 10.0, more_is_better=True), ratio(20.0, 10.0, more_is_better=False)
    (2.0, 0.5)
    """
    if not ours or not theirs:
        return None
    return ours / theirs if more_is_better else theirs / ours


def compare(
    ours: Sequence[float | None], theirs: Sequence[float | None], *, more_is_better: bool, disturbed: bool = False
) -> Row:
    """Ratio of the medians, and the least and greatest ratio of two measurements that stood side by side.

    `disturbed` says that the machine was not idle. Load does not slow both sides alike, so the ratio is then worth little.
    """
    a, b = middle(ours, more_is_better=more_is_better), middle(theirs, more_is_better=more_is_better)
    pairs = [ratio(x, y, more_is_better=more_is_better) for x, y in zip(ours, theirs, strict=False)]
    known = [p for p in pairs if p is not None]
    return {
        "ratio": ratio(a, b, more_is_better=more_is_better),
        "low": min(known, default=None),
        "high": max(known, default=None),
        "pairs": pairs,
        "disturbed": disturbed,
    }


def summarise(values: Sequence[float | None], *, more_is_better: bool) -> Row:
    """Median, least and greatest of one side, and how many of its measurements gave a value."""
    known = [v for v in values if v is not None]
    return {
        "median": middle(values, more_is_better=more_is_better),
        "min": min(known, default=None),
        "max": max(known, default=None),
        "num": len(values),
        "num_known": len(known),
    }


def number(value: float | None) -> str:
    """Three significant digits at least, whole numbers from 100 on.

    >>> number(12345.6), number(12.345), number(0.5), number(None)
    ('12,346', '12.3', '0.50', '-')
    """
    if value is None:
        return "-"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; columns after the first are aligned to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))


def measure_table(measure: Mapping[str, Any]) -> str:
    """The sides of one measure, one row each; runnel's ratio to a peer stands in the peer's row."""
    header = ["", f"median ({measure['unit']})", "min - max", "n", "runnel is ahead by", "by pair", "cores", "others"]
    rows = []
    for name, side in measure["sides"].items():
        if side["problem"]:
            rows.append([name, side["problem"], *["-"] * 6])
            continue
        s, versus = side["summary"], measure["ratios"].get(name)
        count = str(s["num"]) if s["num_known"] == s["num"] else f"{s['num_known']} of {s['num']}"
        ahead = "" if versus is None else _ahead(versus)
        by_pair = "" if versus is None or versus["low"] is None else f"{versus['low']:.2f} - {versus['high']:.2f}"
        span = f"{number(s['min'])} - {number(s['max'])}" if s["num_known"] else "-"
        rows.append(
            [name, number(s["median"]), span, count, ahead, by_pair, *(_mean(side["runs"], k) for k in ("cores", "others"))]
        )
    for record in measure.get("recorded", ()):
        how = "as recorded" if not record["anchor"] else f"recorded, scaled by {record['anchor']}"
        rows.append([f"{record['name']} ({how})", number(record["scaled"]), *["-"] * 2, _ahead(record), *["-"] * 3])
    return table(header, rows)


def goals(measure: Mapping[str, Any]) -> str:
    """What is asked for, and the least ratio that was measured: the fastest peer decides."""
    if measure.get("must") is None:
        return ""
    ratios = [r for r in (*measure["ratios"].values(), *measure["recorded"]) if r["ratio"] is not None]
    least = min(ratios, key=lambda r: r["ratio"], default=None)
    wanted = f"Asked for: {measure['must']:g}x the fastest peer, aim {measure['aim']:g}x."
    return wanted if least is None else f"{wanted} Least ratio: {_ahead(least)}."


def _ahead(versus: Row) -> str:
    """A ratio of disturbed runs is shown, but never as a result."""
    if versus["ratio"] is None:
        return "-"
    return f"({versus['ratio']:.2f}x, disturbed)" if versus["disturbed"] else f"**{versus['ratio']:.2f}x**"


def _mean(runs: Sequence[Row], key: str) -> str:
    known = [r[key] for r in runs if r.get(key) is not None]
    return f"{sum(known) / len(known):.2f}" if known else "-"


def markdown(result: Mapping[str, Any]) -> str:
    """The whole result as a page: a table for each measure, the runs behind it, notes and warnings."""
    m, c = result["machine"], result["code"]
    where = "; ".join([f"{m['cores']} cores, {m['cpu']}, {m['memory_gib']} GiB", *m.get("gpus", ())])
    which = f"commit {(c['commit'] or 'unknown')[:12]}{' with local changes' if c['dirty'] else ''}"
    parts = [f"# {result['title']}", f"{result['made']}; {where}; {which}."]
    if any(r["disturbed"] for m in result["measures"] for r in m["ratios"].values()):
        parts.append("**Not a result: something else was running on the machine (see the warnings). Measure again.**")
    parts.append(_versions(result))
    for measure in result["measures"]:
        parts += [f"## {measure['title']}", measure_table(measure), goals(measure), _records(measure), _runs(measure)]
    parts.append("![ratios](ratios.svg)")
    for name in ("notes", "warnings"):
        if result[name]:
            parts += [f"## {name.capitalize()}", "\n".join(f"- {line}" for line in result[name])]
    return "\n\n".join(p for p in parts if p) + "\n"


def _versions(result: Mapping[str, Any]) -> str:
    shown = ("python", "runnel", "torch", "numpy", "gymnasium", *result["packages"])
    lines = []
    for name, found in result["versions"].items():
        lines.append(f"- {name}: " + ", ".join(f"{k} {found[k]}" for k in dict.fromkeys(shown) if k in found))
    return "\n".join(lines)


def _runs(measure: Mapping[str, Any]) -> str:
    """What each single run gave, in the order of the seeds."""
    keys = measure["columns"]
    if not keys:
        return ""
    rows = []
    for name, side in measure["sides"].items():
        for run in side["runs"]:
            error = f"failed: {run['error']}" if "error" in run else ""
            rows.append([name, str(run["seed"]), *(error or _cell(run.get(k)) for k in keys)])
    return table(["run of", "seed", *keys], rows) if rows else ""


def _records(measure: Mapping[str, Any]) -> str:
    """Where recorded figures come from."""
    lines = []
    for r in measure.get("recorded", ()):
        scale = f", when {r['anchor']} had {number(r['anchor_value'])}" if r["anchor"] else ""
        lines.append(f"- {r['name']}: {number(r['value'])} {measure['unit']} recorded{scale}. {r['note']}".rstrip())
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else number(value) if value is not None else "-"


# ---------------------------------------------------------------------------------------------------------------- plot
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:var(--ink)}.muted{fill:var(--soft)}.name{font-weight:600}"
    ".bar{fill:var(--bar)}.behind{fill:var(--behind)}.line{stroke:var(--ink);stroke-width:1.5}"
    ".one{stroke:var(--soft);stroke-dasharray:4 3}"
    "svg{--ink:#20252b;--soft:#6b7480;--paper:#fff;--bar:#2a7fb0;--behind:#c8642b}"
    "@media(prefers-color-scheme:dark){svg{--ink:#d7dce2;--soft:#8f99a5;--paper:#14171b;--bar:#58b4dd;--behind:#f0935a}}"
)
_LEFT, _WIDTH, _ROW = 310, 780, 44


def ratio_chart(title: str, bars: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """One bar for each ratio (as `compare` gives it), with the span of its pairs and a line at 1. A file of its own."""
    top = max([1.0, *(v for _, r in bars for v in (r["ratio"], r["high"]) if v is not None)]) * 1.05
    height = 76 + _ROW * len(bars)
    scale = (_WIDTH - _LEFT - 70) / top
    one = _LEFT + scale
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">',
        f'<style>{_STYLE}</style><rect width="100%" height="100%" rx="8" style="fill:var(--paper)"/>',
        f'<text class="name" x="16" y="26">{escape(title)}</text>',
        f'<line class="one" x1="{one:.1f}" x2="{one:.1f}" y1="40" y2="{height - 28}"/>',
        f'<text class="muted" x="{one:.1f}" y="{height - 10}" text-anchor="middle">1 = equal; longer is ahead</text>',
    ]
    for i, (label, r) in enumerate(bars):
        parts += _bar(label, r, y=46 + _ROW * i, scale=scale)
    return "".join([*parts, "</svg>\n"])


def _bar(label: str, r: Mapping[str, Any], *, y: float, scale: float) -> list[str]:
    parts = [f'<text x="{_LEFT - 10}" y="{y + 19}" text-anchor="end">{escape(label)}</text>']
    if r["ratio"] is None:
        return [*parts, f'<text class="muted" x="{_LEFT + 6}" y="{y + 19}">no ratio</text>']
    kind, end = ("bar" if r["ratio"] >= 1.0 else "behind"), _LEFT + scale * r["ratio"]
    parts.append(f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{scale * r["ratio"]:.1f}" height="28" rx="3"/>')
    if r["low"] is not None:
        low, high = _LEFT + scale * r["low"], _LEFT + scale * r["high"]
        parts.append(f'<line class="line" x1="{low:.1f}" x2="{high:.1f}" y1="{y + 14}" y2="{y + 14}"/>')
        end = max(end, high)
    sign = "?" if r["disturbed"] else "x"
    return [*parts, f'<text class="name" x="{end + 8:.1f}" y="{y + 19}">{r["ratio"]:.2f}{sign}</text>']
