"""Critics of costs: a network for each, beside a policy that has its own critic of the reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from runnel.core.rng import make_seed
from runnel.core.spaces import EnvSpec
from runnel.nets.layers import MLP, NetConfig, Torso


class CostCritics(nn.Module):
    """The value of each of `costs`, by networks that share nothing but convolutions.

    Observations come as the policy's body gets them (`ActorCritic.observe`).
    """

    def __init__(self, env_spec: EnvSpec, config: NetConfig, costs: Sequence[str], *, seed: int) -> None:
        super().__init__()
        self.costs = tuple(costs)
        self.torso = Torso(env_spec.obs, config, seed=make_seed(seed, "cost torso"))
        settled = self.torso.settle(config)
        seeds = [make_seed(seed, "cost critic", name) for name in costs]
        self.nets = MLP(self.torso.width, 1, config=settled, head_gain=1.0, seed=seeds, copies=len(seeds))

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """All values, of obs leaves `[N, *shape]`. `[C, N]`"""
        values: Tensor = self.nets(self.torso(obs)).squeeze(-1)
        return values

    def value(self, obs: Mapping[str, Tensor], index: int) -> Tensor:
        """The value of one cost. `[N]`"""
        return self.nets.one(self.torso(obs), index).squeeze(-1)
