"""A policy with options: what it remembers of an episode is which of a few sub-policies it is likely to be in.

The belief over options is recurrent state (`state/belief`). It depends on the history alone: on what was seen and done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.rng import make_seed
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.layers import MLP, NetConfig, Torso
from runnel.ops.distributions import UNIFORM_MARGIN, make_head


class OptionOutputs(NamedTuple):
    """Of each option z: scores of the action, log-probabilities of the next option z', and the value."""

    scores: Tensor
    """`[..., Z, S]`"""
    log_next: Tensor
    """`[..., Z, Z']`"""
    value: Tensor
    """`[..., Z]`"""


class OptionBody(nn.Module):
    """Three perceptrons of one shape over the observation: sub-policies, option policy, critic."""

    def __init__(self, env_spec: EnvSpec, config: NetConfig, *, num_options: int, seed: int) -> None:
        super().__init__()
        self.torso = Torso(env_spec.obs, config, seed=make_seed(seed, "torso"))
        self.num_options, z = num_options, num_options
        sizes = z * make_head(env_spec.action).num_scores, z * z, z
        seeds = [make_seed(seed, name) for name in ("actor", "options", "critic")]
        # the options begin unlike each other: from equal ones no gradient would tell them apart
        config, gains = self.torso.settle(config), (1.0, 1.0, 1.0)
        self.nets = MLP(self.torso.width, sizes, config=config, head_gain=gains, seed=seeds, copies=3)

    def forward(self, obs: Mapping[str, Tensor]) -> OptionOutputs:
        """Normalised obs leaves `[..., *shape]`."""
        scores, following, value = self.nets(self.torso(obs))
        split = (self.num_options, -1)
        return OptionOutputs(scores.unflatten(-1, split), following.unflatten(-1, split).log_softmax(-1), value)


class OptionNet(ActorCritic):
    """Samples an action of the mixture `sum_z belief(z) pi(a | s, z)`, and moves the belief on by Bayes' rule."""

    body: OptionBody

    def __init__(
        self, env_spec: EnvSpec, config: NetConfig, *, num_options: int, seed: int, normalise_obs: bool = False
    ) -> None:
        config.check()
        if config.core != "none" or config.shared or config.critic_only:
            fix = "options are its memory, and its parts share nothing; leave core, shared and critic_only alone"
            raise ConfigError("net", config, fix)
        body = OptionBody(env_spec, config, num_options=num_options, seed=seed)
        super().__init__(env_spec, body, normalise_obs=normalise_obs)
        self.state_spec = {"state/belief": ArraySpec((num_options,))}
        self.noise_size = self.head.noise_size + 1

    @staticmethod
    def _is_own(body: nn.Module) -> bool:
        return False

    def outputs(self, obs: Mapping[str, Tensor]) -> OptionOutputs:
        """All that the network says of obs leaves `[..., *shape]`."""
        found: OptionOutputs = self.body(self.observe(obs))
        return found

    def logprobs(self, scores: Tensor, action: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`log pi(a | s, z)` and the entropy of `pi(. | s, z)` of each option `[..., Z]`, by their scores `[..., Z, S]`."""
        num_dims = action.dim() - len(self.env_spec.action.shape)
        action = action.unsqueeze(num_dims).expand(*action.shape[:num_dims], scores.shape[-2], *action.shape[num_dims:])
        return self.evaluate_scores(scores, action, None if mask is None else mask.unsqueeze(-2))

    @staticmethod
    def start(belief: Tensor) -> Tensor:
        """`belief` `[..., Z]`, or the uniform one where an episode begins (state is 0 there)."""
        return torch.where(belief.sum(-1, keepdim=True) > 0.0, belief, 1.0 / belief.shape[-1])

    @staticmethod
    def move(belief: Tensor, logprob: Tensor, log_next: Tensor) -> tuple[Tensor, Tensor]:
        """The belief after an action, and the action's log-probability under the mixture.

            log alpha = log sum_z belief(z) pi(a | s, z),  belief'(z') = sum_z belief(z) pi(a | s, z) psi(z' | s, z) / alpha

        `[..., Z], [..., Z], [..., Z, Z'] -> [..., Z'], [...]`
        """
        joint = belief.log() + logprob
        log_alpha = joint.logsumexp(-1)
        posterior = (joint - log_alpha.unsqueeze(-1)).exp()
        return (posterior.unsqueeze(-1) * log_next.exp()).sum(-2), log_alpha

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """`action` `[B, *action.shape]`, its log-probability under the mixture `[B]`, and the next belief.

        Greedy: the best action of the likeliest option."""
        out, mask, belief = self.outputs(rows), rows.get("action_mask"), self.start(rows["state/belief"])
        if greedy:
            option = belief.argmax(-1)
        else:
            cdf = belief.cumsum(-1)
            u = rows["noise"][:, :1].clamp(max=1.0 - UNIFORM_MARGIN) * cdf[:, -1:]
            option = torch.searchsorted(cdf, u, right=True).squeeze(-1)
        scores = out.scores[torch.arange(len(option), device=option.device), option]
        if greedy:
            action, _ = self.head.mode(scores, mask, self.log_std)
        else:
            action, _ = self.head.sample(scores, rows["noise"][:, 1:], mask, self.log_std)
        logprob, _ = self.logprobs(out.scores, action, mask)
        following, log_alpha = self.move(belief, logprob, out.log_next)
        return Batch({"action": action, "logprob": log_alpha, "state/belief": following})
