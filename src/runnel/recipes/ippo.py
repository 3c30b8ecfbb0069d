"""Independent PPO: agents of one environment learn side by side, each policy as if the others were part of the world.

runnel train ippo --env my_game.py:MyGame --teams "red_.*=red" "blue_.*=blue"
runnel train ippo --env my_game.py:MyGame --teams "red_.*=red" "blue_.*=run:runs/first@best#blue"
runnel train ippo --env pettingzoo:mpe2.simple_spread_v3
runnel train ippo --env my_game.py:MyFleet --credit group
runnel train ippo --env my_game.py:MyGame --net.core gru --teams "red_.*=red: 32 steps, burn-in 8" "blue_.*=blue"
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import runnel as rl


@dataclass(frozen=True)
class Config(rl.graphs.TeamConfig):
    """PPO (agents/ppo.py) for each policy of a team, on `num_actors` x `num_envs` environments, `num_steps` steps of each per
    update."""

    on_resume: ClassVar[rl.core.OnResume] = rl.core.stays("credit", why="networks have a critic, or none")

    total_steps: int | None = 100_000
    """Budget in steps of the environment; all agents of an environment take a step together."""
    credit: Literal["critic", "group"] = "critic"
    """What the return of an agent is compared with: what a critic foresees, or the mean of the group of agents that share its
    policy and decide at the same moment (agents/group_ppo.py), for many agents that are paid apart."""
    ppo: rl.agents.PPOConfig = field(default_factory=lambda: rl.agents.PPOConfig(normalise_obs=True))

    def settle(self) -> tuple[rl.RunConfig, list[str]]:
        """Stored policies by version and checksum, so that a resumed run uses the same."""
        teams, told = rl.run.pin_teams(self.teams)
        return replace(self, teams=teams), told

    def unused(self) -> dict[str, str]:
        """The settings (or groups of them) that this run does not use, each with the reason."""
        found = super().unused() | self.ppo.unused("ppo", fresh=self.staleness.mode == "sync")
        if self.credit == "group":
            of_critics = ("ppo.gae_lambda", "ppo.value_coef", "ppo.value_clip", "net.core", "net.core_size", "net.shared")
            found |= dict.fromkeys(of_critics, "is of a critic, and the agents of a group need none; use credit critic")
            scales = ("ppo.normalise_reward", "ppo.normalise_advantage")
            found |= dict.fromkeys(scales, "credit of a group is on the scale of the group; use credit critic")
        return found


def build(c: Config) -> rl.Experiment:
    """Actors play and write a stream for each policy; an update takes one segment of each actor from every stream."""
    task = rl.graphs.TeamTask(c, stored=rl.run.stored_params)
    for side in task.trained.values():
        # a row of a recurrent network is a whole segment
        steps = 1 if c.net.core == "none" else side.route.samples[0].num_steps
        c.ppo.check(c.batch_steps // steps * len(side.agents) // c.placement.trainers)

    def network(policy: str, spec: rl.core.EnvSpec) -> rl.nets.ActorCritic:
        seed = rl.core.make_seed(c.seed, "team", policy)
        if c.credit == "group":
            return rl.nets.lone_actor(spec, c.net, seed=seed, normalise_obs=c.ppo.normalise_obs)
        body = rl.nets.build_body(spec, c.net, seed=seed)
        return rl.nets.ActorCritic(spec, body, normalise_obs=c.ppo.normalise_obs)

    def learner(policy: str, net: rl.nets.ActorCritic, ranks: rl.Collective) -> rl.agents.PPOLearner:
        given: dict[str, Any] = {"seed": rl.core.make_seed(c.seed, "team", policy), "collective": ranks, "device": c.device}
        if c.credit == "group":
            return rl.agents.GroupPPOLearner(c.ppo, net, num_agents=len(task.sides[policy].agents), **given)
        return rl.agents.PPOLearner(c.ppo, net, **given)

    gamma = c.ppo.return_gamma if c.credit == "critic" else None
    return rl.graphs.team_graph(c, task, network=network, learner=learner, return_gamma=gamma)
