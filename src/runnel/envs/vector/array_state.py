"""The state of a vector environment that keeps everything in numpy arrays: read and written row by row, from outside.

Gymnasium's own vector CartPole is such an environment. It resets on the step after an end, and offers no other way. Here rows
that ended are filled instead with rows of a second instance that was just reset, so no step is spent on a reset, none becomes
a false transition, and a checkpoint can hold the arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runnel.core.errors import ConfigError
from runnel.core.state import State

Array = NDArray[Any]
_TRIAL_STEPS = 4
_FIX = (
    "it resets itself one step late (NEXT_STEP) and its state cannot be read from outside; give it autoreset_mode=SAME_STEP or "
    "DISABLED with reset masks, keep its state in numpy arrays, or use vector.backend=serial"
)


def check_arrays(vec: Any, name: str) -> None:
    """Refuse a vector environment whose observations or actions are nested."""
    from gymnasium import spaces

    if not isinstance(vec.observation_space, spaces.Box) or isinstance(vec.action_space, spaces.Dict | spaces.Tuple):
        raise ConfigError("vector.backend", "gymnasium", f"{name!r} (nested spaces): {_FIX}")


class ArrayState:
    """Which attributes of `vec` hold a row an environment, and along which axis: found by comparing with `other`, another
    instance of another size. Both have been reset."""

    def __init__(self, vec: Any, other: Any, name: str) -> None:
        self.vec, self.other, self._name = vec.unwrapped, other.unwrapped, name
        self.axes: dict[str, int] = {}
        self.shared: list[str] = []
        for attribute, value in vars(self.vec).items():
            self._sort(attribute, value, getattr(self.other, attribute))
        if not self.axes:
            raise ConfigError("vector.backend", "gymnasium", f"{name!r}: {_FIX}")

    def _sort(self, attribute: str, value: Any, twin: Any) -> None:
        from gymnasium import Space

        if isinstance(value, np.ndarray):
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
        """Put rows `source` of the other instance in place of `rows`."""
        for attribute, axis in self.axes.items():
            front = (slice(None),) * axis
            getattr(self.vec, attribute)[(*front, rows)] = getattr(self.other, attribute)[(*front, source)]

    def prove(self, actions: Array) -> None:
        """Move rows across and play them on both sides: unless all comes out equal, something was missed.

        `actions` is one action a row of the larger instance; afterwards both need a reset.
        """
        rows = np.arange(self.vec.num_envs)
        source = (rows + 1) % self.other.num_envs
        self.vec.step(actions[: len(rows)])
        self.move(rows, source)
        self.vec.np_random.bit_generator.state = self.other.np_random.bit_generator.state
        for _ in range(_TRIAL_STEPS):
            played = actions.copy()
            played[source] = actions[: len(rows)]
            ours, theirs = self.vec.step(actions[: len(rows)]), self.other.step(played)
            if not all(np.array_equal(np.asarray(a), np.asarray(b)[source]) for a, b in zip(ours[:4], theirs[:4], strict=True)):
                raise ConfigError("vector.backend", "gymnasium", f"{self._name!r}: {_FIX}")

    def save(self) -> State:
        """All arrays, numbers and the generator, as plain data."""
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


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _plain(value: Any) -> Any:
    """A generator's state with its large numbers as text."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return f"int:{value}" if isinstance(value, int) else value


def _unplain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _unplain(v) for k, v in value.items()}
    return int(value.removeprefix("int:")) if isinstance(value, str) and value.startswith("int:") else value
