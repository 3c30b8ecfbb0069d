"""`runnel simulate`: a cluster of thousands of cores by discrete events, without having it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from runnel.cli.arguments import read_flags
from runnel.cli.tables import number_table, wide_console
from runnel.core.errors import ConfigError
from runnel.core.state import JsonObject
from runnel.plan.costs import Costs
from runnel.plan.simulate import SimConfig, SimResult
from runnel.plan.sweep import SweepPoint, bottleneck, parse_pair, plot, run_sweep, sweep_points, with_cost

ABOUT = """Simulate a cluster: the real staleness policy and accounting, on simulated clocks, links and devices.

  runnel simulate --actors 15000 --trainers 32
  runnel simulate --actors 480 --trainers 4 --inference split --num-env-groups 20
  runnel simulate --trainers 4 --sweep actors=120,480,1920 inference=inline,central --plot cross.svg

Stage costs are those of `--costs FILE` (`runnel plan RECIPE --save FILE` measures them), else SRL's Atari.
"""


@dataclasses.dataclass(frozen=True)
class SimulateOptions:
    """Options of `runnel simulate` that do not describe the cluster."""

    costs: str = ""
    """A JSON file of stage costs, as `runnel plan` writes it."""
    cost: tuple[str, ...] = ()
    """Single costs, as NAME=VALUE: step=0.002 (seconds a row), serve.base=0.001 (seconds a batch), segment_bytes=1e6."""
    sweep: tuple[str, ...] = ()
    """Settings that vary, as NAME=VALUE,VALUE,...; every combination is simulated. cost.NAME varies a cost."""
    plot: str = ""
    """An SVG file of steps per second over the first swept setting."""
    json: bool = False
    """Print everything as JSON."""


def simulate(args: list[str]) -> int:
    """Simulate one cluster, or a sweep of them."""
    options, config = read_flags(SimulateOptions, SimConfig(), args, prog="runnel simulate", about=ABOUT)
    costs = Costs.load(options.costs) if options.costs else Costs()
    for text in options.cost:
        name, values = parse_pair("cost", text)
        if len(values) != 1:
            raise ConfigError("cost", text, "takes one value; use --sweep cost.NAME=VALUE,VALUE for several")
        costs = with_cost(costs, name, values[0])
    points = sweep_points(config, costs, options.sweep)
    for point in points:
        point.config.check()
    console = wide_console(stderr=options.json)
    with console.status("simulating") as status:
        results = run_sweep(points, progress=lambda p, v: status.update(_progress(p, v)))
    if options.plot:
        plot(points, results, options.plot, title=costs.name)
    if options.json:
        print(json.dumps([as_data(p, r) for p, r in zip(points, results, strict=True)], indent=1))
    else:
        show(points, results, console)
        if options.plot:
            console.print(f"plot: {Path(options.plot)}")
    return 0


def _progress(point: SweepPoint, version: int) -> str:
    named = ", ".join(f"{k} {v}" for k, v in point.setting.items())
    return f"simulating {named + ': ' if named else ''}update {version} of {point.config.updates}"


def as_data(point: SweepPoint, result: SimResult) -> JsonObject:
    """A result as plain data."""
    shown = {f.name: getattr(result, f.name) for f in dataclasses.fields(result) if f.name not in ("config", "accounting")}
    accounts = {**vars(result.accounting), "balance": result.accounting.balance}
    return {"setting": dict(point.setting), **shown, "bottleneck": bottleneck(result), "accounting": accounts}


def show(points: Sequence[SweepPoint], results: Sequence[SimResult], console: Console) -> None:
    """Print a row for each cluster; for a single cluster also the accounting of its rows."""
    swept = list(points[0].setting)
    unit = points[0].costs.unit
    numbers = (f"{unit}/s", "upd/s", "actors", "servers", "trainers", "behind", "most", "dropped", "busiest")
    table = number_table(f"{points[0].costs.name}, simulated", swept, numbers)
    for point, r in zip(points, results, strict=True):
        u = r.utilisation
        busy = [f"{u[k]:.0%}" if k in u else "" for k in ("actors", "servers", "trainers")]
        dropped = sum(r.accounting.dropped.values()) / max(r.accounting.dispatched, 1)
        rates = (f"{r.steps_per_s:,.0f}", f"{r.updates_per_s:.2f}")
        lag = (f"{r.mean_staleness:.1f}", str(r.max_staleness))
        table.add_row(*point.setting.values(), *rates, *busy, *lag, f"{dropped:.1%}", bottleneck(r))
    console.print(table)
    if len(results) == 1:
        _details(results[0], console)


def _details(r: SimResult, console: Console) -> None:
    a, share = r.accounting, sum(r.staleness.values()) or 1
    console.print("versions behind: " + ", ".join(f"{lag}: {num / share:.0%}" for lag, num in r.staleness.items()))
    links = ", ".join(f"{k} {r.utilisation[k]:.0%}" for k in ("sample", "param", "request") if k in r.utilisation)
    console.print(f"links: {links}; a batch of inference {r.server_batch:.0f} requests; {r.queue:.0f} segments queued")
    console.print(
        f"rows: {a.dispatched:,} dispatched = {a.consumed:,} consumed + {sum(a.dropped.values()):,} dropped + "
        f"{sum(a.cancelled.values()):,} cancelled + {a.in_flight:,} in flight"
    )
    console.print(f"{r.seconds:.1f} s simulated, {r.events:,} events in {r.wall_s:.1f} s")
