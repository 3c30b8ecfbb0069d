"""MASAC from replay: SAC for a team with continuous actions, by actors of what each agent sees and critics of all of it.

runnel train masac --env pettingzoo:mpe2.simple_spread_v3 --env-kwargs '{"continuous_actions": true}' --num-envs 8
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import runnel as rl


@dataclass(frozen=True)
class Config(rl.graphs.TeamReplayConfig):
    """MASAC (agents/masac.py): uniformly random actions until `min_fill` steps, then `update_ratio` updates for each step."""

    recurrent: ClassVar[bool] = False
    env: str = "tensor:Meeting"
    """An environment with PettingZoo's parallel or AEC API, all of whose agents have equal spaces, and boxes as actions:
    pettingzoo:FAMILY.NAME, module:Class or path/to/file.py:factory."""
    total_steps: int | None = 100_000
    """Budget in steps of the environment; all agents of an environment take a step together."""
    net: rl.NetConfig = field(default_factory=lambda: rl.NetConfig(hidden=(256, 256), activation="relu"))
    masac: rl.agents.MASACConfig = field(default_factory=rl.agents.MASACConfig)

    def unused(self) -> dict[str, str]:
        """The settings (or groups of them) that this run does not use, each with the reason."""
        found = super().unused() | {"masac.entropy_share": "is of discrete actions; set masac.target_entropy"}
        if not self.masac.auto_temperature:
            found["masac.target_entropy"] = "is what an automatic temperature holds; set masac.auto_temperature"
        if self.masac.share == "none":
            found["masac.agent_id"] = "each agent has an actor of its own"
        return found

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot work together."""
        super().check()
        self.masac.check()


def build(c: Config) -> rl.Experiment:
    """Actors write `trajectories`, rows of which are environments; the buffer turns them into `replay` batches."""
    task = rl.graphs.JointTask(c, algorithm="masac")

    def network() -> rl.nets.TeamGaussianActor:
        return c.masac.network(task.spec, task.agent_spec, c.net, num_agents=len(task.agents), seed=c.seed)

    def learner(ranks: rl.Collective) -> rl.agents.MASACLearner:
        critic = rl.nets.QEnsemble(task.spec, c.net, copies=2, seed=c.seed)
        return rl.agents.MASACLearner(c.masac, network(), critic, seed=c.seed, collective=ranks, device=c.device)

    return rl.replay_graph(c, task, network=network, learner=learner, batch_size=c.masac.batch_size, gamma=c.masac.gamma)
