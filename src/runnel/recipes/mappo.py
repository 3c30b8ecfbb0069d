"""MAPPO: agents that play together learn with a critic that sees the whole game, and act by what each of them sees.

runnel train mappo --env my_game.py:MyGame
runnel train mappo --env my_game.py:MyGame --teams "scout=scout" "digger_.*=digger"
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import runnel as rl


@dataclass(frozen=True)
class Config(rl.graphs.TeamConfig):
    """MAPPO (agents/mappo.py) for each policy of a team, on `num_actors` x `num_envs` environments, `num_steps` steps of each
    per update."""

    total_steps: int | None = 100_000
    """Budget in steps of the environment; all agents of an environment take a step together."""
    ppo: rl.agents.MAPPOConfig = field(default_factory=rl.agents.MAPPOConfig)

    def settle(self) -> tuple[rl.RunConfig, list[str]]:
        """Stored policies by version and checksum, so that a resumed run uses the same."""
        teams, told = rl.run.pin_teams(self.teams)
        return replace(self, teams=teams), told

    def unused(self) -> dict[str, str]:
        """The settings (or groups of them) that this run does not use, each with the reason."""
        why = "the critic reads what the policy must not, so they share nothing; a memory is in recipe ippo"
        nets = dict.fromkeys(("net.core", "net.core_size", "net.shared"), why)
        return super().unused() | self.ppo.unused("ppo", fresh=self.staleness.mode == "sync") | nets

    def unused_on(self, spec: rl.core.TeamSpec) -> dict[str, str]:
        """Settings that this run would not read on an environment of `spec`, and why."""
        # beside images the critic reads floats, which are normalised: those that say which agent a row is, at least
        return {name: why for name, why in super().unused_on(spec).items() if name != "ppo.normalise_obs"}


def build(c: Config) -> rl.Experiment:
    """Actors play and write a stream for each policy; an update takes one segment of each actor from every stream."""
    task = rl.graphs.TeamTask(c, stored=rl.run.stored_params, global_state=True)
    for side in task.trained.values():
        c.ppo.check(c.batch_steps * len(side.agents) // c.placement.trainers)

    def network(policy: str, spec: rl.core.EnvSpec) -> rl.nets.ActorCritic:
        seed = rl.core.make_seed(c.seed, "team", policy)
        body = rl.nets.central_body(spec, c.net, seed=seed, agent_state=c.ppo.agent_state)
        return rl.nets.ActorCritic(spec, body, normalise_obs=c.ppo.normalise_obs)

    def learner(policy: str, net: rl.nets.ActorCritic, ranks: rl.Collective) -> rl.agents.MAPPOLearner:
        seed = rl.core.make_seed(c.seed, "team", policy)
        return rl.agents.MAPPOLearner(c.ppo, net, seed=seed, collective=ranks, device=c.device)

    return rl.graphs.team_graph(c, task, network=network, learner=learner, return_gamma=c.ppo.return_gamma)
