"""Networks of actor-critic methods that learn from replay: actors, and critics that run as one stack.

Networks work with actions in (-1, 1). `act` scales them to the bounds of the environment's box, so a stream holds the actions
that the environment received. A learner undoes the scaling (`box.normalise`) before it calls a critic. Before the first update
`explore` is 1, and actors play uniformly random actions. `explore` is a buffer, so it is published with the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.rng import make_seed
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.core.trajectories import TEAM_ACTIVE
from runnel.nets.agent_nets import AgentNets, OneAgent, Sharing
from runnel.nets.layers import MLP, NetConfig, NormedMLP, Torso
from runnel.ops.distributions import UNIFORM_MARGIN, categorical_sample, mask_logits, squashed_gaussian

LOG_STD_BOUNDS = (-20.0, 2.0)
"""Of a squashed Gaussian, as in the code of Haarnoja et al. 2018."""


class ActionBox(nn.Module):
    """Scales actions from (-1, 1) to the bounds of the environment and back. Every process knows the bounds, so they are not
    published."""

    centre: Tensor
    radius: Tensor

    def __init__(self, spec: ActionSpec) -> None:
        super().__init__()
        if spec.kind != "continuous":
            raise ConfigError(
                "env",
                spec.kind,
                "this algorithm needs one box of continuous actions; use ppo, or sac or dqn for a discrete one",
            )
        if not all(map(math.isfinite, (*spec.low, *spec.high))):
            fix = "the bounds of the action are infinite; wrap the environment with gymnasium's RescaleAction or ClipAction"
            raise ConfigError("env", (spec.low, spec.high), fix)
        self.shape = spec.shape
        low, high = torch.tensor(spec.low), torch.tensor(spec.high)
        self.register_buffer("centre", (high + low) / 2, persistent=False)
        # an action of one possible value has radius 0, by which `normalise` would divide
        self.register_buffer("radius", ((high - low) / 2).clamp(min=1e-12), persistent=False)

    def scale(self, action: Tensor) -> Tensor:
        """`[B, D]` in (-1, 1) -> `[B, *shape]` within the bounds."""
        return torch.addcmul(self.centre, action, self.radius).reshape(-1, *self.shape)

    def normalise(self, action: Tensor) -> Tensor:
        """`[B, *shape]` -> `[B, D]` in [-1, 1]."""
        return (action.reshape(len(action), -1) - self.centre) / self.radius


class _Net(nn.Module):
    """Torso and perceptron over the leaves `obs` and extra inputs; with `copies` a stack of perceptrons over one torso."""

    def __init__(
        self,
        env_spec: EnvSpec,
        config: NetConfig,
        *,
        obs: Mapping[str, ArraySpec],
        extra: int,
        outputs: int,
        copies: int,
        gain: float,
        seed: int,
        name: str,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        config.check()
        if config.core != "none":
            raise ConfigError("net.core", config.core, "this algorithm learns from single transitions; use none")
        self.env_spec = env_spec
        self.torso = Torso(obs, config, seed=make_seed(seed, name, "torso"))
        width, config = self.torso.width + extra, self.torso.settle(config)
        perceptron = NormedMLP if layer_norm else MLP
        self.head = perceptron(width, outputs, config=config, head_gain=gain, seed=make_seed(seed, name), copies=copies)

    def scores(self, obs: Mapping[str, Tensor], *extra: Tensor, copies: int = 0) -> Tensor:
        """Obs leaves `[B, *shape]` and `extra` `[B, D]` -> `[B, outputs]`. A stack gives `[S, B, outputs]`, by its first
        `copies` networks (0: by all)."""
        features = self.torso(obs)
        return cast(Tensor, self.head(torch.cat([features, *extra], dim=-1) if extra else features, copies=copies))


class _Actor(_Net):
    """The common part of actors: a network with the exploration flag."""

    explore: Tensor

    def __init__(self, env_spec: EnvSpec, config: NetConfig, *, outputs: int, seed: int) -> None:
        seen = config.policy_obs(env_spec.obs)
        super().__init__(env_spec, config, obs=seen, extra=0, outputs=outputs, copies=0, gain=0.01, seed=seed, name="actor")
        self.policy_obs = seen  # a critic may read more (`NetConfig.critic_only`)
        self.noise_size, self.state_spec = env_spec.action.noise_size, cast(Mapping[str, ArraySpec], {})
        self.register_buffer("explore", torch.ones(()))


class SquashedGaussianActor(_Actor):
    """SAC's actor: `a = tanh(x)`, `x ~ N(mean(s), std(s))` (Haarnoja et al. 2018, arXiv:1812.05905, app. C)."""

    def __init__(self, env_spec: EnvSpec, config: NetConfig, *, seed: int) -> None:
        super().__init__(env_spec, config, outputs=2 * env_spec.action.size, seed=seed)
        self.box = ActionBox(env_spec.action)

    def sample(self, obs: Mapping[str, Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
        """Actions in (-1, 1) by normal noise `z` `[B, D]`, and their log-densities: `[B, D], [B]`, both differentiable."""
        mean, log_std = self.scores(obs).chunk(2, dim=-1)
        return squashed_gaussian(mean, log_std.clamp(*LOG_STD_BOUNDS), z)

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """`action` `[B, *shape]` in the environment's units: the mode, or a sample from the request's noise."""
        return Batch(action=self.box.scale(_squashed(self.scores(rows), None if greedy else rows["noise"], self.explore)))


class TeamGaussianActor(AgentNets):
    """SAC's actor for the agents of a team: each draws its own action from what it sees alone, and all of them are one action
    `[B, A * D]`, whose log-density is the sum over those that decide. The action of one that does not is 0."""

    explore: Tensor

    def __init__(
        self,
        env_spec: EnvSpec,
        agent_spec: EnvSpec,
        config: NetConfig,
        *,
        num_agents: int,
        share: Sharing = "all",
        agent_id: bool = True,
        seed: int,
    ) -> None:
        if agent_spec.action.kind != "continuous":
            fix = "masac needs agents with one box of continuous actions each; use qmix or vdn for choices, or mappo"
            raise ConfigError("env", agent_spec.action.kind, fix)
        own = ActionBox(agent_spec.action)

        def make(spec: EnvSpec, seed: int) -> _Net:
            size = 2 * agent_spec.action.size
            return _Net(spec, config, obs=spec.obs, extra=0, outputs=size, copies=0, gain=0.01, seed=seed, name="actor")

        super().__init__(env_spec, agent_spec, make, num_agents=num_agents, share=share, agent_id=agent_id, seed=seed)
        self.box, self._own = ActionBox(env_spec.action), own
        self.noise_size, self.state_spec = env_spec.action.noise_size, cast(Mapping[str, ArraySpec], {})
        self.register_buffer("explore", torch.ones(()))

    def scores(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Means and logarithms of deviations, `[B, A, 2 D]`, of leaves `[B, A, *shape]`."""
        return self.each({key: obs[key] for key in self.keys}, lambda net, rows: cast(_Net, net).scores(rows))

    def sample(self, obs: Mapping[str, Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
        """Actions in (-1, 1) by normal noise `z` `[B, A * D]`, and their log-densities: `[B, A * D], [B]`."""
        mean, log_std = self.scores(obs).chunk(2, dim=-1)
        action, logprob = squashed_gaussian(mean, log_std.clamp(*LOG_STD_BOUNDS), z.view_as(mean))
        active = obs[TEAM_ACTIVE]
        return action.masked_fill(~active.unsqueeze(-1), 0.0).flatten(1), logprob.masked_fill(~active, 0.0).sum(-1)

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """`action` `[B, A, *shape]` in the environment's units: the modes, or samples from the request's noise."""
        scores = self.scores(rows)
        noise = None if greedy else rows["noise"].view(*scores.shape[:2], -1)
        return Batch(action=self.box.scale(_squashed(scores, noise, self.explore).flatten(1)))

    def of_agent(self, agent: int) -> OneAgent:
        """What acts for one agent alone."""

        def act(rows: Batch, greedy: bool) -> Batch:
            net, mine = self.alone(agent, rows)
            scores = cast(_Net, net).scores(mine)
            return Batch(action=self._own.scale(_squashed(scores, None if greedy else rows["noise"], self.explore)))

        return OneAgent(self, act, noise_size=self.agent_spec.action.noise_size)


class CategoricalActor(_Actor):
    """The actor of SAC with discrete actions (Christodoulou 2019, arXiv:1910.07207)."""

    def __init__(self, env_spec: EnvSpec, config: NetConfig, *, seed: int) -> None:
        if env_spec.action.kind != "discrete":
            raise ConfigError("env", env_spec.action.kind, "SAC needs one discrete action or one box; use ppo for several")
        super().__init__(env_spec, config, outputs=env_spec.action.num_actions, seed=seed)

    def logprobs(self, obs: Mapping[str, Tensor], mask: Tensor | None = None) -> Tensor:
        """Log-probability of every action, `[B, A]`. An action that `mask` forbids has probability 0 and a finite one."""
        # finite, so that `p log p` of a forbidden action is 0 and not NaN
        return mask_logits(self.scores(obs), mask).log_softmax(-1).clamp(min=-1e9)

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """`action` `[B]`: the most probable one, or a sample from the request's noise."""
        scores, mask = self.scores(rows), rows.get("action_mask")
        if greedy:
            return Batch(action=mask_logits(scores, mask).argmax(-1))
        action, _ = categorical_sample(mask_logits(scores * (1.0 - self.explore), mask), rows["noise"])
        return Batch(action=action)


class DeterministicActor(_Actor):
    """The actor of DDPG and TD3: `a = tanh(f(s))`, with Gaussian noise while it explores. `noise_scale` is published."""

    noise_scale: Tensor

    def __init__(self, env_spec: EnvSpec, config: NetConfig, *, seed: int) -> None:
        super().__init__(env_spec, config, outputs=env_spec.action.size, seed=seed)
        self.box = ActionBox(env_spec.action)
        self.register_buffer("noise_scale", torch.zeros(()))

    def action(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Actions in (-1, 1), `[B, D]`."""
        return self.scores(obs).tanh()

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """`action` `[B, *shape]` in the environment's units; unless greedy with noise of `noise_scale` (in units of 1)."""
        action = self.action(rows)
        if greedy:
            return Batch(action=self.box.scale(action))
        action = torch.addcmul(action, _normal(rows["noise"]), self.noise_scale).clamp(-1.0, 1.0)
        return Batch(action=self.box.scale(action.lerp(2.0 * rows["noise"] - 1.0, self.explore)))


class QEnsemble(_Net):
    """S critics of one shape in one pass. Continuous: Q(s, a) of a given action; discrete: Q(s, .) of all actions.
    With `layer_norm` their hidden layers are normalised."""

    def __init__(self, env_spec: EnvSpec, config: NetConfig, *, copies: int = 2, layer_norm: bool = False, seed: int) -> None:
        action = env_spec.action
        extra, outputs = (0, action.num_actions) if action.kind == "discrete" else (action.size, 1)
        super().__init__(
            env_spec,
            config,
            obs=env_spec.obs,
            extra=extra,
            outputs=outputs,
            copies=copies,
            gain=1.0,
            seed=seed,
            name="critic",
            layer_norm=layer_norm,
        )

    def q(self, obs: Mapping[str, Tensor], action: Tensor, *, copies: int = 0) -> Tensor:
        """Obs leaves `[B, *shape]`, `action` `[B, D]` in [-1, 1] -> `[S, B]`, by the first `copies` critics (0: by all)."""
        return self.scores(obs, action, copies=copies).squeeze(-1)

    def values(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Obs leaves `[B, *shape]` -> `[S, B, A]`."""
        return self.scores(obs)


class VNet(_Net):
    """V(s): the value of a state."""

    def __init__(self, env_spec: EnvSpec, config: NetConfig, *, seed: int) -> None:
        obs = env_spec.obs
        super().__init__(env_spec, config, obs=obs, extra=0, outputs=1, copies=0, gain=1.0, seed=seed, name="value")

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Obs leaves `[B, *shape]` -> `[B]`."""
        return self.scores(obs).squeeze(-1)


def _squashed(scores: Tensor, noise: Tensor | None, explore: Tensor) -> Tensor:
    """Actions in (-1, 1) of means and logarithms of deviations `[..., 2 D]`: the modes, or samples from uniform noise, which
    are uniform where `explore` is 1."""
    mean, log_std = scores.chunk(2, dim=-1)
    if noise is None:
        return mean.tanh()
    action = torch.addcmul(mean, log_std.clamp(*LOG_STD_BOUNDS).exp(), _normal(noise)).tanh()
    return action.lerp(2.0 * noise - 1.0, explore)


def _normal(noise: Tensor) -> Tensor:
    """Uniform noise in (0, 1) as normal noise."""
    z: Tensor = torch.special.ndtri(noise.clamp(UNIFORM_MARGIN, 1.0 - UNIFORM_MARGIN))
    return z
