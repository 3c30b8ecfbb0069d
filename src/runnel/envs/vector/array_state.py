"""Reads and writes the state of a vector environment that keeps everything in numpy arrays, row by row.

Gymnasium's own vector CartPole is such an environment. It can only reset on the step after an episode's end. Here a row that
ended gets the state of a row of a second instance that was just reset. So no step is spent on a reset, no reset becomes a
false transition, and a checkpoint can hold the arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from runnel.core.errors import ConfigError
from runnel.core.state import Array, State

if TYPE_CHECKING:
    import gymnasium as gym

_TRIAL_STEPS = 4
"""Several, because state that was missed may show only after some steps."""
_FIX = (
    "it resets itself one step late (NEXT_STEP) and its state cannot be read from outside; give it autoreset_mode=SAME_STEP or "
    "DISABLED with reset masks, keep its state in numpy arrays, or use vector.backend=serial"
)


def check_arrays(vec: gym.vector.VectorEnv, name: str) -> None:
    """Refuse a vector environment with nested observations or actions."""
    from gymnasium import spaces

    if not isinstance(vec.observation_space, spaces.Box) or isinstance(vec.action_space, spaces.Dict | spaces.Tuple):
        raise ConfigError("vector.backend", "gymnasium", f"{name!r} (nested spaces): {_FIX}")


class ArrayState:
    """Finds which attributes of `vec` hold one row for each environment, and along which axis.

    It compares them with those of `other`, an instance of another size: the axis whose length differs is the one that counts
    environments. Both instances have been reset.
    """

    def __init__(self, vec: gym.vector.VectorEnv, other: gym.vector.VectorEnv, name: str) -> None:
        self.vec, self.other, self._name = vec.unwrapped, other.unwrapped, name
        self.axes: dict[str, int] = {}
        self.shared: list[str] = []
        for attribute, value in vars(self.vec).items():
            self._sort(attribute, value, getattr(self.other, attribute))
        if not self.axes:
            raise ConfigError("vector.backend", "gymnasium", f"{name!r}: {_FIX}")

    def _sort(self, attribute: str, value: object, twin: Array) -> None:
        from gymnasium import Space

        if isinstance(value, np.ndarray):
            # one axis that differs, of the length of this instance: a row for each environment
            differ = [i for i, (a, b) in enumerate(zip(value.shape, twin.shape, strict=True)) if a != b]
            if len(differ) == 1 and value.shape[differ[0]] == self.vec.num_envs:
                self.axes[attribute] = differ[0]
            else:
                self.shared.append(attribute)
        elif isinstance(value, bool | int | float | None):
            if attribute != "num_envs":
                self.shared.append(attribute)
        elif not isinstance(value, str | Space | np.random.Generator) and attribute not in ("spec", "metadata"):
            raise ConfigError("vector.backend", "gymnasium", f"{self._name!r} ({attribute}): {_FIX}")

    def move(self, rows: Array, source: Array) -> None:
        """Copy rows `source` of the other instance into `rows`."""
        for attribute, axis in self.axes.items():
            front = (slice(None),) * axis
            getattr(self.vec, attribute)[(*front, rows)] = getattr(self.other, attribute)[(*front, source)]

    def prove(self, actions: Array) -> None:
        """Copy rows across and step them on both sides. If the results differ, some state was missed: refuse the environment.

        `actions` has one action for each row of the larger instance. Both instances need a reset afterwards.
        """
        rows = np.arange(self.vec.num_envs)
        source = (rows + 1) % self.other.num_envs
        self.vec.step(actions[: len(rows)])
        self.move(rows, source)
        # one generator state, so that a random transition draws the same numbers in both
        self.vec.np_random.bit_generator.state = self.other.np_random.bit_generator.state
        for _ in range(_TRIAL_STEPS):
            played = actions.copy()
            played[source] = actions[: len(rows)]
            ours, theirs = self.vec.step(actions[: len(rows)]), self.other.step(played)
            if not all(np.array_equal(np.asarray(a), np.asarray(b)[source]) for a, b in zip(ours[:4], theirs[:4], strict=True)):
                raise ConfigError("vector.backend", "gymnasium", f"{self._name!r}: {_FIX}")

    def save(self) -> State:
        """All arrays and numbers and the generator, as plain data."""
        rng = self.vec.np_random.bit_generator.state
        arrays = {k: np.array(getattr(self.vec, k)) for k in (*self.axes, *self.shared) if _is_array(getattr(self.vec, k))}
        numbers = {k: getattr(self.vec, k) for k in self.shared if not _is_array(getattr(self.vec, k))}
        return {"arrays": arrays, "numbers": numbers, "rng": _plain(rng)}

    def load(self, state: State) -> None:
        for name, value in state["arrays"].items():
            setattr(self.vec, name, np.array(value))
        for name, value in state["numbers"].items():
            setattr(self.vec, name, value)
        self.vec.np_random.bit_generator.state = _unplain(state["rng"])


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)


def _plain(value: object) -> object:
    """A generator's state with its integers as text: they have up to 128 bits, more than a checkpoint's number types hold."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return f"int:{value}" if isinstance(value, int) else value


def _unplain(value: object) -> object:
    if isinstance(value, dict):
        return {k: _unplain(v) for k, v in value.items()}
    return int(value.removeprefix("int:")) if isinstance(value, str) and value.startswith("int:") else value
