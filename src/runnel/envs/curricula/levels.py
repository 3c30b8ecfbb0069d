"""Prioritised level replay (PLR, Jiang, Grefenstette and Rocktäschel 2021, arXiv:2010.03934).

A task on which the critic errs much is one from which there is still something to learn. So tasks are scored by the mean size
of their advantages, and those with high scores, or that were not played for long, are played again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from runnel.core.errors import DataError
from runnel.core.records import Batch, Segment
from runnel.core.spaces import TaskSpace
from runnel.core.state import Array, Metrics, State
from runnel.core.trajectories import TASK_ID, TASK_PARAMS
from runnel.envs.curricula.uniform import UniformTasks, scaled


class ReplayedLevels(UniformTasks):
    """Plays a task of the memory again with probability `replay`, once half of the memory is full; else a new one."""

    def __init__(self, space: TaskSpace, *, seed: int, replay: float) -> None:
        super().__init__(space, seed=seed)
        self._replay = replay

    def draw(self, rng: np.random.Generator, history: Mapping[str, Tensor]) -> Array:
        num, room = int(history["num"]), len(history["shares"])
        if rng.random() >= self._replay or 2 * num < room:
            return super().draw(rng, history)
        shares = history["shares"][:num].numpy().cumsum()
        chosen = min(int(np.searchsorted(shares, rng.random() * shares[-1], side="right")), num - 1)
        params: Array = history["params"][chosen].numpy()
        return params


class LevelHistory:
    """A `Curriculum`: the memory of tasks, with the shares in which they are played again.

        score_i = mean |A_t| over the steps of task i in the last batch that played it    (A by GAE: return minus value)
        P_S = rank_i^(-1/temperature) / sum_j rank_j^(-1/temperature)                     (rank 1 has the highest score)
        P_C = (c - c_i) / sum_j (c - c_j)                                                 (c counts; c_i when i was last played)
        share = (1 - staleness) P_S + staleness P_C

    A new task takes the place of the one with the smallest share, if its score is higher. Tasks are kept scaled to [0, 1].
    """

    def __init__(self, space: TaskSpace, *, capacity: int, temperature: float, staleness: float) -> None:
        self._space, self._temperature, self._staleness = space, temperature, staleness
        self.ids: list[int] = []
        self.params = np.zeros((capacity, space.size))
        self.scores, self.last = np.zeros(capacity), np.zeros(capacity, np.int64)
        self.count = 0

    def see(self, segments: Mapping[str, Sequence[Segment]], batch: Batch) -> Metrics:
        found = [s for some in segments.values() for s in some]
        ids = torch.cat([s.arrays[TASK_ID][:-1] for s in found], dim=1).cpu().numpy()
        params = torch.cat([s.arrays[TASK_PARAMS][:-1] for s in found], dim=1).cpu().numpy()
        errors = advantage_sizes(batch, *ids.shape)
        _, first, task, counts = np.unique(ids, return_index=True, return_inverse=True, return_counts=True)
        scores = np.bincount(task.ravel(), errors.ravel()) / counts
        for place in np.argsort(first):  # in the order in which they were first played
            at = np.unravel_index(first[place], ids.shape)
            self._take(int(ids[at]), scaled(params[at].astype(np.float64), self._space), float(scores[place]))
        num = len(self.ids)
        return {"tasks/levels": float(num), "tasks/score": float(self.scores[:num].mean())}

    def _take(self, task_id: int, params: Array, score: float) -> None:
        self.count += 1
        if task_id in self.ids:
            row = self.ids.index(task_id)
        elif len(self.ids) < len(self.scores):
            row = len(self.ids)
            self.ids.append(task_id)
        else:
            row = int(self.shares().argmin())
            if score <= self.scores[row]:
                return
            self.ids[row] = task_id
        self.params[row], self.scores[row], self.last[row] = params, score, self.count

    def shares(self) -> Array:
        """How often each task of the memory is played again. `[n]`"""
        num = len(self.ids)
        rank = np.empty(num)
        rank[np.argsort(-self.scores[:num], kind="stable")] = np.arange(1, num + 1)
        by_score = rank ** (-1.0 / self._temperature)
        waited = (self.count - self.last[:num]).astype(np.float64)
        by_age = waited / waited.sum() if waited.any() else np.full(num, 1.0 / max(num, 1))
        found: Array = (1 - self._staleness) * by_score / by_score.sum() + self._staleness * by_age
        return found

    def history(self) -> Mapping[str, Tensor]:
        shares = torch.zeros(len(self.scores), dtype=torch.float64)
        shares[: len(self.ids)] = torch.from_numpy(self.shares())
        return {"num": torch.tensor(len(self.ids)), "shares": shares, "params": torch.from_numpy(self.params)}

    def snapshot(self) -> State:
        num = len(self.ids)
        arrays = {"params": self.params[:num].copy(), "scores": self.scores[:num].copy(), "last": self.last[:num].copy()}
        return {"ids": list(self.ids), "count": self.count, **arrays}

    def restore(self, state: State) -> None:
        self.ids, self.count = [int(i) for i in state["ids"]], int(state["count"])
        for name in ("params", "scores", "last"):
            getattr(self, name)[: len(self.ids)] = np.asarray(state[name])


def advantage_sizes(batch: Batch, num_steps: int, num_rows: int) -> Array:
    """|return - value| of each step, as the learner computed them before it stepped. `[T, B]`"""
    if not {"return", "value"} <= batch.keys() or batch["value"].numel() != num_steps * num_rows:
        raise DataError(
            "curriculum.kind plr needs a learner with a critic whose batch has value and return of every step (PPO)"
        )
    found = (batch["return"] - batch["value"]).abs().double().cpu()
    return (found.T if found.dim() == 2 else found.view(num_steps, num_rows)).numpy()  # [B, T] of a recurrent network
