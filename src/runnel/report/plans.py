"""Predicted and reached rates in a report: of a run that was started from a plan, and of each plan that it made itself."""

from __future__ import annotations

from collections.abc import Mapping

from runnel.report.tables import Cell, Table
from runnel.track.history import History, as_table, is_number
from runnel.track.numbers import seconds

NOTE = "Reached: over the second half of a period of `placement.replan_s`, or from the first row of an update to the last."


def predicted_rates(run: History) -> Table:
    """A row for each period of `placement.replan_s`; of a run without it one row, if it was started from a plan."""
    rows = [_cells(run, row) for row in run.events if row.get("what") == "plan" and is_number(row.get("reached"))]
    head = ("until", "workers", "unit", "predicted", "reached", "reached / predicted")
    return Table("predicted", "Predicted and reached rates", head, rows or _of_whole_run(run), NOTE)


def _cells(run: History, row: Mapping[str, object]) -> list[Cell]:
    wall = as_table(row.get("time")).get("wall_s")
    until = seconds(wall) if is_number(wall) else ""
    workers = ", ".join(f"{n} {kind}" for kind, n in as_table(row.get("workers")).items())
    return [until, workers, f"{row.get('unit')}/s", *_rates(row.get("predicted"), row.get("reached"))]


def _rates(predicted: object, reached: object) -> list[Cell]:
    told = predicted if is_number(predicted) and predicted > 0 else None
    found = reached if is_number(reached) else None
    return [told, found, found / told if found is not None and told else None]


def _of_whole_run(run: History) -> list[list[Cell]]:
    placement = as_table(run.config.get("placement"))
    predicted, wall = placement.get("predicted_per_s"), run.wall_s()
    if not is_number(predicted) or predicted <= 0 or wall is None:
        return []
    unit = "tokens" if run.last.get("tokens") else "steps"
    points = [(row.get("time", {}).get("wall_s"), row.get(unit)) for row in run.updates]
    known = [(float(at), float(n)) for at, n in points if is_number(at) and is_number(n)]
    span = known[-1][0] - known[0][0] if known else 0.0
    reached = (known[-1][1] - known[0][1]) / span if span > 0 else None
    workers = f"{run.config.get('num_actors')} actor"
    if servers := placement.get("policy_workers"):
        workers += f", {servers} policy"
    return [[seconds(wall), workers, f"{unit}/s", *_rates(predicted, reached)]]
