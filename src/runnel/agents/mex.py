"""MEX, model-free: TD3 whose critics prefer to be optimistic (Liu et al. 2023, arXiv:2305.18258, sec. 6 and its code).

Maximise to explore fuses estimation and planning: of all critics that explain the data equally well, take the one that promises
the most. So the loss of the critics is that of TD3, less `eta` times what they promise of the policy:

    L = TD error - eta mean_s sum_i (Q_i(s, mu(s)) - log sum_{a in A(s)} exp Q_i(s, a))
    A(s) = {the action of the data, mu(s'), a uniform one}

The sum over actions keeps the values from growing everywhere alike: what rises is the policy's action beside others. With
`contrast` off it is left out, which is the objective as the theory states it. Actor and targets are TD3's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from runnel.agents.td3 import TD3Config, TD3Learner
from runnel.core.bounds import bounded
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, may_change
from runnel.losses.base import Loss


@dataclass(frozen=True)
class MEXConfig(TD3Config):
    """Hyperparameters of TD3, and of its critics' optimism."""

    on_resume: ClassVar[OnResume] = may_change("eta", "contrast")

    eta: float = bounded(0.001, at_least=0, finite=True)
    """Weight of the critics' promise; 0 is TD3. The paper takes 5e-4 to 1e-2."""
    contrast: bool = True
    """Compare the policy's action with others of the state. False: its value alone."""


class MEXLearner(TD3Learner):
    """Consumes sampled transitions `[B]`, one batch a version, as TD3 does."""

    seed_name = "mex"
    config: MEXConfig

    def critic_loss(self, batch: Batch) -> Loss:
        """The loss of TD3, less `eta` times the promise."""
        loss, promise = super().critic_loss(batch), self.promise(batch)
        return replace(
            loss, value=loss.value - self.config.eta * promise, metrics={**loss.metrics, "promise": promise.detach()}
        )

    def promise(self, batch: Batch) -> Tensor:
        """The mean over states, and the sum over critics, of what they say of the policy's action. `[]`"""
        following = {k: batch["next_" + k] for k in self.actor.env_spec.obs}
        with torch.no_grad():
            action, later = self.actor.action(batch), self.actor.action(following)
            uniform = 2.0 * torch.rand(action.shape, generator=self._generator, device=self.device) - 1.0
        own = self.critic.q(batch, action)
        if not self.config.contrast:
            return own.sum() / self._count(batch)
        others = (self.actor.box.normalise(batch["action"]), later, uniform)
        rivals = torch.stack([self.critic.q(batch, a) for a in others])
        return (own - rivals.logsumexp(0)).sum() / self._count(batch)
