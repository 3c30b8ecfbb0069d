"""Evaluates a population: the same number of episodes for each member, and the mean return of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from runnel.core.contracts.evaluation import Clients, EvalResult, Progress
from runnel.envs.vector import VectorEnv
from runnel.eval.runner import MAX_STEPS, EnvEvaluation


class PopulationEvaluation:
    """Plays `episodes` episodes of each of `members`, side by side; `make_vector(n)` makes n environments.

    The result holds the returns of all members. `extra["member/0"]` are those of one member; `extra["best_member"]` and
    `extra["worst_member"]` are the best and the worst mean of a member.
    """

    def __init__(
        self,
        make_vector: Callable[[int], VectorEnv],
        *,
        members: int,
        episodes: int,
        most_envs: int,
        seed: int,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self._members, self._episodes = members, episodes
        width = max(n for n in range(1, min(episodes, most_envs) + 1) if episodes % n == 0)
        total = members * episodes
        self._all = EnvEvaluation(lambda: make_vector(members * width), episodes=total, seed=seed, max_steps=max_steps)

    def run(self, clients: Clients, *, round_index: int, progress: Progress | None = None) -> EvalResult:
        result = self._all.run(clients, round_index=round_index, progress=progress)
        own = self._by_member(result)
        means = [sum(returns) / len(returns) for returns in own if returns]
        extra = {**result.extra, **{f"member/{i}": returns for i, returns in enumerate(own)}}
        return replace(result, extra={**extra, "best_member": [max(means)], "worst_member": [min(means)]})

    def _by_member(self, result: EvalResult) -> list[list[float]]:
        """The returns of each member. A crashed episode takes up one of its places, but has no return."""
        crashed = result.extra.get("crashed", [0.0] * len(result.returns))
        returns, own = iter(result.returns), list[list[float]]()
        for i in range(self._members):
            flags = crashed[i * self._episodes : (i + 1) * self._episodes]
            own.append([next(returns) for flag in flags if not flag])
        return own

    def close(self) -> None:
        self._all.close()
