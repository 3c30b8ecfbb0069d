"""A variant of SAC in one term: critics that are conservative about actions which the data does not have.

    runnel train examples/conservative_sac.py --env Pendulum-v1 --total-steps 20000

The penalty of conservative Q-learning (CQL, Kumar et al. 2020, arXiv:2006.04779, eq. 4) pushes Q down where the policy and
uniform actions would be valued highest, and up at the actions in the replay memory. Here it learns from its own replay, as SAC.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

import runnel as rl
from runnel.recipes import sac

NUM_ACTIONS = 4
"""Actions that each of policy and uniform distribution draw for a state."""


@dataclass(frozen=True)
class ConservativeConfig(rl.agents.SACConfig):
    """Hyperparameters of SAC, and the weight of the penalty."""

    on_resume: ClassVar[rl.core.OnResume] = rl.core.may_change("conservative_coef")
    conservative_coef: float = 0.1
    """Weight of the penalty; 0 is SAC."""


@dataclass(frozen=True)
class Config(sac.Config):
    """SAC with conservative critics."""

    sac: ConservativeConfig = field(default_factory=ConservativeConfig)


class ConservativeSAC(rl.agents.SACLearner):
    """SAC with `coef sum_i (log sum_a exp Q_i(s, a) - Q_i(s, a_data))` added to the loss of the critics."""

    def critic_loss(self, batch: rl.Batch, temperature: torch.Tensor) -> rl.losses.Loss:
        loss = super().critic_loss(batch, temperature)
        penalty = self.penalty(batch)
        coef = self.config.conservative_coef  # type: ignore[attr-defined]
        return replace(loss, value=loss.value + coef * penalty, metrics=loss.metrics | {"penalty": penalty.detach()})

    def penalty(self, batch: rl.Batch) -> torch.Tensor:
        """Mean over states, sum over critics; the logarithm of the mean importance weight of 2 x NUM_ACTIONS drawn actions."""
        num = len(batch["discount"])
        states = {k: batch[k].repeat_interleave(NUM_ACTIONS, 0) for k in self.actor.env_spec.obs}
        with torch.no_grad():
            own, logprob = self.actor.sample(states, self.draw(num * NUM_ACTIONS))
            uniform = 2.0 * torch.rand(own.shape, generator=self.generators[0], device=own.device) - 1.0
            density = own.shape[-1] * torch.log(torch.tensor(0.5))  # of uniform actions in (-1, 1)
        drawn = [self.critic.q(states, own) - logprob, self.critic.q(states, uniform) - density]
        soft = torch.cat([q.view(len(q), num, NUM_ACTIONS) for q in drawn], -1).logsumexp(-1)
        given = self.critic.q(batch, self.actor.box.normalise(batch["action"]))
        return (soft - given).mean(1).sum() / self.collective.world_size


def build(c: Config) -> rl.Experiment:
    return sac.build(c, learner=ConservativeSAC)
