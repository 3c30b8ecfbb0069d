"""ActorCritic: a body that scores observations, made into a policy that acts and can be evaluated.

The body is the network (see `mlp.py` for its contract). This module adds what is the same for every body: normalisation of
observations, the action distribution, and sampling from the noise in the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from runnel.core.batch import Batch
from runnel.core.protocols import Collective
from runnel.core.spaces import EnvSpec
from runnel.nets.mlp import Body
from runnel.ops import distributions as dist
from runnel.ops.normalise import RunningMeanStd


class ActorCritic(nn.Module):
    """A policy and a critic over `body`, for the observations and the action of `env_spec`."""

    body: Body
    log_std: Tensor
    normalisers: Mapping[str, RunningMeanStd]

    def __init__(self, env_spec: EnvSpec, body: nn.Module, *, normalise_obs: bool = False) -> None:
        super().__init__()
        action = env_spec.action
        self.env_spec, self.noise_size, self.discrete = env_spec, action.noise_size, action.kind == "discrete"
        self.body = cast(Body, body)
        if not self.discrete:
            self.log_std = nn.Parameter(torch.zeros(action.size))
        leaves = {k: leaf for k, leaf in env_spec.obs.items() if leaf.dtype.is_floating_point} if normalise_obs else {}
        statistics = nn.ModuleDict({k: RunningMeanStd(leaf.shape) for k, leaf in leaves.items()})
        self.normalisers = cast(Mapping[str, RunningMeanStd], statistics)
        self._normalises = bool(leaves)

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """Choose actions for `rows`: obs leaves `[B, ...]`, `noise` `[B, noise_size]` (unless greedy), `action_mask` `[B, A]`.

        The mask may be absent. Gives `action` `[B, *action.shape]` (continuous ones unclipped) and `logprob` `[B]`. The
        critic does not run.
        """
        scores = self.body.policy(self._observe(rows))
        if self.discrete:
            scores = dist.mask_logits(scores, rows.get("action_mask"))
            action, logprob = dist.categorical_mode(scores) if greedy else dist.categorical_sample(scores, rows["noise"])
            return Batch(action=action, logprob=logprob)
        log_std = self.log_std
        action, logprob = (
            dist.gaussian_mode(scores, log_std) if greedy else dist.gaussian_sample(scores, log_std, rows["noise"])
        )
        return Batch(action=action.reshape(-1, *self.env_spec.action.shape), logprob=logprob)

    def evaluate(self, obs: Mapping[str, Tensor], action: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Log-probability of `action` `[..., *action.shape]` at obs leaves `[..., *shape]`, and the entropy: `[...]` each."""
        scores = self.body.policy(self._observe(obs))
        if self.discrete:
            return dist.categorical_evaluate(dist.mask_logits(scores, mask), action)
        return dist.gaussian_evaluate(scores, self.log_std, action.reshape(scores.shape))

    def value(self, obs: Mapping[str, Tensor]) -> Tensor:
        """The critic's value. Obs leaves `[..., *shape]` -> `[...]`."""
        return self.body.value(self._observe(obs))

    def update_statistics(self, obs: Mapping[str, Tensor], collective: Collective) -> None:
        """Take the rows of `obs` (`[N, *shape]`) into the running statistics, where normalisation is on."""
        for key, normaliser in self.normalisers.items():
            normaliser.update(obs[key], collective)

    def _observe(self, obs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if not self._normalises:
            return obs
        return {k: self.normalisers[k](obs[k]) if k in self.normalisers else obs[k] for k in self.env_spec.obs}
