"""The ring curve: how much faster one actor plays when its environments are split into groups that take turns.

.venv/bin/python -m benchmarks.classic.num_env_groups.run
.venv/bin/python -m benchmarks.classic.num_env_groups.run --repeats 1 --idle-limit 0 --rings 1 4 --out /tmp/look -- --window 2

The policy is another process. With one environment the actor waits for each answer; with a ring of n it steps n - 1 others
meanwhile, so that the gain ends at 1 + response time / step time (SRL's rule). Needs a Python that has runnel.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks import machine, results, venvs
from benchmarks.harness import RESULTS, Measure, Options, Side, measure_once

HERE = Path(__file__).parent
NAME = "classic/ring"
RINGS = (1, 2, 4, 8, 16)
SRL = {
    "SRL, Pong": {1: 1.0, 2: 1.9, 4: 3.6, 8: 6.2, 16: 8.3},
    "SRL, SMAC 3m": {1: 1.0, 2: 1.8, 7: 3.7},
    "SRL, SMAC 27m_vs_30m": {1: 1.0, 2: 1.5},
}
"""Gains over a ring of one that SRL published for one actor (arXiv:2306.16688): 8.3x, 3.7x and 1.5x at most."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    """Environments of one step time, and where they step: here, computing, or in processes of their own, sleeping."""

    name: str
    step_ms: float
    where: str = "serial"


CURVES = (
    Curve("0.05 ms a step", 0.05),
    Curve("0.15 ms a step", 0.15),
    Curve("0.5 ms a step", 0.5),
    Curve("2 ms a step, asleep elsewhere", 2.0, "processes"),
)


def measure_curves(python: Path, rings: Sequence[int], *, repeats: int, extra: Sequence[str], options: Options) -> list[Row]:
    """Every point once, then every point again, so that a machine that slows down slows all points alike."""
    side = Side("runnel", HERE / "point.py", ())
    rows: list[Row] = [{**asdict(c), "ring": n, "runs": []} for c in CURVES for n in rings]
    for seed in range(1, repeats + 1):
        for row in rows:
            arguments = ("--ring", str(row["ring"]), "--step-ms", str(row["step_ms"]), "--where", row["where"], *extra)
            measure = Measure("ring", "", "steps_per_s", "steps/s", True, arguments, repeats=repeats, limit_s=120.0)
            row["runs"].append(measure_once(python, side, measure, seed=seed, options=options))
            shown = row["runs"][-1].get("error") or f"{results.number(row['runs'][-1]['steps_per_s'])} steps/s"
            print(f"{seed}/{repeats} {row['name']}, ring {row['ring']}: {shown}", file=sys.stderr, flush=True)
    return rows


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Median of each point, and its gain over a ring of one; beside it the bound 1 + response / step."""
    first: dict[str, float | None] = {}
    found = []
    for row in rows:
        rate = results.middle([r.get("steps_per_s") for r in row["runs"]], more_is_better=True)
        first.setdefault(row["name"], rate)
        base = first[row["name"]]
        gain = rate / base if rate and base else None
        response_ms = 1000.0 / base - row["step_ms"] if base else None
        bound = 1.0 + response_ms / row["step_ms"] if response_ms is not None and row["where"] == "serial" else None
        found.append({**row, "steps_per_s": rate, "gain": gain, "response_ms": response_ms, "bound": bound})
    return found


def markdown(result: Row) -> str:
    """The points as a table, SRL's beside them."""
    header = ["environments", "ring", "steps/s", "gain", "bound", "response (ms)", "cores"]
    rows = [
        [
            point["name"],
            str(point["ring"]),
            results.number(point["steps_per_s"]),
            results.number(point["gain"]),
            results.number(point["bound"]),
            results.number(point["response_ms"]),
            results.number(results.middle([r.get("cores") for r in point["runs"]], more_is_better=True)),
        ]
        for point in result["points"]
    ]
    srl = [[name, ", ".join(f"{gain:g}x at {n}" for n, gain in gains.items() if n > 1)] for name, gains in SRL.items()]
    m = result["machine"]
    parts = [
        "# The ring: gain of one actor over its own rate with one group of environments",
        f"{result['made']}; {m['cores']} cores, {m['cpu']}, {m['memory_gib']} GiB; no learning, one policy worker, one "
        "environment in each group.",
        "**Not a result: something else was running on the machine. Measure again.**" if result["disturbed"] else "",
        results.table(header, rows),
        results.table(["published", "gain"], srl),
        "The bound is 1 + response / step, where the response is what a step takes with a ring of one beyond the "
        "environment's own time. Environments that sleep in processes of their own overlap with one another too, so their "
        "gain is bounded by the ring alone.",
        "![ring](ring.svg)",
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def draw(result: Row, path: Path) -> None:
    """Gain over ring size, ours thick and with dots, SRL's thin."""
    from runnel.report.plots import Series, curve_svg

    series = [Series(name, list(gains), list(gains.values()), color=5 - i) for i, (name, gains) in enumerate(SRL.items())]
    for i, curve in enumerate(CURVES):
        points = [p for p in result["points"] if p["name"] == curve.name and p["gain"] is not None]
        series.append(Series(curve.name, [p["ring"] for p in points], [p["gain"] for p in points], marks=True, color=i))
    curve_svg(series, path, title="One actor, a ring of environments", x_label="ring", y_label="gain over a ring of 1")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rings", type=int, nargs="+", default=RINGS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", default=str(RESULTS / NAME), help="folder of the result")
    parser.add_argument("--idle-limit", type=float, default=Options.idle_limit_s, help="longest wait for an idle machine, in s")
    parser.add_argument("extra", nargs="*", help="after --: more arguments for point.py, such as --window 2")
    args = parser.parse_args(argv)
    options = Options(idle_limit_s=args.idle_limit)
    rows = measure_curves(Path(sys.executable), args.rings, repeats=args.repeats, extra=args.extra, options=options)
    result: Row = {
        "entry": NAME,
        "made": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": machine.facts(),
        "code": machine.commit(venvs.ROOT),
        "options": asdict(options),
        "disturbed": any(run["warnings"] for row in rows for run in row["runs"]),
        "points": summarise(rows),
        "published": SRL,
    }
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(markdown(result), encoding="utf-8")
    draw(result, folder / "ring.svg")
    print((folder / "table.md").read_text(encoding="utf-8"))
    return int(any(point["gain"] is None for point in result["points"]))


if __name__ == "__main__":
    sys.exit(main())
