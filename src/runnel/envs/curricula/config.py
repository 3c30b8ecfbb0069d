"""Settings of a curriculum, and the two parts that they describe: a source for actors, a history for the trainer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from runnel.core.bounds import bounded, check_bounds
from runnel.core.contracts.tasks import Curriculum, TaskSource
from runnel.core.resuming import OnResume, may_change, stays
from runnel.core.spaces import TaskSpace
from runnel.envs.curricula.alp_gmm import GaussianTasks, ProgressHistory
from runnel.envs.curricula.levels import LevelHistory, ReplayedLevels
from runnel.envs.curricula.uniform import NoHistory, UniformTasks

OF_KIND = {
    "replay": "plr",
    "capacity": "plr",
    "temperature": "plr",
    "staleness": "plr",
    "fit_every": "alp_gmm",
    "max_gaussians": "alp_gmm",
    "explore": "alp_gmm",
    "states": "states",
    "states_digest": "states",
    "share": "states",
    "until": "states",
    "groups": "states",
    "cut": "states",
}
"""Settings of one kind of curriculum only."""


@dataclass(frozen=True)
class CurriculumConfig:
    """What an environment that takes tasks (`task_space`) is told to play, in training; evaluations play what it likes."""

    on_resume: ClassVar[OnResume] = (
        may_change(
            *("replay", "temperature", "staleness", "explore", "share", "until", "groups"), then="counts from the next batch on"
        )
        | may_change("states", then="is where the same data set lies now")
        | stays("states_digest", "cut", why="episodes in the checkpoint began so")
        | stays("kind", "capacity", "fit_every", "max_gaussians", why="the history in the checkpoint was kept so")
    )

    kind: Literal["off", "uniform", "plr", "alp_gmm", "states"] = "off"
    """off: the environment chooses. uniform: any task is as likely as another. plr: prioritised level replay, tasks on which
    the critic errs most are played again. alp_gmm: more of the tasks on which returns change most. states: episodes begin at
    recorded states."""
    replay: float = bounded(0.5, at_least=0, at_most=1)
    """plr: share of episodes that play a known task again, once half of the memory is full."""
    capacity: int = bounded(256, at_least=2)
    """plr: tasks in the memory."""
    temperature: float = bounded(0.1, above=0)
    """plr: how sharply tasks are chosen by the rank of their score; a high one makes them even."""
    staleness: float = bounded(0.1, at_least=0, at_most=1)
    """plr: share of the choice that goes by how long a task was not played."""
    fit_every: int = bounded(250, at_least=20)
    """alp_gmm: episodes after which the mixture is fitted anew, to as many of the last ones."""
    max_gaussians: int = bounded(10, at_least=2)
    """alp_gmm: most Gaussians of the mixture; how many it has is chosen by Akaike's criterion."""
    explore: float = bounded(0.2, at_least=0, at_most=1)
    """alp_gmm: share of episodes that play any task."""

    states: str = ""
    """states: folder of a data set of this environment with start states (`runnel data record RUN FOLDER --states-every 10`
    makes one)."""
    states_digest: str = ""
    """states: the data set's digest, which names its content; another one is refused. Empty: that of the folder when the run
    starts."""
    share: float = bounded(0.5, above=0, at_most=1)
    """states: share of episodes that begin at a recorded state."""
    until: float = bounded(0.5, above=0, at_most=1)
    """states: part of total_steps after which every episode begins as the environment likes."""
    groups: int = bounded(10, at_least=1)
    """states: groups of states that look alike; each group is played as often as another."""
    cut: int = bounded(0, at_least=0)
    """states: steps after which an episode that began at a state is truncated; 0: it ends as others do."""

    def __post_init__(self) -> None:
        check_bounds(self, "curriculum.")

    def absolute(self) -> CurriculumConfig:
        """A copy with an absolute path, so that a run can be resumed from any folder."""
        return replace(self, states=str(Path(self.states).resolve())) if self.states else self

    def unused(self) -> dict[str, str]:
        """Settings of another kind of curriculum than this."""
        return {f"curriculum.{name}": f"is of curriculum.kind {kind}" for name, kind in OF_KIND.items() if kind != self.kind}

    def source(self, space: TaskSpace, seed: int) -> TaskSource:
        """What chooses the tasks of actors; of states, the run knows more (`graphs/start_states.py`)."""
        if self.kind == "plr":
            return ReplayedLevels(space, seed=seed, replay=self.replay)
        if self.kind == "alp_gmm":
            return GaussianTasks(space, seed=seed, explore=self.explore)
        return UniformTasks(space, seed=seed)

    def history(self, space: TaskSpace, seed: int) -> Curriculum:
        """What the trainer learns of tasks."""
        if self.kind == "plr":
            c = self
            return LevelHistory(space, capacity=c.capacity, temperature=c.temperature, staleness=c.staleness)
        if self.kind == "alp_gmm":
            return ProgressHistory(space, seed=seed, fit_every=self.fit_every, max_gaussians=self.max_gaussians)
        return NoHistory()
