"""Neural fictitious self-play: an average policy that comes near an equilibrium of a two-player game, beside its best response.

runnel train nfsp --env my_game.py:Poker
runnel train nfsp --env my_game.py:Poker --teams "player_0=first" "player_1=second"
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import runnel as rl


@dataclass(frozen=True)
class Config(rl.graphs.TeamConfig):
    """NFSP (agents/nfsp.py) for each policy, on `num_actors` x `num_envs` games, `num_steps` steps of each per update."""

    total_steps: int | None = 100_000
    """Budget in steps of the environment: in a game in turns, moves."""
    net: rl.NetConfig = field(default_factory=lambda: rl.NetConfig(hidden=(64,), activation="relu"))
    nfsp: rl.agents.NFSPConfig = field(default_factory=rl.agents.NFSPConfig)

    def settle(self) -> tuple[rl.RunConfig, list[str]]:
        """Stored policies by version and checksum, so that a resumed run uses the same."""
        teams, told = rl.run.pin_teams(self.teams)
        return replace(self, teams=teams), told

    def unused(self) -> dict[str, str]:
        """The settings (or groups of them) that this run does not use, each with the reason."""
        why = "decisions are drawn from the memories one by one, so no network remembers"
        found = dict.fromkeys(("net.core", "net.core_size"), why)
        found |= dict.fromkeys(("net.critic_only", "net.shared"), "there is no critic")
        found["compiled"] = "no compiled kernel serves this learner, nor its two policies"
        return super().unused() | found

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot work together."""
        super().check()
        self.nfsp.check()


def build(c: Config) -> rl.Experiment:
    """Actors play and write a stream for each policy; an update takes one segment of each actor from every stream."""
    task = rl.graphs.TeamTask(c, stored=rl.run.stored_params)
    for policy, side in task.trained.items():
        if side.spec.action.kind != "discrete":
            fix = f"agents of {policy!r} have {side.spec.action.kind} actions; NFSP needs discrete ones, ippo takes all"
            raise rl.ConfigError("env", c.env, fix)
        if side.route.samples[0].burn_in:
            raise rl.ConfigError("teams", policy, "burn-in is for a memory of the network, and NFSP has none; leave it out")

    def network(policy: str, spec: rl.core.EnvSpec) -> rl.nets.NFSPNet:
        return c.nfsp.nets(spec, c.net, seed=rl.core.make_seed(c.seed, "team", policy))

    def played(policy: str, spec: rl.core.EnvSpec) -> rl.nets.NFSPNet:
        return c.nfsp.nets(spec, c.net, seed=rl.core.make_seed(c.seed, "team", policy), average_alone=True)

    def learner(policy: str, net: rl.nets.NFSPNet, ranks: rl.Collective) -> rl.agents.NFSPLearner:
        seed = rl.core.make_seed(c.seed, "team", policy)
        return rl.agents.NFSPLearner(c.nfsp, net, seed=seed, collective=ranks, device=c.device)

    replies = rl.nets.NFSPNet.replies
    why = "nfsp keeps its memories of decisions there; use selfplay or ippo"
    return rl.graphs.team_graph(c, task, network=network, learner=learner, played=played, replies=replies, stays_on_cpu=why)
