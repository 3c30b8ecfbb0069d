"""Your own network for PPO: a factory `make(env_spec, seed)` whose module has `policy(obs)` and `value(obs)`.

runnel train ppo --network examples/own_network.py:make --total-steps 20000
python examples/own_network.py
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

import runnel as rl


class SharedTrunk(nn.Module):
    """One trunk under both heads. `obs` holds the leaves of `env_spec.obs`, each `[..., *shape]`."""

    def __init__(self, env_spec: rl.core.EnvSpec, width: int = 64) -> None:
        super().__init__()
        self.keys = sorted(env_spec.obs)
        num_inputs = sum(torch.Size(leaf.shape).numel() for leaf in env_spec.obs.values())
        self.trunk = nn.Sequential(
            nn.Linear(num_inputs, width), nn.LayerNorm(width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        )
        self.actor, self.critic = nn.Linear(width, env_spec.action.size), nn.Linear(width, 1)

    def features(self, obs: Mapping[str, Tensor]) -> Tensor:
        return self.trunk(torch.cat([obs[key].float() for key in self.keys], dim=-1))

    def policy(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Logits of a discrete action, or the mean of a continuous one. `[..., action.size]`"""
        return self.actor(self.features(obs))

    def value(self, obs: Mapping[str, Tensor]) -> Tensor:
        """The critic. `[...]`, not `[..., 1]`: that is refused."""
        return self.critic(self.features(obs)).squeeze(-1)


def make(env_spec: rl.core.EnvSpec, seed: int) -> nn.Module:
    """The same weights for the same seed, whatever else drew random numbers before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SharedTrunk(env_spec)


def main(total_steps: int = 20_000, out: str = "runs") -> rl.Run:
    run = rl.train(
        "ppo", env="CartPole-v1", network=make, total_steps=total_steps, num_steps=32, out=out, eval={"episodes": 20}
    )
    print(f"{run.status}: mean return {run.eval['mean']:.1f} over {run.eval['num']} episodes; {run.path}")
    return run


if __name__ == "__main__":
    main()
