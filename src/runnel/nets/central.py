"""A central critic: it reads the global state of a team, of which the policy sees only its part (Yu et al. 2022,
arXiv:2103.01955, sec. 3). And a scale on which it learns returns of any size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from runnel.core.contracts.learning import Collective
from runnel.core.spaces import EnvSpec
from runnel.core.trajectories import SHARED
from runnel.nets.actor_critic import PrivilegedBody
from runnel.nets.layers import NetConfig


def central_body(env_spec: EnvSpec, config: NetConfig, *, seed: int, agent_state: bool = True) -> PrivilegedBody:
    """A policy of what an agent sees, and a critic of the global state in `env_spec` (`shared/...`).

    With `agent_state` the critic also reads what the agent itself sees and which agent it is (the agent-specific state of the
    paper, sec. 5.2). Without, it reads the same for all agents, and gives them the same value.
    """
    config.check()
    plain = {key: leaf for key, leaf in env_spec.obs.items() if key.startswith(SHARED) and key != f"{SHARED}agent"}
    return PrivilegedBody(env_spec, config, seed=seed, critic_obs=env_spec.obs if agent_state else plain)


class ValueNorm(nn.Module):
    """The scale of returns: a running mean and deviation, so that a critic has targets near 0 and 1 whatever a task pays.

        m <- beta m + (1 - beta) mean(R),  s <- beta s + (1 - beta) mean(R^2),  w <- beta w + (1 - beta)
        mean = m / w,  deviation = sqrt(max(s / w - mean^2, 0.01))

    The value normalisation of MAPPO (arXiv:2103.01955, sec. 5.1), which leaves out the part of PopArt (van Hasselt et al. 2016,
    arXiv:1602.07714) that rescales the last layer. w takes the zeros out of the average with which m and s begin.
    """

    m: Tensor
    s: Tensor
    w: Tensor

    def __init__(self, *, beta: float) -> None:
        super().__init__()
        self.beta = beta
        for name in ("m", "s", "w"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    @property
    def mean(self) -> Tensor:
        """The running mean; 0 before data. `[]`"""
        return torch.where(self.w > 0, self.m / self.w, 0.0)

    @property
    def deviation(self) -> Tensor:
        """The running deviation; 1 before data. `[]`"""
        # bounded below as by the authors: returns that are all equal would be divided by almost 0
        return torch.where(self.w > 0, (self.s / self.w - self.mean.square()).clamp(min=0.01).sqrt(), 1.0)

    def normalise(self, returns: Tensor) -> Tensor:
        """Returns on the scale of the critic. `[...] -> [...]`"""
        return (returns - self.mean.to(returns.dtype)) / self.deviation.to(returns.dtype)

    def denormalise(self, values: Tensor) -> Tensor:
        """What the critic says on the scale of returns. `[...] -> [...]`"""
        return values * self.deviation.to(values.dtype) + self.mean.to(values.dtype)

    @torch.no_grad()
    def update(self, returns: Tensor, collective: Collective) -> None:
        """Add the returns `[N]` of every rank; where there are none at all, nothing changes."""
        x = returns.to(torch.float64)
        num, total, square = collective.all_reduce(torch.stack([x.new_tensor(float(len(x))), x.sum(), x.square().sum()]))
        rows, keep = num.clamp(min=1.0), 1.0 - (1.0 - self.beta) * (num > 0).to(x.dtype)
        for old, new in ((self.m, total / rows), (self.s, square / rows), (self.w, torch.ones_like(rows))):
            old.copy_(keep * old + (1.0 - keep) * new)
