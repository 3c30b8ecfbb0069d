"""The curves of README.md and docs/algorithms, from real runs: writes docs/assets/*.svg.

python docs/make_figures.py [cartpole] [dqn] [a2c] [appo] [sac] [td3] [reverse] [judged]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import runnel as rl
from runnel.report.collect import collect
from runnel.report.markdown import md_table
from runnel.report.plots import Series, curve_svg
from runnel.report.verdicts import make_verdicts

ASSETS = Path(__file__).parent / "assets"


def evaluations(run: rl.Run, name: str) -> Series:
    """Mean of each evaluation with its 95 % interval, over environment steps."""
    rows = run.rows("eval")
    return Series(
        name,
        [row["steps"] for row in rows],
        [row["mean"] for row in rows],
        low=[row["low"] for row in rows],
        high=[row["high"] for row in rows],
        marks=True,
    )


def tell(run: rl.Run) -> None:
    """Print how a run ended."""
    print(f"  {run.status} at {run.steps or run.version:,}: mean {run.eval['mean']:.4g} after {run.train_s:.1f} s")


def cartpole(out: str) -> None:
    """The demonstration, three seeds, each until 100 episodes average 475."""
    runs = [rl.train("cartpole", seed=seed, out=out, eval={"every": 10}) for seed in (1, 2, 3)]
    for run in runs:
        tell(run)
    series = [evaluations(run, f"seed {seed}") for seed, run in enumerate(runs, start=1)]
    curve_svg(series, ASSETS / "cartpole.svg", title="PPO on CartPole-v1", y_label="mean return of 100 evaluation episodes")


def dqn(out: str) -> None:
    """DQN with its defaults, three seeds."""
    runs = [rl.train("dqn", seed=seed, out=out, eval={"every": 800, "episodes": 20}) for seed in (1, 2, 3)]
    for run in runs:
        tell(run)
    series = [evaluations(run, f"seed {seed}") for seed, run in enumerate(runs, start=1)]
    curve_svg(series, ASSETS / "dqn.svg", title="DQN on CartPole-v1", y_label="mean return of 20 evaluation episodes")


def three_seeds(recipe: str, out: str, *, title: str, **settings: Any) -> None:
    """A recipe with its defaults on three seeds, into `docs/assets/RECIPE.svg`."""
    runs = [rl.train(recipe, seed=seed, out=out, checkpoint={"every": 0}, **settings) for seed in (1, 2, 3)]
    for run in runs:
        tell(run)
    series = [evaluations(run, f"seed {seed}") for seed, run in enumerate(runs, start=1)]
    episodes = settings["eval"]["episodes"]
    curve_svg(series, ASSETS / f"{recipe}.svg", title=title, y_label=f"mean return of {episodes} evaluation episodes")


def a2c(out: str) -> None:
    """A2C with its defaults."""
    three_seeds("a2c", out, title="A2C on CartPole-v1", eval={"every": 60, "episodes": 20})


def appo(out: str) -> None:
    """APPO with its defaults, in one process: a window of two versions."""
    three_seeds("appo", out, title="APPO on CartPole-v1", eval={"every": 10, "episodes": 20})


def sac(out: str) -> None:
    """SAC on Pendulum."""
    settings = {"env": "Pendulum-v1", "total_steps": 12_000, "min_fill": 1_000, "eval": {"every": 1_000, "episodes": 10}}
    three_seeds("sac", out, title="SAC on Pendulum-v1", **settings)


def td3(out: str) -> None:
    """TD3 on Pendulum; a short run wants a higher rate than a million steps of MuJoCo."""
    settings = {"env": "Pendulum-v1", "total_steps": 12_000, "min_fill": 1_000, "eval": {"every": 1_000, "episodes": 10}}
    three_seeds("td3", out, title="TD3 on Pendulum-v1", td3={"actor_lr": 1e-3, "critic_lr": 1e-3}, **settings)


def reverse(out: str) -> None:
    """The language-model demonstration: imitation, then GRPO, until 0.95 on unseen words."""
    run = rl.train("reverse", out=out, eval={"every": 10})
    tell(run)
    rows = run.rows("eval")
    config = rl.graphs.resolve("runnel.recipes.reverse:Config", "recipe")()
    parts = {
        "imitation": [row for row in rows if row["version"] <= config.warmup_updates],
        "GRPO": [row for row in rows if row["version"] >= config.warmup_updates],
    }
    series = [
        Series(
            name,
            [r["version"] for r in part],
            [r["mean"] for r in part],
            low=[r["low"] for r in part],
            high=[r["high"] for r in part],
            marks=True,
        )
        for name, part in parts.items()
    ]
    title, y_label = "A small transformer writes words backwards", "mean reward on 256 unseen words"
    curve_svg(series, ASSETS / "reverse.svg", title=title, x_label="updates", y_label=y_label)


def judged(out: str) -> None:
    """PPO against A2C on two tasks, five seeds each, as `runnel report --over seeds` compares them."""
    for recipe, every in (("cartpole", 10), ("a2c", 40)):
        for env in ("CartPole-v1", "Acrobot-v1"):
            for seed in range(1, 6):
                watched = {"every": every, "episodes": 20, "stop_return": None}
                rl.train(recipe, env=env, seed=seed, out=f"{out}/{recipe}", total_steps=30_000, eval=watched)
    found = make_verdicts(collect([f"ppo={out}/cartpole", f"a2c={out}/a2c"]))
    print("\n".join([*found.sentences, *found.notices, md_table(found.tables[0])]))
    for figure in found.figures:
        curve_svg(
            figure.series, ASSETS / f"{figure.name}.svg", title=figure.title, x_label=figure.x_label, y_label=figure.y_label
        )


FIGURES: dict[str, Callable[[str], None]] = {
    "cartpole": cartpole,
    "dqn": dqn,
    "a2c": a2c,
    "appo": appo,
    "sac": sac,
    "td3": td3,
    "reverse": reverse,
    "judged": judged,
}

if __name__ == "__main__":
    ASSETS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or FIGURES:
        print(name)
        with tempfile.TemporaryDirectory() as folder:
            FIGURES[name](folder)
