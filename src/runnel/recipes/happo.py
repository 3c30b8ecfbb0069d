"""HAPPO: agents with policies of their own, updated one after the other, each by what those before it have become.

runnel train happo --env my_game.py:MyGame
runnel train happo --env my_game.py:MyGame --teams "scout=scout" "digger_.*=digger"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import runnel as rl


@dataclass(frozen=True)
class Config(rl.graphs.TeamConfig):
    """HAPPO (agents/happo.py) for a team that is paid together, on `num_actors` x `num_envs` environments, `num_steps` steps of
    each per update."""

    total_steps: int | None = 100_000
    """Budget in steps of the environment; all agents of an environment take a step together."""
    teams: tuple[str, ...] = ("each",)
    """Which policy serves which agents, as for `ippo`; a policy for each if nothing else is said. Agents that share one all the
    same are updated at once."""
    happo: rl.agents.HAPPOConfig = field(default_factory=rl.agents.HAPPOConfig)

    def settle(self) -> tuple[rl.RunConfig, list[str]]:
        """Stored policies by version and checksum, so that a resumed run uses the same."""
        teams, told = rl.run.pin_teams(self.teams)
        return replace(self, teams=teams), told

    def unused(self) -> dict[str, str]:
        """The settings (or groups of them) that this run does not use, each with the reason."""
        nets = dict.fromkeys(("net.core", "net.core_size", "net.shared"), "policies have one critic together, and no memory")
        return super().unused() | self.happo.unused("happo", fresh=self.staleness.mode == "sync") | nets

    def unused_on(self, spec: rl.core.TeamSpec) -> dict[str, str]:
        """Settings that this run would not read on an environment of `spec`, and why."""
        # beside images the critic reads floats, which are normalised: the flags of who is there, at least
        return {name: why for name, why in super().unused_on(spec).items() if name != "happo.normalise_obs"}

    def check(self) -> None:
        """Raise a `ConfigError` for what cannot work, before anything starts."""
        super().check()
        rl.graphs.check_in_step(self)
        moments, parts = self.batch_steps // self.placement.trainers, self.happo.num_minibatches
        if parts > moments:
            fix = f"each minibatch needs a moment, and an update has {moments}; use at most that, or more num_steps or num_envs"
            raise rl.ConfigError("happo.num_minibatches", parts, fix)


def build(c: Config) -> rl.Experiment:
    """Actors play and write a stream for each policy; an update takes one segment of each actor from every stream."""
    task = rl.graphs.TeamTask(c, stored=rl.run.stored_params, global_state=True, clock=True)
    task.check_common_aim("happo")

    def network(policy: str, spec: rl.core.EnvSpec) -> rl.nets.ActorCritic:
        seed = rl.core.make_seed(c.seed, "team", policy)
        return rl.nets.lone_actor(spec, c.net, seed=seed, normalise_obs=c.happo.normalise_obs)

    def learner(nets: Mapping[str, rl.nets.ActorCritic], ranks: rl.Collective) -> rl.agents.HAPPOLearner:
        state, seed = task.state, rl.core.make_seed(c.seed, "team")
        critic = rl.nets.StateCritic(state, c.net, seed=seed, normalise=c.happo.normalise_obs)
        return rl.agents.HAPPOLearner(c.happo, nets, critic, seed=seed, collective=ranks, device=c.device)

    return rl.graphs.team_graph(c, task, network=network, together=learner)
