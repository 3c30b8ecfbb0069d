"""QMIX from replay: a team that is paid together learns what each agent's action is worth to all, by a network of its state.

runnel train qmix --env pettingzoo:mpe2.simple_spread_v3 --num-envs 8
runnel train qmix --env my_game.py:MyGame --team-reward sum
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.graphs.TeamReplayConfig):
    """QMIX (agents/qmix.py): actors fill a replay buffer with what teams did; it makes `update_ratio` batches for each step."""

    env: str = "tensor:TwoStep"
    """An environment with PettingZoo's parallel or AEC API, all of whose agents have equal spaces: pettingzoo:FAMILY.NAME,
    module:Class or path/to/file.py:factory; tensor:Spread plays all its worlds at once."""
    total_steps: int | None = 100_000
    """Budget in steps of the environment; all agents of an environment take a step together."""
    net: rl.NetConfig = field(default_factory=lambda: rl.NetConfig(hidden=(64, 64), activation="relu"))
    qmix: rl.agents.QMIXConfig = field(default_factory=rl.agents.QMIXConfig)

    def unused(self) -> dict[str, str]:
        """The settings (or groups of them) that this run does not use, each with the reason."""
        found = super().unused() | self.qmix.unused("qmix")
        if self.qmix.mixer == "none":
            found["team_reward"] = "each agent learns from what it is paid itself"
        if self.net.core == "none":
            found["qmix.burn_in"] = "is of a memory; set net.core"
        if self.net.core == "none" or not self.replay.prioritised:
            found["qmix.eta"] = "is of priorities of sequences; set net.core and replay.prioritised"
        return found

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot work together."""
        super().check()
        self.qmix.check()
        if self.qmix.burn_in >= self.num_steps:
            raise rl.ConfigError(
                "qmix.burn_in", self.qmix.burn_in, f"must leave some of num_steps = {self.num_steps} to learn from"
            )


def build(c: Config) -> rl.Experiment:
    """Actors write `trajectories`, rows of which are environments; the buffer turns them into `replay` batches."""
    mixer = c.qmix.mixer
    algorithm, alone = {"none": "independent_q"}.get(mixer, mixer), mixer == "none"
    task = rl.graphs.JointTask(c, algorithm=algorithm, global_state=mixer == "qmix", own_rewards=alone)

    def network() -> rl.nets.TeamQNet:
        return c.qmix.network(task.spec, task.agent_spec, c.net, num_agents=len(task.agents), seed=c.seed)

    def learner(ranks: rl.Collective) -> rl.agents.QMIXLearner:
        return rl.agents.QMIXLearner(c.qmix, network(), collective=ranks, device=c.device)

    return rl.replay_graph(c, task, network=network, learner=learner, batch_size=c.qmix.batch_size, gamma=c.qmix.gamma)
