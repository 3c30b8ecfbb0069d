"""DQN from replay: double Q-learning, for environments with discrete actions; the options of Rainbow are settings.

runnel train dqn --env CartPole-v1
runnel train dqn --dqn.head c51 --dqn.dueling --replay.prioritised --replay.n-step 3
runnel train dqn --net.core lstm --dqn.burn-in 8 --dqn.batch-size 16

CartPole-v1, 500,000 steps, settings of the zoo, 5 seeds: greedy return 498.7 (495.6 to 501.8). LunarLander-v3, 1,000,000 steps:
274 (262.8 to 285.2). All results: docs/evidence/results.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.ReplayEnvConfig):
    """DQN (agents/dqn.py): actors fill a replay buffer, which makes `update_ratio` batches for each step."""

    update_ratio: float = 0.25
    """Number of updates for each environment step. Actors or learner wait to keep this ratio, on every launcher."""
    total_steps: int | None = 500_000
    """Budget in steps of the environment."""
    net: rl.NetConfig = field(default_factory=lambda: rl.NetConfig(hidden=(120, 84), activation="relu"))
    dqn: rl.agents.DQNConfig = field(default_factory=rl.agents.DQNConfig)
    replay: rl.ReplayConfig = field(default_factory=lambda: rl.ReplayConfig(prioritised=False))

    def unused(self) -> dict[str, str]:
        """The settings (or groups of them) that this run does not use, each with the reason."""
        atoms = ("num_atoms", "v_min", "v_max") if self.dqn.head == "value" else ()
        found = {f"dqn.{name}": "is of values as a distribution; set dqn.head to c51 or hl_gauss" for name in atoms}
        if self.dqn.head != "value":
            found["dqn.huber"] = "is of the loss of dqn.head value; a distribution has a cross-entropy"
        if self.dqn.head != "hl_gauss":
            found["dqn.sigma"] = "is of dqn.head hl_gauss"
        if self.net.core == "none" or not self.replay.prioritised:
            found["dqn.eta"] = "is of priorities of sequences; set net.core and replay.prioritised"
        found["net.critic_only"] = "the network that learns is the one that acts; ppo, sac and td3 have a critic beside it"
        return super().unused() | found

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot work together."""
        super().check()
        self.dqn.check()
        if self.dqn.burn_in and (self.net.core == "none" or self.dqn.burn_in >= self.num_steps):
            raise rl.ConfigError(
                "dqn.burn_in", self.dqn.burn_in, "is for net.core gru or lstm, and must leave some of num_steps to learn from"
            )


def build(c: Config, learner: type[rl.agents.DQNLearner] = rl.agents.DQNLearner) -> rl.Experiment:
    """Actors write `trajectories`, the buffer turns them into `replay` batches, the trainer sends priorities back.
    `learner` may be a variant of DQN."""
    task = rl.EnvTask(c.env, c, kwargs=c.env_kwargs)
    if task.spec.action.kind != "discrete":
        raise rl.ConfigError("env", c.env, "DQN needs discrete actions; use ppo or sac for this environment")

    def network() -> rl.nets.QNet:
        return c.dqn.network(task.spec, c.net, seed=c.seed)

    def single(ranks: rl.Collective) -> rl.agents.DQNLearner:
        return learner(c.dqn, network(), collective=ranks, device=c.device)

    return rl.replay_graph(c, task, network=network, learner=single, batch_size=c.dqn.batch_size, gamma=c.dqn.gamma)
