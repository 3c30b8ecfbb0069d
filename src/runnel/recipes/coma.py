"""COMA: agents that are paid together, each credited with what its own action changed, by a critic that knows what all do.

runnel train coma --env my_game.py:MyGame
runnel train coma --env my_game.py:MyGame --teams each
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import runnel as rl


@dataclass(frozen=True)
class Config(rl.graphs.TeamConfig):
    """COMA (agents/coma.py) for a team that chooses among a few actions, on `num_actors` x `num_envs` environments, `num_steps`
    steps of each per update."""

    total_steps: int | None = 100_000
    """Budget in steps of the environment; all agents of an environment take a step together."""
    num_steps: int = rl.core.bounded(32, at_least=2)
    """Steps of each environment in one update; the last one is what those before it bootstrap from."""
    coma: rl.agents.COMAConfig = field(default_factory=rl.agents.COMAConfig)

    def settle(self) -> tuple[rl.RunConfig, list[str]]:
        """Stored policies by version and checksum, so that a resumed run uses the same."""
        teams, told = rl.run.pin_teams(self.teams)
        return replace(self, teams=teams), told

    def unused(self) -> dict[str, str]:
        """The settings (or groups of them) that this run does not use, each with the reason."""
        nets = dict.fromkeys(("net.core", "net.core_size", "net.shared"), "policies have one critic together, and no memory")
        return super().unused() | nets

    def unused_on(self, spec: rl.core.TeamSpec) -> dict[str, str]:
        """Settings that this run would not read on an environment of `spec`, and why."""
        # beside images the critic reads floats, which are normalised: the flags of who is there, at least
        return {name: why for name, why in super().unused_on(spec).items() if name != "coma.normalise_obs"}

    def check(self) -> None:
        """Raise a `ConfigError` for what cannot work, before anything starts."""
        super().check()
        if self.staleness.mode != "sync":
            fix = "coma does not correct for older data; use sync, or recipe happo"
            raise rl.ConfigError("staleness.mode", self.staleness.mode, fix)


def build(c: Config) -> rl.Experiment:
    """Actors play and write a stream for each policy; an update takes one segment of each actor from every stream."""
    task = rl.graphs.TeamTask(c, stored=rl.run.stored_params, global_state=True, clock=True)
    task.check_common_aim("coma")

    def network(policy: str, spec: rl.core.EnvSpec) -> rl.nets.ActorCritic:
        seed = rl.core.make_seed(c.seed, "team", policy)
        return rl.nets.lone_actor(spec, c.net, seed=seed, normalise_obs=c.coma.normalise_obs)

    def learner(nets: Mapping[str, rl.nets.ActorCritic], ranks: rl.Collective) -> rl.agents.COMALearner:
        agents = {policy: len(side.agents) for policy, side in task.trained.items()}
        critic = rl.nets.StateCritic(
            task.state,
            c.net,
            seed=rl.core.make_seed(c.seed, "team"),
            normalise=c.coma.normalise_obs,
            num_extra=rl.agents.extra_size(nets, agents),
            num_outputs=max(net.env_spec.action.num_actions for net in nets.values()),
        )
        return rl.agents.COMALearner(c.coma, nets, critic, agents=agents, collective=ranks, device=c.device)

    return rl.graphs.team_graph(c, task, network=network, together=learner)
