"""What recipes should reach: each entry a recipe with its settings, a number of seeds, and a reference where there is one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Score:
    """A number of a finished run (see `one.py`), with the reference that it is held against."""

    key: str
    title: str
    reference: float | None = None
    spread: float = 0.0
    """Standard deviation that the reference was published with."""
    source: str = ""


@dataclass(frozen=True)
class Learning:
    """A recipe, trained once for each of the seeds 1, 2, ..."""

    name: str
    title: str
    recipe: str
    seeds: int
    scores: tuple[Score, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    limit_s: float = 3600.0


ENTRIES = (
    Learning(
        name="ppo-cartpole",
        title="`ppo` on CartPole-v1, 500k steps",
        recipe="ppo",
        seeds=5,
        settings={"env": "CartPole-v1", "total_steps": 500_000, "eval.episodes": 100, "checkpoint.every": 0},
        scores=(
            Score("train_return", "last 100 training episodes", 490.0, 6.1, "CleanRL, its own hyperparameters"),
            Score("eval_return", "100 greedy episodes"),
        ),
    ),
    Learning(
        name="dqn-cartpole",
        title="`dqn` on CartPole-v1, 500k steps, an update every 10 steps",
        recipe="dqn",
        seeds=5,
        settings={
            "env": "CartPole-v1",
            "total_steps": 500_000,
            "update_ratio": 0.1,
            "eval.episodes": 100,
            "checkpoint.every": 0,
        },
        scores=(
            Score("train_return", "last 100 training episodes", 488.7, 16.0, "CleanRL, its own hyperparameters"),
            Score("eval_return", "100 greedy episodes"),
        ),
    ),
    Learning(
        name="cartpole",
        title="`cartpole`: until 100 evaluation episodes average 475",
        recipe="cartpole",
        seeds=5,
        scores=(
            Score("solve_steps", "steps to solve"),
            Score("solve_s", "seconds to solve"),
            Score("eval_return", "100 greedy episodes", 475.0, 0.0, "the recipe's own goal"),
        ),
        limit_s=300.0,
    ),
    Learning(
        name="reverse",
        title="`reverse`: a small transformer writes unseen words backwards",
        recipe="reverse",
        seeds=3,
        scores=(
            Score("eval_return", "reward on unseen words", 0.9, 0.0, "the recipe's own goal"),
            Score("train_s", "seconds of training"),
        ),
        limit_s=1200.0,
    ),
)
