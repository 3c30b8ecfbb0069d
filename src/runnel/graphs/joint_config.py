"""Settings of recipes that learn a whole team as one agent, on policy or from replay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from runnel.core.bounds import bounded
from runnel.core.resuming import OnResume, stays
from runnel.data.replay import ReplayConfig
from runnel.envs.team.joint import TeamReward
from runnel.graphs.replay_config import check_replay
from runnel.graphs.team_config import TeamConfig
from runnel.graphs.unused import OF_PRIORITIES
from runnel.kernels.select import Accelerator


@dataclass(frozen=True)
class JointConfig(TeamConfig):
    """A row of a segment is a whole team: all agents of an environment, of equal spaces."""

    on_resume: ClassVar[OnResume] = stays("team_reward", why="values are of rewards that were made with it")
    accelerator: ClassVar[Accelerator] = Accelerator()
    """No kernel stands in for networks of teams."""

    team_reward: TeamReward = "mean"
    """What the team gets of what its agents are paid in a step. mean: the mean over all agents, of whom those that have left
    get 0. sum: the sum. first: what the first agent that decided is paid, for games that pay every agent what the team earned.
    The returns that a run shows are means over agents in any case."""

    def unused(self) -> dict[str, str]:
        """Settings, or groups of them, that this run would not read, and why."""
        return {
            **super().unused(),
            "compiled": "there are no kernels for it",
            "teams": "this recipe learns one team; one network for all agents, or one for each, is a setting of its algorithm",
        }


@dataclass(frozen=True)
class TeamReplayConfig(JointConfig):
    """Actors fill a replay buffer with what whole teams did; it gives out `update_ratio` batches for each step."""

    on_resume: ClassVar[OnResume] = stays(
        "update_ratio", "min_fill", why="the updates that past steps have paid for are counted by it"
    ) | stays("team_reward", why="the rewards in the replay memory were made with it")
    recurrent: ClassVar[bool] = True
    """Whether the recipe's networks may have a memory."""

    num_steps: int = bounded(25, at_least=1)
    """Steps of each environment in one segment."""
    update_ratio: float = bounded(0.125, above=0, finite=True)
    """Number of updates for each environment step. Actors or learner wait to keep this ratio, on every launcher."""
    min_fill: int = bounded(1_000, at_least=0)
    """Environment steps in the buffer before the first update."""
    log_every: int = 50
    """Write one row of metrics every so many updates, with the means of their numbers."""
    replay: ReplayConfig = field(default_factory=lambda: ReplayConfig(capacity=125_000, prioritised=False))

    def unused(self) -> dict[str, str]:
        """Settings, or groups of them, that this run would not read, and why."""
        return {
            **super().unused(),
            **({} if self.replay.prioritised else OF_PRIORITIES),
            **({} if self.recurrent else dict.fromkeys(("net.core", "net.core_size"), "it learns from single transitions")),
            "staleness.max_concurrent": "update_ratio paces actors and learner",
            "net.shared": "there is no critic beside the networks that act",
            "net.critic_only": "the network that learns is the one that acts",
            "replay.compress_frames": "what teams see is kept as it is",
        }

    def check(self) -> None:
        """Raise a `ConfigError` for what cannot work, before anything starts."""
        super().check()
        check_replay(self)
