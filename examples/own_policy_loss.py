"""PPO with another policy loss: a subclass that overrides one method, and the recipe `ppo` around it.

runnel train examples/own_policy_loss.py --env CartPole-v1 --total-steps 30000
"""

import runnel as rl
from runnel.recipes import ppo

Config = ppo.Config


class SPO(rl.agents.PPOLearner):
    """Simple policy optimisation (Xie et al. 2024, arXiv:2401.16025): a penalty on the ratio instead of PPO's clip."""

    def policy_loss(self, logprob, rows, count):
        ratio, advantage = (logprob - rows["logprob"]).exp(), rows["advantage"]
        penalty = advantage.abs() * (ratio - 1).square() / (2 * self.config.clip_range)
        return rl.losses.Loss((penalty - ratio * advantage).sum() / count)


def build(c):
    return ppo.build(c, learner=SPO)
