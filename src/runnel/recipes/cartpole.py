"""The demonstration: PPO on CartPole-v1 until the mean return of 100 evaluation episodes is at least 475.

runnel train cartpole
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import runnel as rl
from runnel.recipes import ppo


@dataclass(frozen=True)
class Config(ppo.Config):
    """PPO with values that suit CartPole: small batches, many passes, a decaying rate."""

    num_steps: int = 32
    """Steps of each environment in one segment."""
    total_steps: int | None = 150_000
    """Budget in steps of the environment."""
    compiled: Literal["auto", "on", "off"] = "off"
    """CartPole is solved before compiling would save time. Use `--compiled on` if the kernels are compiled already."""
    ppo: rl.agents.PPOConfig = field(
        default_factory=lambda: rl.agents.PPOConfig(
            lr="linear(1e-3, 0)", gamma=0.98, gae_lambda=0.8, num_epochs=20, num_minibatches=1, entropy_coef=0.0
        )
    )
    eval: rl.EvalConfig = field(default_factory=lambda: rl.EvalConfig(every=20, episodes=100, stop_return=475.0))
    checkpoint: rl.CheckpointConfig = field(default_factory=lambda: rl.CheckpointConfig(every=100))


build = ppo.build
