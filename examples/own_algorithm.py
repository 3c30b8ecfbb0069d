"""Your own algorithm: a recipe file with its own learner. Here advantage actor-critic (A2C, Mnih et al. 2016).

    runnel train examples/own_algorithm.py --total-steps 40000
    runnel train examples/own_algorithm.py --launcher local --placement.trainers 2
    runnel train examples/own_algorithm.py --help

A learner turns segments into a batch (`prepare`), takes one step (`update`), and says what actors need (`params`). The graph,
environments of every kind, launchers, checkpoints, resume, evaluation and the report come from `rl.on_policy_graph`.
"""

from dataclasses import dataclass

import runnel as rl


@dataclass(frozen=True)
class Config(rl.EnvConfig):
    """A2C: one gradient step on each batch, then new data."""

    on_resume = rl.core.may_change("lr", "gamma")
    num_envs: int = 16
    """Environments of each actor."""
    num_steps: int = 8
    """Steps of each environment in one update."""
    total_steps: int | None = 40_000
    """Budget in steps of the environment."""
    lr: float = 3e-3
    """Learning rate of Adam."""
    gamma: float = 0.99
    """Discount of future rewards."""


class A2C:
    """Consumes `[T, B]` segments, one gradient step a version."""

    def __init__(self, config, net, ranks):
        self.config, self.net, self.ranks = config, net, ranks
        self.optimiser = rl.nets.Adam(net.parameters(), lr=config.lr)

    def prepare(self, segments, *, progress):
        return rl.agents.merge_segments(segments["trajectories"])

    def update(self, batch):
        """L = -log pi(a|s) A + (V - R)^2 / 4 - 0.01 H"""
        scores, values, after = self.net.unroll(batch)  # after: V of what followed each step
        logprob, entropy = self.net.evaluate_scores(scores, batch["action"])
        ends = batch["terminated"], batch["truncated"]  # the first ends the task, the second only the clock
        advantage, returns = rl.ops.gae(batch["rewards/env"], values.detach(), after, *ends, gamma=self.config.gamma, lam=0.95)
        policy, value = -(logprob * advantage).mean(), (values - returns).square().mean() / 2
        loss = policy + 0.5 * value - 0.01 * entropy.mean()
        # of several ranks each has a part of the batch: the sum of these gradients is that of the whole
        norm = self.optimiser.step(loss / self.ranks.world_size, max_norm=0.5, collective=self.ranks)
        numbers = {"loss/policy": policy, "loss/value": value, "entropy": entropy.mean(), "grad_norm": norm}
        return rl.Update({name: number.item() for name, number in numbers.items()})

    def params(self):
        return self.net.state_dict()

    def state_dict(self):
        net = {k: v.clone() for k, v in self.net.state_dict().items()}  # copies: the run goes on while it is written
        return {"net": net, "optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state):
        self.net.load_state_dict(state["net"])
        self.optimiser.load_state_dict(state["optimiser"])


def build(c):
    """Actors play and write `trajectories`; an update takes one segment of each actor."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)

    def network():
        return rl.nets.ActorCritic(task.spec, rl.nets.build_body(task.spec, c.net, seed=c.seed))

    return rl.on_policy_graph(c, task, network=network, learner=lambda ranks: A2C(c, network(), ranks))
