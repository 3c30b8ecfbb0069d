"""Episodes that begin at states of a data set (`--curriculum.kind states`): what is opened, chosen and checked for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from runnel.core.contracts.tasks import TaskSource
from runnel.core.errors import ConfigError
from runnel.core.state import Array
from runnel.core.trajectories import TASK_PARAMS
from runnel.data.dataset import Dataset, StartStates
from runnel.envs.curricula.config import CurriculumConfig
from runnel.envs.curricula.start_states import StartTasks, group_states
from runnel.envs.starts import Starts

if TYPE_CHECKING:
    from runnel.envs.vector import StepOut
    from runnel.graphs.env_task import EnvTask

_TRIED, _STEPS = 8, 3
"""States that are played before a run starts, and the steps that each is played for."""
_RTOL, _ATOL = 1e-4, 1e-5
"""Another processor may round otherwise; another environment differs by more."""


def open_data(c: CurriculumConfig) -> Dataset:
    """The data set that has the start states of a run."""
    make = "`runnel data record RUN FOLDER --states-every 10` makes one"
    if not c.states:
        raise ConfigError("curriculum.states", c.states, f"give the folder of a data set with start states ({make})")
    found = Dataset.open(c.states, setting="curriculum.states", digest=c.states_digest)
    if not len(found.states):
        raise ConfigError("curriculum.states", c.states, f"this data set has no start states ({make})")
    return found


def open_states(c: CurriculumConfig) -> StartStates:
    """The start states of a run."""
    return open_data(c).states


@dataclass(frozen=True)
class RecordedStarts:
    """The start states of a run; each process opens them for itself."""

    config: CurriculumConfig
    seed: int
    total_steps: int | None
    segment_steps: int
    """Steps of the environment in a segment."""

    @property
    def starts(self) -> Starts:
        """What lets environments begin there."""
        return Starts(partial(open_states, self.config), cut=self.config.cut)

    def source(self) -> TaskSource:
        """What chooses where the episodes of actors begin."""
        c, data = self.config, open_data(self.config)
        states = data.states
        groups = group_states(shown_in(data, states), c.groups, seed=self.seed)
        return StartTasks(states, groups, seed=self.seed, share=c.share, last=self._last)

    @property
    def _last(self) -> float:
        """The number of the first segment without episodes that begin at states."""
        if self.config.until == 1 or self.total_steps is None:  # which is refused before
            return float("inf")
        return self.config.until * self.total_steps / self.segment_steps


def shown_in(data: Dataset, states: StartStates) -> Array:
    """What the environment shows in each state, as plain numbers. `[n, d]`"""
    leaves = [data.columns[name][states.entries] for name in data.manifest["spec"]["obs"]]
    return np.concatenate([leaf.reshape(len(states), -1).astype(np.float64) for leaf in leaves], axis=1)


def check_states(c: CurriculumConfig, task: EnvTask) -> None:
    """Refuse states of another environment, damaged ones, and those from which the environment does not go on as it did when
    they were recorded: it is another version then, or its `get_state` leaves something out."""
    data = open_data(c)
    states = data.states
    data.check_env(task.source, task.spec)
    data.verify()
    tried = np.unique(np.linspace(0, len(states) - 1, _TRIED).astype(int))
    vector = task.vector(
        len(tried), seed=0, evaluation=True, tasks=True, device="cpu", starts=Starts(lambda: states, exact=True)
    )
    try:
        vector.out.next_task[TASK_PARAMS].copy_(torch.from_numpy(tried).view(-1, 1, 1))
        out, steps = vector.reset(0), states.steps[tried]
        entries, last = states.entries[tried], data.ends_of(data.episode_of(states.steps[tried]))
        going = np.ones(len(tried), bool)
        for ahead in range(_STEPS + 1):
            for row in np.flatnonzero(going).tolist():
                if not _same(out, row, data, int(entries[row]) + ahead):
                    after = (
                        f"shows something else than was recorded {ahead} steps after it" if ahead else "shows something else"
                    )
                    fix = "the environment is another version, or its get_state() leaves something out; record the states again"
                    raise ConfigError("curriculum.states", c.states, f"start state {tried[row]} {after}: {fix}")
            going &= steps + ahead < last  # an episode that ended has begun anew
            actions = data.columns["action"][np.minimum(steps + ahead, last)]
            out = vector.step(torch.from_numpy(np.array(actions)))
    finally:
        vector.close()


def _same(out: StepOut, row: int, data: Dataset, entry: int) -> bool:
    """Whether a row shows what an entry of the data set holds."""
    pairs = ((x[row].numpy(), data.columns[name][entry]) for name, x in out.obs.items())
    return all(np.allclose(found, due, rtol=_RTOL, atol=_ATOL) for found, due in pairs)
