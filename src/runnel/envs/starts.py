"""Start states for environments that are made later: where an episode may begin that does not begin by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from runnel.core.errors import ConfigError
from runnel.core.spaces import TaskSpace
from runnel.envs.device.base import TaskedEnv, TensorEnv
from runnel.envs.device.started import start_tensors

if TYPE_CHECKING:
    import gymnasium as gym

START_TASKS = TaskSpace((-1.0,), (2.0**24 - 1,))
"""The tasks of an environment with start states: the number of a state, or -1 for a start of its own. A float32 counts up to
there."""


@dataclass(frozen=True)
class Starts:
    """Lets the environments of a vector begin at states. `open_states` opens them, in the process that needs them.

    An episode that begins at a state is truncated after `cut` steps (0: it is not). With `exact`, it also has the random
    numbers of its state, and not those of its own seed.
    """

    open_states: Callable[[], Sequence[bytes]] = tuple
    cut: int = 0
    exact: bool = False

    def __call__(self, env: gym.Env) -> gym.Env:
        """The wrapper around one environment."""
        from runnel.envs.started import StartedEnv  # needs gymnasium, which settings do not

        return StartedEnv(env, self.open_states(), cut=self.cut, exact=self.exact)

    def on_tensors(self, env: TensorEnv) -> TaskedEnv:
        """The same for an environment of tensors."""
        if self.cut:
            fix = "an environment of tensors has one limit for all its episodes; use 0"
            raise ConfigError("curriculum.cut", self.cut, fix)
        return start_tensors(env, self.open_states(), START_TASKS)


@runtime_checkable
class SavesStates(Protocol):
    """A vector that can save the state of one row, as `Starts` takes it."""

    def save_state(self, row: int) -> bytes: ...
