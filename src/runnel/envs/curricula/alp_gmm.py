"""ALP-GMM (Portelas, Colas, Hofmann and Oudeyer 2019, arXiv:1910.07224): tasks on which returns change most.

The absolute learning progress of an episode is how far its return is from that of the nearest task that was played before. A
mixture of Gaussians over tasks and their progress says where progress is; new tasks are drawn from its parts, more often from
those with more progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runnel.core.records import Batch, Segment
from runnel.core.rng import make_rng
from runnel.core.spaces import TaskSpace
from runnel.core.state import Array, Metrics, State
from runnel.envs.curricula.uniform import UniformTasks, ended_episodes, scaled

KEPT = 5_000
"""Episodes among which the nearest task is looked for: the last ones."""
PASSES, ENOUGH, SMALLEST_VARIANCE = 100, 1e-3, 1e-4
"""Most steps of expectation maximisation, the gain in log-likelihood an episode below which it ends, and what is added to
variances of tasks in [0, 1]."""


class GaussianTasks(UniformTasks):
    """Draws from a Gaussian of the mixture, chosen by its progress; from the whole space with probability `explore`, and
    before the first fit."""

    def __init__(self, space: TaskSpace, *, seed: int, explore: float) -> None:
        super().__init__(space, seed=seed)
        self._explore = explore

    def draw(self, rng: np.random.Generator, history: Mapping[str, Tensor]) -> Array:
        weights = history["weights"].numpy()
        if rng.random() < self._explore or not weights.any():
            return super().draw(rng, history)
        part = rng.choice(len(weights), p=weights / weights.sum())
        noise = rng.standard_normal(history["means"].shape[1])
        params: Array = history["means"][part].numpy() + history["scales"][part].numpy() @ noise
        return params.clip(0.0, 1.0)


class ProgressHistory:
    """A `Curriculum`: tasks and returns of the last episodes, and the mixture that is fitted to the newest of them."""

    def __init__(self, space: TaskSpace, *, seed: int, fit_every: int, max_gaussians: int) -> None:
        self._space, self._seed, self._fit_every, self._most = space, seed, fit_every, max_gaussians
        self.count = 0
        """Episodes since the start. Number i is kept in place i modulo `KEPT`."""
        self._episodes = {"params": np.zeros((KEPT, space.size)), "returns": np.zeros(KEPT), "progress": np.zeros(KEPT)}
        d = space.size
        self._mixture = {"weights": np.zeros(max_gaussians), "means": np.zeros((max_gaussians, d))}
        self._mixture["scales"] = np.zeros((max_gaussians, d, d))

    def see(self, segments: Mapping[str, Sequence[Segment]], batch: Batch) -> Metrics:
        for params, total in ended_episodes(segments):
            self.add(scaled(params, self._space), total)
        if not self.count:
            return {}
        _, progress = self._newest()
        return {"tasks/progress": float(progress.mean()), "tasks/gaussians": float((self._mixture["weights"] > 0).sum())}

    def add(self, params: Array, total: float) -> None:
        """Take in an episode of the task `params` `[d]`, in [0, 1]."""
        known, place = min(self.count, KEPT), self.count % KEPT
        progress = 0.0
        if known:
            distance = ((self._episodes["params"][:known] - params) ** 2).sum(axis=1)
            nearest = np.flatnonzero(distance == distance.min())
            newest = nearest[((place - 1 - nearest) % KEPT).argmin()]
            progress = abs(total - float(self._episodes["returns"][newest]))
        for name, value in (("params", params), ("returns", total), ("progress", progress)):
            self._episodes[name][place] = value
        self.count += 1
        if self.count % self._fit_every == 0:
            self._fit()

    def _newest(self) -> tuple[Array, Array]:
        """Tasks and progress of the last `fit_every` episodes, oldest first."""
        places = np.arange(max(self.count - min(self._fit_every, KEPT), 0), self.count) % KEPT
        return self._episodes["params"][places], self._episodes["progress"][places]

    def _fit(self) -> None:
        """Fit mixtures of 2 and more Gaussians to the last episodes, and take the one that Akaike's criterion prefers."""
        params, progress = self._newest()
        top = progress.max()
        data = np.column_stack([params, progress / top if top > 0 else progress])
        seeds = ((k, make_rng(self._seed, "gmm", self.count, k)) for k in range(2, self._most + 1))
        best = min((fit_mixture(data, k, rng) for k, rng in seeds), key=lambda found: found.criterion)
        num, d = len(best.means), self._space.size
        for column in self._mixture.values():
            column[:] = 0.0
        self._mixture["weights"][:num] = best.means[:, d].clip(min=0.0)
        self._mixture["means"][:num] = best.means[:, :d]
        self._mixture["scales"][:num] = np.linalg.cholesky(best.covariances[:, :d, :d])

    def history(self) -> Mapping[str, Tensor]:
        return {name: torch.from_numpy(column) for name, column in self._mixture.items()}

    def snapshot(self) -> State:
        known = min(self.count, KEPT)
        episodes = {name: column[:known].copy() for name, column in self._episodes.items()}
        return {**episodes, "mixture": {name: column.copy() for name, column in self._mixture.items()}, "count": self.count}

    def restore(self, state: State) -> None:
        self.count = int(state["count"])
        for name, column in self._episodes.items():
            column[: min(self.count, KEPT)] = np.asarray(state[name])
        for name, column in self._mixture.items():
            column[:] = np.asarray(state["mixture"][name])


@dataclass(frozen=True)
class Mixture:
    """A mixture of Gaussians: `means` `[k, D]`, `covariances` `[k, D, D]`, and Akaike's criterion (smaller is better)."""

    means: Array
    covariances: Array
    criterion: float


def fit_mixture(data: Array, num: int, rng: np.random.Generator) -> Mixture:
    """A mixture of `num` Gaussians by expectation maximisation, from points of the data as first means. `[n, D]`"""
    n, size = data.shape
    means = data[rng.choice(n, num, replace=False)]
    spread = np.eye(size) * data.var(axis=0) + np.eye(size) * SMALLEST_VARIANCE
    covariances, shares, before = np.repeat(spread[None], num, axis=0), np.full(num, 1.0 / num), -np.inf
    for _ in range(PASSES):
        joint = np.log(shares) + _log_densities(data, means, covariances)
        whole = np.logaddexp.reduce(joint, axis=1)
        if whole.mean() - before < ENOUGH:
            break
        before = whole.mean()
        belongs = np.exp(joint - whole[:, None])
        weight = belongs.sum(axis=0) + 1e-10
        shares, means = weight / weight.sum(), belongs.T @ data / weight[:, None]
        apart = data[:, None] - means
        covariances = np.einsum("nk,nki,nkj->kij", belongs, apart, apart) / weight[:, None, None]
        covariances += np.eye(size) * SMALLEST_VARIANCE
    likelihood = np.logaddexp.reduce(np.log(shares) + _log_densities(data, means, covariances), axis=1).sum()
    parameters = num - 1 + num * size + num * size * (size + 1) / 2
    return Mixture(means, covariances, float(2 * parameters - 2 * likelihood))


def _log_densities(data: Array, means: Array, covariances: Array) -> Array:
    """`[n, D], [k, D], [k, D, D] -> [n, k]`"""
    lower = np.linalg.cholesky(covariances)
    apart = np.linalg.solve(lower, (data[:, None] - means).transpose(1, 2, 0))  # [k, D, n]
    logdet = 2 * np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
    found: Array = -0.5 * ((apart**2).sum(axis=1).T + logdet + data.shape[1] * np.log(2 * np.pi))
    return found
