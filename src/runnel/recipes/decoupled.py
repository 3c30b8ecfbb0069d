"""Decoupled PPO: asynchronous rollouts with the trust region around a recent policy.

runnel train decoupled --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """Decoupled PPO (llm/algorithms/decoupled.py): up to four versions behind."""

    staleness: rl.StalenessConfig = field(default_factory=lambda: rl.StalenessConfig(mode="window"))
    decoupled: rl.llm.DecoupledConfig = field(default_factory=rl.llm.DecoupledConfig)

    def unused(self) -> dict[str, str]:
        """Settings, or groups of them, that this run would not read, and why."""
        why = "sampling is not cut, so there is one log-probability; set top_k, top_p or min_p"
        return super().unused() | ({} if self.sampling.truncates else {"decoupled.behaviour_from": why})

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot work together."""
        super().check()
        steps = self.learner.num_epochs * self.learner.num_minibatches
        if self.decoupled.proximal == "reuse" and steps > 1:
            fix = f"{steps} optimiser steps a batch need the log-probabilities from before the first; use forward or loglinear"
            raise rl.ConfigError("decoupled.proximal", "reuse", fix)


def build(c: Config) -> rl.Experiment:
    """Actors make completions while the learner trains."""
    return rl.prompt_graph(
        c, lambda task: rl.llm.DecoupledPPO(c.decoupled, channels=task.channels, max_tokens=task.sizes.completion)
    )
