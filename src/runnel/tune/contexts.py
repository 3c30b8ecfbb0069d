"""Which of many related tasks to train on, so that few policies serve all of them: model-based transfer learning (MBTL: Cho
et al. 2024, arXiv:2408.04498).

A context is a number that the environment is made with (a length, a mass, a speed). A policy that was trained at x and plays
at x' does worse the further they are apart:

    V(x, x') = J(x) - slope |x - x'|          J: what training at x reaches, slope: the generalisation gap

J is modelled by a Gaussian process over the trainings so far, the slope is fitted to what their policies lost elsewhere. The
next training is where the upper bound of V promises the largest gain over the best policy of each context so far:

    x_next = argmax_x sum_x' max(0, mean J(x) + bonus sd J(x) - slope |x - x'| - best(x'))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from runnel.core.errors import ConfigError
from runnel.core.state import Array
from runnel.run.api import evaluate_run, train

LENGTH_SCALE = 0.3
"""How far J is alike, as a share of the range of contexts."""
NOISE = 1e-3
"""Variance of a measured J, as a share of the variance of J."""


@dataclass
class ContextChooser:
    """Chooses where to train next, from what was measured so far. Contexts are numbers in rising order."""

    contexts: Sequence[float]
    bonus: float = 1.0
    """Standard deviations of J that are added to its mean: more explores."""
    scores: dict[int, Array] = field(default_factory=dict)
    """By the place of a training, the returns of its policy in all contexts."""

    def __post_init__(self) -> None:
        x = np.asarray(self.contexts, dtype=np.float64)
        if x.ndim != 1 or len(x) < 2 or not np.isfinite(x).all() or (np.diff(x) <= 0.0).any():
            raise ConfigError("contexts", list(self.contexts), "give two or more different numbers in rising order")
        self._x = (x - x[0]) / (x[-1] - x[0])

    def report(self, place: int, scores: Sequence[float]) -> None:
        """The policy that was trained at `contexts[place]` has these returns, one for each context."""
        found = np.asarray(scores, dtype=np.float64)
        if found.shape != self._x.shape or not np.isfinite(found).all():
            raise ConfigError("scores", list(scores), f"give {len(self._x)} finite returns, one for each context")
        self.scores[place] = found

    def slope(self) -> float:
        """What a policy loses over the whole range, by least squares on what policies lost so far."""
        distance = np.concatenate([np.abs(self._x - self._x[i]) for i in self.scores])
        lost = np.concatenate([s[i] - s for i, s in self.scores.items()])
        return max(float(distance @ lost / (distance @ distance)), 0.0)

    def set_point(self) -> tuple[Array, Array]:
        """Mean and standard deviation of J in every context: the posterior of a Gaussian process."""
        places = list(self.scores)
        y = np.array([self.scores[i][i] for i in places])
        # with one training J has no spread yet; that of its returns over contexts is the best guess
        variance = max(float(y.var()), float(np.concatenate(list(self.scores.values())).var()), 1e-12)
        known = _kernel(self._x[places], self._x[places]) + NOISE * np.eye(len(places))
        cross = _kernel(self._x, self._x[places])
        mean = y.mean() + cross @ np.linalg.solve(known, y - y.mean())
        left = 1.0 - (cross * np.linalg.solve(known, cross.T).T).sum(1)
        return mean, np.sqrt(variance * np.maximum(left, 0.0))

    def gains(self) -> Array:
        """The promised gain of a training in each context, over all contexts; of those that were trained in, minus infinity."""
        mean, spread = self.set_point()
        best = np.max(list(self.scores.values()), axis=0)
        reach = (mean + self.bonus * spread)[:, None] - self.slope() * np.abs(self._x[:, None] - self._x[None])
        gains: Array = np.maximum(reach - best, 0.0).sum(1)
        gains[list(self.scores)] = -np.inf
        return gains

    def choose(self) -> int:
        """The place of the context to train in next: the middle one first."""
        if len(self.scores) == len(self._x):
            raise ConfigError("trainings", len(self.scores) + 1, f"there are but {len(self._x)} contexts, all trained in")
        return int(np.argmax(self.gains())) if self.scores else int(np.argmin(np.abs(self._x - 0.5)))


def _kernel(a: Array, b: Array) -> Array:
    """Squared exponential, of variance 1. `[N], [M] -> [N, M]`"""
    found: Array = np.exp(-0.5 * ((a[:, None] - b[None]) / LENGTH_SCALE) ** 2)
    return found


@dataclass(frozen=True)
class Trained:
    """Runs in chosen contexts, by context, and the best of them for each context with its return there."""

    runs: Mapping[float, Path]
    best: Mapping[float, tuple[Path, float]]


def train_on_contexts(
    recipe: str,
    name: str,
    contexts: Sequence[float],
    *,
    trainings: int,
    episodes: int = 20,
    env_kwargs: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Trained:
    """Train `recipe` in `trainings` of `contexts`, chosen one after the other; `name` is the argument of the environment that a
    context is given as. After each training its policy plays `episodes` in every context, without learning."""
    chooser, runs = ContextChooser(contexts), dict[float, Path]()
    if not 1 <= trainings <= len(contexts):
        raise ConfigError("trainings", trainings, f"use 1 to {len(contexts)}, the number of contexts")
    for _ in range(trainings):
        place = chooser.choose()
        run = train(recipe, env_kwargs={**(env_kwargs or {}), name: contexts[place]}, **settings)
        asked = [{"env_kwargs": {**(env_kwargs or {}), name: context}} for context in contexts]
        played = [evaluate_run(run.path, episodes=episodes, settings=s).returns for s in asked]
        chooser.report(place, [float(np.mean(returns)) for returns in played])
        runs[contexts[place]] = run.path
    table = np.array(list(chooser.scores.values()))
    winners = table.argmax(0)
    paths = list(runs.values())
    best = {x: (paths[k], float(table[k, i])) for i, (x, k) in enumerate(zip(contexts, winners, strict=True))}
    return Trained(runs, best)
