"""MAT: one transformer chooses for a whole team, agent after agent, each knowing what those before it have chosen.

runnel train mat --env pettingzoo:mpe2.simple_spread_v3
runnel train mat --env my_game.py:MyGame --team-reward sum
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.graphs.JointConfig):
    """MAT (agents/mat.py) for a team that is paid together, on `num_actors` x `num_envs` environments, `num_steps` steps of
    each per update."""

    env: str = "tensor:TwoStep"
    """An environment with PettingZoo's parallel or AEC API, all of whose agents have equal spaces and choose among actions:
    pettingzoo:FAMILY.NAME, module:Class or path/to/file.py:factory; tensor:Spread plays all its worlds at once."""
    total_steps: int | None = 100_000
    """Budget in steps of the environment; all agents of an environment take a step together."""
    ppo: rl.agents.MATConfig = field(default_factory=rl.agents.MATConfig)

    def unused(self) -> dict[str, str]:
        """The settings (or groups of them) that this run does not use, each with the reason."""
        why = "one transformer is policy and critic of all agents, and has no memory"
        nets = dict.fromkeys(("net.core", "net.core_size", "net.shared", "net.critic_only"), why)
        return super().unused() | self.ppo.unused("ppo", fresh=True) | nets

    def check(self) -> None:
        """Raise a `ConfigError` for what cannot work, before anything starts."""
        super().check()
        if self.staleness.mode != "sync":
            fix = "mat does not correct for older data; use sync, or recipe mappo"
            raise rl.ConfigError("staleness.mode", self.staleness.mode, fix)


def build(c: Config) -> rl.Experiment:
    """Actors play and write `trajectories`, rows of which are teams; an update takes one segment of each actor."""
    c.ppo.check(c.batch_steps // c.placement.trainers)
    task = rl.graphs.JointTask(c, algorithm="mat")

    def network() -> rl.nets.TeamTransformer:
        return c.ppo.network(task.spec, task.agent_spec, c.net, seed=c.seed)

    def learner(ranks: rl.Collective) -> rl.agents.MATLearner:
        return rl.agents.MATLearner(c.ppo, network(), seed=c.seed, collective=ranks, device=c.device)

    return rl.on_policy_graph(c, task, network=network, learner=learner, return_gamma=c.ppo.return_gamma)
