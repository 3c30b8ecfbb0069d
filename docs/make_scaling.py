"""The figures of docs/scale/plan.md, from simulations: writes docs/assets/scaling-*.svg.

python docs/make_scaling.py [inference] [ring] [sample] [params] [stragglers] [full]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runnel.flow.staleness import StalenessConfig
from runnel.plan.costs import Costs, LinearCost
from runnel.plan.simulate import NetworkConfig, SimConfig, SimResult, simulate
from runnel.report.plots import Series, curve_svg

ASSETS = Path(__file__).parent / "assets"
GROUPS = {"num_env_groups": 8}
SYNC, ONE, WINDOW = StalenessConfig(mode="sync"), StalenessConfig(mode="one_step"), StalenessConfig(mode="window", max_lag=4)


def run(costs: Costs | None = None, **settings: Any) -> SimResult:
    """Simulate, and say what came of it."""
    result = simulate(SimConfig(**{"updates": 6, **settings}), costs)
    shown = {k: v for k, v in settings.items() if k in ("actors", "trainers", "inference", "num_env_groups")}
    print(f"  {shown}: {result.steps_per_s:,.0f}/s, {result.mean_staleness:.1f} behind, {result.wall_s:.1f} s", flush=True)
    return result


def line(name: str, xs: Sequence[float], rate: Callable[[Any], float], color: int) -> Series:
    """A line of the plot: the rate at each position."""
    return Series(name, xs, [rate(x) for x in xs], marks=True, color=color)


def inference() -> None:
    """One trainer: central saturates, split needs more accelerators and fewer cores, inline grows with the cores."""
    xs = (15, 30, 60, 90, 120, 180, 240, 360, 480)
    series = [
        line("inline: the policy on each core", xs, lambda n: run(actors=n).steps_per_s, 0),
        line("split: two accelerators more, ring 8", xs, lambda n: run(actors=n, inference="split", **GROUPS).steps_per_s, 2),
        line("central: on the trainer's, ring 8", xs, lambda n: run(actors=n, inference="central", **GROUPS).steps_per_s, 1),
    ]
    save(series, "inference", "Where the policy answers: steps per second of one trainer", "actors (cores)", "steps per second")


def ring() -> None:
    """One actor, a server whose batch takes so many steps: what the actor gains over a ring of one."""
    xs, series = (1, 2, 3, 4, 6, 8, 12, 16), []
    for color, times in enumerate((2, 4, 8)):
        step, serve = LinearCost(0.0, 1e-3), LinearCost(times * 1e-3, 0.0)
        costs = replace(Costs(), step=step, serve=serve, message_s=0.0, update=LinearCost())
        fixed = {"actors": 1, "servers": 1, "inference": "split", "jitter": 0.1, "updates": 40}
        rates = [run(costs, num_env_groups=n, **fixed).steps_per_s for n in xs]
        series.append(Series(f"an answer takes {times} steps", xs, [r / rates[0] for r in rates], marks=True, color=color))
    save(series, "ring", "A ring of environments: gain of one actor", "groups of environments", "gain over a ring of 1")


def sample() -> None:
    """Large observations on narrow links: the rate ends where the trainer's link is full."""
    costs = replace(Costs(), segment_bytes=16 * 84 * 84 * 12, update=LinearCost(0.0, 1e-5))
    xs = (60, 120, 240, 480, 960)
    series = [
        line(f"{gbps} Gb/s", xs, lambda n, g=gbps: run(costs, actors=n, network=NetworkConfig(gbps=g)).steps_per_s, i)
        for i, gbps in enumerate((2.5, 10.0, 25.0))
    ]
    save(series, "sample", "The sample path: 85 kB a step to one trainer", "actors (cores)", "steps per second")


def params() -> None:
    """Synchronous training of a 40 MB policy: every process fetches it, or every node once."""
    costs = replace(Costs(), param_bytes=40_000_000, update=LinearCost(0.0, 1e-6))
    xs = (128, 512, 1024, 2048, 4096)

    def rate(fan_out: str, mode: StalenessConfig) -> Callable[[int], float]:
        network = NetworkConfig(gbps=25.0, fan_out=fan_out)  # type: ignore[arg-type]
        return lambda n: run(costs, actors=n, network=network, staleness=mode).steps_per_s

    series = [
        line("once to each node, one step off", xs, rate("node", ONE), 0),
        line("once to each node, sync", xs, rate("node", SYNC), 2),
        line("to each process, one step off", xs, rate("process", ONE), 3),
        line("to each process, sync", xs, rate("process", SYNC), 1),
    ]
    save(series, "params", "The parameter path: 40 MB a version, 25 Gb/s", "actors (cores)", "steps per second")


def stragglers() -> None:
    """256 actors whose steps differ more and more: who waits for the slowest."""
    costs, xs = replace(Costs(), num_steps=8, update=LinearCost(0.0, 2.0e-5)), (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)
    half = {"actors": 256, "updates": 16}
    series = [
        line("sync", xs, lambda j: run(costs, jitter=j, staleness=SYNC, **half).steps_per_s, 1),
        line("one step off", xs, lambda j: run(costs, jitter=j, staleness=ONE, **half).steps_per_s, 2),
        line("window of 4", xs, lambda j: run(costs, jitter=j, staleness=WINDOW, batch_segments=128, **half).steps_per_s, 0),
    ]
    save(
        series,
        "stragglers",
        "Stragglers: 256 actors, steps of uneven length",
        "deviation of a step over its mean",
        "steps per second",
    )


def full() -> None:
    """SRL's table 7 at its size: 32 trainers, 15,360 actors inline, 3,840 with a ring of 20 elsewhere."""
    run(actors=15_360, trainers=32, updates=8)
    run(actors=3_840, trainers=32, inference="split", num_env_groups=20, updates=4)
    run(actors=3_840, trainers=32, inference="central", num_env_groups=20, updates=4)


def save(series: Sequence[Series], name: str, title: str, x_label: str, y_label: str) -> None:
    """Write a figure."""
    curve_svg(series, ASSETS / f"scaling-{name}.svg", title=title, x_label=x_label, y_label=y_label)


FIGURES: dict[str, Callable[[], None]] = {
    "inference": inference,
    "ring": ring,
    "sample": sample,
    "params": params,
    "stragglers": stragglers,
    "full": full,
}

if __name__ == "__main__":
    ASSETS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or FIGURES:
        print(name)
        FIGURES[name]()
