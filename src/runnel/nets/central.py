"""Central critics, of each policy or of the whole team: they read its global state, of which a policy sees only its part (Yu et
al. 2022, arXiv:2103.01955, sec. 3). And a scale on which they learn returns of any size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from runnel.core.contracts.learning import Collective
from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.core.trajectories import AGENT, CLOCK, SHARED
from runnel.nets.actor_critic import ActorBody, ActorCritic, PrivilegedBody
from runnel.nets.convolutions import is_image
from runnel.nets.entities import entity_sets, make_torso
from runnel.nets.layers import MLP, NetConfig, RunningMeanStd


def central_body(env_spec: EnvSpec, config: NetConfig, *, seed: int, agent_state: bool = True) -> CentralBody:
    """A policy of what an agent sees, and a critic of the global state in `env_spec` (`shared/...`).

    With `agent_state` the critic also reads what the agent itself sees and which agent it is (the agent-specific state of the
    paper, sec. 5.2). Without, it reads the same for all agents, and gives them the same value.
    """
    config.check()
    critic_obs = env_spec.obs if agent_state else state_of(env_spec)
    return CentralBody(env_spec, config, seed=seed, critic_obs=critic_obs)


def state_of(env_spec: EnvSpec) -> dict[str, ArraySpec]:
    """The leaves of the global state in `env_spec`, which are the same for all agents of an environment."""
    return {key: leaf for key, leaf in env_spec.obs.items() if key.startswith(SHARED) and key not in (AGENT, CLOCK)}


def lone_actor(env_spec: EnvSpec, config: NetConfig, *, seed: int, normalise_obs: bool = False) -> ActorCritic:
    """A policy of what an agent sees, without a critic; `env_spec` may hold a global state, which it does not read."""
    seen = replace(env_spec, obs=config.policy_obs(env_spec.obs))
    return ActorCritic(seen, ActorBody(seen, config, seed=seed), normalise_obs=normalise_obs)


class StateCritic(nn.Module):
    """The critic of a whole team: the leaves `obs` of a global state, `[N, *shape]`, to `num_outputs` numbers each, `[N, K]`.

    With `normalise` floats are normalised by running statistics of its own.
    """

    def __init__(
        self,
        obs: Mapping[str, ArraySpec],
        config: NetConfig,
        *,
        seed: int,
        normalise: bool = False,
        num_outputs: int = 1,
        num_extra: int = 0,
    ) -> None:
        super().__init__()
        self.obs = dict(obs)
        if not any(map(is_image, obs.values())):
            config = replace(config, channels="auto")  # what agents see may be images all the same
        if not entity_sets(obs):
            config = replace(config, entities="none")
        self.torso = make_torso(obs, config, seed=make_seed(seed, "critic", "torso"), critic=True)
        width, settled = self.torso.width + num_extra, self.torso.settle(config)
        self.critic = MLP(width, num_outputs, config=settled, head_gain=1.0, seed=make_seed(seed, "critic"))
        floats = {key: leaf for key, leaf in obs.items() if leaf.dtype.is_floating_point and key not in self.torso.sets}
        statistics = nn.ModuleDict({key: RunningMeanStd(leaf.shape) for key, leaf in floats.items()} if normalise else {})
        self.normalisers = cast(Mapping[str, RunningMeanStd], statistics)

    def forward(self, state: Mapping[str, Tensor], extra: Tensor | None = None) -> Tensor:
        """Leaves `[N, *shape]`, and `num_extra` further numbers of each row `[N, X]`, to `[N, K]`."""
        seen = {key: self.normalisers[key](state[key]) if key in self.normalisers else state[key] for key in self.obs}
        features = self.torso(seen)
        out: Tensor = self.critic(features if extra is None else torch.cat([features, extra], dim=-1))
        return out

    def update_statistics(self, state: Mapping[str, Tensor], collective: Collective) -> None:
        """Add the rows of `state` to the running statistics, where normalisation is on."""
        for key, normaliser in self.normalisers.items():
            normaliser.update(state[key], collective)


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

    def __init__(self, *, beta: float = 0.99999) -> None:
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


class CentralBody(PrivilegedBody):
    """A policy, a central critic, and the scale on which that critic speaks: a run that starts from the parameters of another
    (`init_from`) gets the critic with its scale, without which its values would mean something else."""

    def __init__(
        self, env_spec: EnvSpec, config: NetConfig, *, seed: int, critic_obs: Mapping[str, ArraySpec] | None = None
    ) -> None:
        super().__init__(env_spec, config, seed=seed, critic_obs=critic_obs)
        self.value_norm = ValueNorm()
