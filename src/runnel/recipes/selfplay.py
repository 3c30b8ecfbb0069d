"""Self-play: a policy learns a game of several equal seats by playing itself and a pool of its earlier versions.

runnel train selfplay --env pettingzoo:classic.connect_four_v3 --pool.size 16 --pool.pick pfsp --pool.every 50
runnel train selfplay --env my_game.py:MyGame --pool.latest 0 --pool.pick uniform
runnel train selfplay --env my_game.py:MyGame --pool.exploiters 1 --pool.league-exploiters 1
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.graphs.TeamConfig):
    """PPO (agents/ppo.py) against itself and a pool (agents/league.py), on `num_actors` x `num_envs` games, `num_steps` steps
    of each per update."""

    env: str = "runnel.envs.team.toy:Bids"
    """A game whose agents have equal spaces: pettingzoo:FAMILY.NAME, module:Class or path/to/file.py:factory."""
    total_steps: int | None = 100_000
    """Budget in steps of the environment; all agents of an environment take a step together."""
    ppo: rl.agents.PPOConfig = field(default_factory=lambda: rl.agents.PPOConfig(entropy_coef=0.01))
    pool: rl.agents.PoolConfig = field(default_factory=rl.agents.PoolConfig)

    def unused(self) -> dict[str, str]:
        """The settings (or groups of them) that this run does not use, each with the reason."""
        return super().unused() | self.ppo.unused("ppo", fresh=self.staleness.mode == "sync") | self.pool.unused("pool")

    def check(self) -> None:
        super().check()
        self.pool.check()


def build(c: Config) -> rl.Experiment:
    """Actors play lineups of live and frozen policies; an update takes one segment of each actor."""
    task = rl.graphs.league_task(c)
    # a row of a recurrent network is a whole segment
    steps, seats = 1 if c.net.core == "none" else c.num_steps, len(task.sides["main"].agents)
    c.ppo.check(c.batch_steps // steps * seats)

    def network(role: str, spec: rl.core.EnvSpec) -> rl.nets.ActorCritic:
        body = rl.nets.build_body(spec, c.net, seed=rl.core.make_seed(c.seed, "league", role))
        return rl.nets.ActorCritic(spec, body, normalise_obs=c.ppo.normalise_obs)

    def learner(role: str, net: rl.nets.ActorCritic, ranks: rl.Collective) -> rl.agents.PPOLearner:
        seed = rl.core.make_seed(c.seed, "league", role)
        return rl.agents.PPOLearner(c.ppo, net, seed=seed, collective=ranks, device=c.device)

    return rl.graphs.league_graph(c, task, c.pool, network=network, learner=learner, return_gamma=c.ppo.return_gamma)
