"""Detectors against samples, one figure for each entry: a panel for each detector, a line for each seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runnel.report.paper import COLORS, STYLE

Row = dict[str, Any]
PANELS = (
    "hider_return",
    "unseen",
    "num_box_lock_prep",
    "max_box_move_prep",
    "seekers_high",
    "max_{}_move",
    "max_{}_move_prep",
    "num_{}_lock_prep",
)
"""The detectors that stages are claimed by; in braces what this world's seekers climb on."""


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write `detectors-ENTRY.svg` for each entry that has a curve. Dots are where stages were claimed, dashes random play."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    files = []
    for key in dict.fromkeys(row["key"] for row in rows if row["curve"]):
        mine = [row for row in rows if row["key"] == key and row["curve"]]
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(10.0, 4.4), layout="constrained")
            for axes, name in zip(figure.subplots(2, 4).flat, names_of(mine[0]), strict=True):
                _panel(axes, mine, name)
            figure.suptitle(
                f"{key}: detectors against millions of world steps, seeds {', '.join(str(r['seed']) for r in mine)}"
            )
            path = folder / f"detectors-{key}.svg"
            FigureCanvasSVG(figure).print_svg(str(path), metadata={"Date": None})
        files.append(path)
    return files


def names_of(row: Row) -> list[str]:
    """The detectors of the world that this row is of."""
    climbing = "ramp" if "max_ramp_move" in row["at_random"] else "ladder"
    return [name.format(climbing) for name in PANELS]


def _panel(axes: Any, rows: Sequence[Row], name: str) -> None:
    for colour, row in zip(COLORS, rows, strict=False):
        points = row["curve"]
        axes.plot([p["steps"] / 1e6 for p in points], [p[name] for p in points], color=colour, linewidth=1.0)
        claimed = {claim["steps"] for claim in row["claims"].values()}
        marks = [p for p in points if p["steps"] in claimed]
        axes.plot([p["steps"] / 1e6 for p in marks], [p[name] for p in marks], "o", color=colour, markersize=3.5)
    axes.axhline(rows[0]["at_random"][name], color="#777777", linestyle="--", linewidth=0.8)
    axes.set_title(name, fontsize=8)
