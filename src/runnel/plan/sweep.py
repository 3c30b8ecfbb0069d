"""Simulates several clusters: settings that vary, rows of a table, lines of a plot."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from runnel.core.config import override
from runnel.core.errors import ConfigError
from runnel.plan.costs import Costs, LinearCost
from runnel.plan.simulate import SimConfig, SimResult, simulate
from runnel.report.plots import Series, curve_svg


@dataclass(frozen=True)
class SweepPoint:
    """One cluster of a sweep."""

    setting: Mapping[str, str]
    config: SimConfig
    costs: Costs


def with_cost(costs: Costs, name: str, value: str) -> Costs:
    """The costs with one number changed. `step=0.002` sets the seconds of a row, `step.base=0.001` those of a call.

    >>> with_cost(Costs(), "serve.base", "0.25").serve.base
    0.25
    """
    head, _, part = name.partition(".")
    known = {f.name for f in fields(Costs)} - {"name", "unit", "notes"}
    if head not in known:
        raise ConfigError("cost", name, f"unknown; use one of {', '.join(sorted(known))}")
    number, old = _number(name, value), getattr(costs, head)
    if isinstance(old, LinearCost):
        part = part or "per_row"
        if part not in ("base", "per_row"):
            raise ConfigError("cost", name, f"use {head}.base or {head}.per_row")
        return override(costs, {head: {part: number}})
    return override(costs, {head: type(old)(number)})


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise ConfigError(name, value, "is not a number") from error


def parse_pair(field: str, text: str) -> tuple[str, list[str]]:
    """Split `name=a,b,c` into its name and its values."""
    name, found, values = text.partition("=")
    if not found or not values:
        raise ConfigError(field, text, "write name=value, or name=value,value,... for several")
    return name.strip(), [v.strip() for v in values.split(",")]


def sweep_points(config: SimConfig, costs: Costs, sweeps: Sequence[str]) -> list[SweepPoint]:
    """Every combination of the values of `sweeps`; the last one varies fastest. A name is a setting or `cost.NAME`.

    >>> [p.config.actors for p in sweep_points(SimConfig(), Costs(), ["actors=10,100"])]
    [10, 100]
    """
    pairs = [parse_pair("sweep", text) for text in sweeps]
    points = []
    for values in itertools.product(*(values for _, values in pairs)):
        now, cost, setting = config, costs, {}
        for (name, _), value in zip(pairs, values, strict=True):
            setting[name] = value
            if name.startswith("cost."):
                cost = with_cost(cost, name.removeprefix("cost."), value)
            else:
                now = override(now, {name.replace("-", "_"): _as_setting(value)})
        points.append(SweepPoint(setting, now, cost))
    return points


def _as_setting(value: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    return value


def run_sweep(points: Sequence[SweepPoint], *, progress: Callable[[SweepPoint, int], None]) -> list[SimResult]:
    """Simulate every point. `progress` is called with the point and the version after each update."""
    return [simulate(point.config, point.costs, progress=partial(progress, point)) for point in points]


def bottleneck(result: SimResult) -> str:
    """The busiest part. If no part is busy, what the run waits for: round trips of requests, or versions."""
    kind, share = max(result.utilisation.items(), key=lambda item: item[1])
    if share >= 0.8:
        return kind
    return "waiting for versions" if result.config.staleness.mode != "window" else "round trips"


def plot(points: Sequence[SweepPoint], results: Sequence[SimResult], path: str | Path, *, title: str = "") -> None:
    """Plot steps per second over the first setting of the sweep, with a line for each combination of the others."""
    if Path(path).suffix != ".svg":
        raise ConfigError("plot", str(path), "plots are SVG; use a name that ends in .svg")
    names = list(points[0].setting)
    if not names:
        raise ConfigError("plot", str(path), "a plot needs something that varies; give --sweep NAME=VALUE,VALUE")
    x_name, lines = names[0], dict[str, list[tuple[float, float]]]()
    for point, result in zip(points, results, strict=True):
        label = ", ".join(f"{k} {v}" if k != "inference" else v for k, v in point.setting.items() if k != x_name)
        lines.setdefault(label or "steps/s", []).append((_number(x_name, point.setting[x_name]), result.steps_per_s))
    series = [Series(label, [x for x, _ in line], [y for _, y in line], marks=True) for label, line in lines.items()]
    curve_svg(series, path, title=title or "A simulated cluster", x_label=x_name, y_label="steps per second")
