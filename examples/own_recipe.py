"""Your own recipe on top of one of ours: another task, other defaults, one more field.

runnel train examples/own_recipe.py
runnel train examples/own_recipe.py --dims 3 --ppo.lr 1e-3
runnel train examples/own_recipe.py --dry-run
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar

import runnel as rl
from runnel.recipes import ppo


@dataclass(frozen=True)
class Config(ppo.Config):
    """PPO that pushes a point to the origin: continuous actions, normalised observations."""

    on_resume: ClassVar[rl.core.OnResume] = rl.core.stays("dims", why="a run is of one task")
    env: str = "runnel.envs.toy:PointMass"
    """The environment."""
    dims: int = 2
    """Dimensions of the point; becomes an argument of the environment."""
    num_envs: int = 16
    """Environments of each actor."""
    num_steps: int = 40
    """Steps of each environment in one segment: two episodes."""
    total_steps: int | None = 20_000
    """Budget in steps of the environment."""
    ppo: rl.agents.PPOConfig = field(
        default_factory=lambda: rl.agents.PPOConfig(gamma=0.9, num_minibatches=4, normalise_obs=True)
    )
    eval: rl.EvalConfig = field(default_factory=lambda: rl.EvalConfig(every=8, episodes=20))

    def check(self) -> None:
        """Raise a `ConfigError` that names the field, the value and the fix, before anything starts."""
        super().check()
        if self.dims < 1:
            raise rl.ConfigError("dims", self.dims, "a point needs at least 1 dimension")


def build(c: Config) -> rl.Experiment:
    """The graph of `ppo`, on an environment with `dims` dimensions."""
    return ppo.build(dataclasses.replace(c, env_kwargs={"dims": c.dims}))
