"""Teams that learn on our tensor worlds and are judged in the environments of others, beside players that do not learn.

python -m benchmarks.learning.teams                                   # all that is missing
python -m benchmarks.learning.teams --only 'spread: mappo' --seeds 1 2 3
python -m benchmarks.learning.teams --table                           # only write the table again

A team trains on `tensor:...`, as many worlds at once as its settings say, and then plays 500 episodes, greedily, in the
environment that the tensor world is a port of. What it gets there is held against what players get that do not learn: one at
random, and one by a script. A seed that has a result with the same settings is not run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks import venvs
from benchmarks.harness import RESULTS
from benchmarks.learning import anchors, seeds
from benchmarks.learning.anchors import Player
from benchmarks.learning.seeds import Row

import runnel as rl
from runnel.eval.statistics import mean_interval

OUT, RUNS = RESULTS / "learning" / "teams", venvs.ROOT / "runs" / "teams"
EPISODES = 500


@dataclass(frozen=True)
class Task:
    """What teams train on (`env`), and where they are judged: `make` makes the environment of others, in whose `unit` they are
    counted. `anchors` are the players that do not learn."""

    name: str
    env: str
    make: Callable[[], Any]
    unit: str
    anchors: dict[str, Callable[[], Player]]


@dataclass(frozen=True)
class Learner:
    """A recipe with its settings on a task, and the return that it is asked to reach there."""

    task: str
    name: str
    recipe: str
    settings: Row
    goal: float

    @property
    def key(self) -> str:
        return f"{self.task}: {self.name}"


def spread() -> Any:
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env()


def spread_at_random() -> Player:
    return anchors.at_random(spread().action_space, seed=1)


TASKS = {
    task.name: task
    for task in (
        Task(
            "spread",
            "tensor:Spread",
            spread,
            "mean over three agents of mpe2's own return in 25 steps",
            {"at random": spread_at_random, "by a script": anchors.share_out},
        ),
    )
}
PLAIN: Row = {"track": (), "progress": False, "checkpoint": {"every": 0}, "eval": {"episodes": 0}}
STEPS = 10_000_000
NETS: Row = {"hidden": (64, 64), "activation": "tanh"}
ON_POLICY: Row = {"total_steps": STEPS, "num_envs": 128, "num_steps": 25, "net": NETS}
PPO: Row = {"num_epochs": 4, "num_minibatches": 4, "lr": "linear(2e-3, 0)", "max_grad_norm": 0.5, "entropy_coef": 0.01}
REPLAY: Row = {"total_steps": STEPS, "num_envs": 128, "num_steps": 25, "min_fill": 16_000, "update_ratio": 0.005}
REPLAY |= {"log_every": 500, "replay": {"capacity": 128_000}, "net": {"hidden": (128, 128), "activation": "relu"}}
VALUES: Row = {"gamma": 0.9, "lr": "linear(2e-3, 0)", "batch_size": 512, "target_every": 200, "epsilon": "linear(1, 0.05, 0.1)"}
LEARNERS = (
    Learner("spread", "mappo", "mappo", {**ON_POLICY, "ppo": PPO}, -9.0),
    Learner("spread", "ippo", "ippo", {**ON_POLICY, "ppo": PPO}, -9.0),
    Learner("spread", "vdn", "vdn", {**REPLAY, "qmix": VALUES}, -12.0),
    Learner("spread", "qmix", "qmix", {**REPLAY, "qmix": VALUES}, -16.0),
    Learner("spread", "independent_q", "independent_q", {**REPLAY, "qmix": VALUES}, -12.7),
)
"""Settings near those of JaxMARL's MAPPO and IPPO, and of its VDN and QMIX (gamma 0.9), on MPE."""


def train(learner: Learner, seed: int) -> Row:
    """Train one seed, and play it in the environment of others."""
    task = TASKS[learner.task]
    wall, cpu = time.monotonic(), time.process_time()
    run = rl.train(learner.recipe, env=task.env, seed=seed, out=str(RUNS), **PLAIN, **learner.settings)
    if run.interrupted:
        raise KeyboardInterrupt  # a run that was stopped has measured nothing
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    policy = rl.load(run.path)
    returns = anchors.play(task.make, lambda obs: policy.act(obs), episodes=EPISODES, seed=100_000)
    mean, half = map(float, mean_interval(returns))
    return {"mean": mean, "half": half, "steps": run.steps, "wall_s": round(wall, 1), "cpu_s": round(cpu, 1)}


def anchor_rows() -> list[Row]:
    """What players get that do not learn, on the episodes on which learners are judged."""
    rows = []
    for task in TASKS.values():
        for name, make in task.anchors.items():
            mean, half = map(float, mean_interval(anchors.play(task.make, make(), episodes=EPISODES, seed=100_000)))
            rows.append({"key": f"{task.name}: {name}", "mean": mean, "half": half})
    return rows


def table(anchor: Sequence[Row], rows: Sequence[Row]) -> str:
    """All that was run: each seed, the mean over seeds with half the width of its 95 % interval, and what was asked for."""
    lines = [
        "| player | seeds | mean over seeds | asked for | steps | minutes of CPU a run |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [f"| {a['key']} | | {a['mean']:.2f} ± {a['half']:.2f} | | | |" for a in anchor]
    for learner in LEARNERS:
        mine = [row for row in rows if row["key"] == learner.key]
        if not mine:
            continue
        means = np.array([row["mean"] for row in mine])
        each = ", ".join(f"{m:.2f}" for m in means)
        mean, half = map(float, mean_interval(means)) if len(mine) > 1 else (means[0], None)
        together = f"{mean:.2f}" if half is None else f"{mean:.2f} ± {half:.2f}"
        minutes = np.mean([row["cpu_s"] for row in mine]) / 60
        cells = [learner.key, each, together, f"> {learner.goal:g}", f"{mine[0]['steps']:,}", f"{minutes:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    units = "\n".join(f"- {task.name}: {task.unit}" for task in TASKS.values())
    return f"{units}\n\n" + "\n".join(lines)


if __name__ == "__main__":
    seeds.main(OUT, LEARNERS, train, table, anchor_rows)
