"""Plays an environment for its check: guards every call, checks every value, and records the history."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from runnel.core.action_codec import env_action, flat_mask, mask_parts
from runnel.core.spaces import ActionSpec
from runnel.envs.rewind import reset_to
from runnel.envs.spaces import MASK, Action, Info, Obs, action_spec, mask_in_obs
from runnel.testing.env_channels import SIX, check_channels
from runnel.testing.env_report import EnvReport
from runnel.testing.env_values import check_outcome, check_size, check_value

if TYPE_CHECKING:
    import gymnasium as gym

SEED = 12345
History = dict[str, object]
"""The results of one reset or step, by name, in a form that compares exactly."""
Seen = tuple[Obs, Info]
"""An observation and its info."""


@dataclass(frozen=True)
class Ended:
    """A finished episode: its number of steps, and whether it was terminated."""

    length: int
    terminated: bool


class Player:
    """Plays `env` with random actions, and a `task` if one is given, and adds findings to `report`. With `record` it keeps a
    history to compare."""

    def __init__(self, env: gym.Env, report: EnvReport, *, record: bool = True, task: np.ndarray | None = None) -> None:
        self.env, self.report, self._record, self._task = env, report, record, task
        self.history: list[History] = []
        self.episodes: list[Ended] = []
        self._spec = action_spec(env.action_space)
        self._to_env = env_action(self._spec)
        self._mask_in_obs = mask_in_obs(env.observation_space)
        self._masked: bool | None = None
        self._channels: Collection[str] | None = None
        self._kept: list[tuple[np.ndarray, np.ndarray]] = []
        self._length = 0

    def play(
        self, num_steps: int, *, seed: int = SEED, same_seed: bool = True, until: Callable[[], bool] = lambda: False
    ) -> list[History]:
        """Play `num_steps` steps from a reset on, over several episodes. Returns the history.

        With `same_seed` every episode has the same seed. The play stops early at an episode's end where `until()` is true.
        """
        self.env.action_space.seed(seed)
        rng, self.history = np.random.default_rng(seed), []
        obs, info = self.reset(seed)
        for _ in range(num_steps):
            obs, info, ended = self.step(self._action(obs, info, rng))
            if ended:
                seed += not same_seed
                obs, info = self.reset(seed)
                if until():
                    break
        return self.history

    def go_on(self, start: Seen, num_steps: int) -> tuple[list[History], Seen]:
        """Go on from `start`, the present state, until an episode ends. The actions depend on `SEED` only."""
        self.env.action_space.seed(SEED)
        rng, self.history, self._kept = np.random.default_rng(SEED), [], []
        obs, info = start
        for _ in range(num_steps):
            obs, info, ended = self.step(self._action(obs, info, rng))
            if ended:
                return self.history, self.reset(SEED)
        return self.history, (obs, info)

    def reset(self, seed: int) -> Seen:
        """Reset, and check the result."""
        try:
            result: object = reset_to(self.env, seed, self._task)
        except (Exception, SystemExit) as error:
            fix = "; its signature is reset(self, *, seed=None, options=None)" if isinstance(error, TypeError) else ""
            raise self.report.stop("reset", f"reset(seed=...) raised {type(error).__name__}: {error}{fix}") from error
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            text = f"reset returned {_kind(result)}; it must return (observation, info), info being a dict"
            raise self.report.stop("reset", text)
        obs, info = result
        self._length = 0
        self._look(obs)
        if self._record:
            self.history.append({"first observation": digest(obs)})
        return obs, info

    def step(self, action: Action) -> tuple[Obs, Info, bool]:
        """Step, and check the result. Returns observation, info, and whether the episode ended."""
        self._length += 1
        self.report.num_steps += 1
        try:
            result = self.env.step(action)
        except (Exception, SystemExit) as error:
            where = f"in step {self._length} of an episode"
            text = f"step({action!r}) raised {type(error).__name__}: {error} ({where})"
            raise self.report.stop("step", text) from error
        if not (isinstance(result, tuple) and len(result) == 5):
            text = f"step returned {_kind(result)}; it must return (observation, reward, terminated, truncated, info)"
            raise self.report.stop("step", text + (SIX if isinstance(result, tuple) and len(result) == 6 else ""))
        obs, reward, terminated, truncated, info = result
        if not isinstance(info, dict):
            raise self.report.stop("info", f"step returned an info that is a {type(info).__name__}; it must be a dict")
        check_outcome(reward, terminated, truncated, self.report)
        self._channels = check_channels(info, self._channels, self.report)
        self._look(obs)
        over = _flag(terminated) or _flag(truncated)
        if self._record:
            self.history.append({"observation": digest(obs), "reward": digest(reward), "end": over})
        if over:
            self.episodes.append(Ended(self._length, _flag(terminated) and not _flag(truncated)))
            self.report.num_episodes += 1
            if self._masked and not _flag(terminated):
                self._check_last_mask(obs, info)
        return obs, info, over

    def _check_last_mask(self, obs: Obs, info: Info) -> None:
        """Check the mask at a truncation: learners bootstrap from the actions that it allows."""
        raw = self._raw_mask(obs, info)
        if raw is None:
            text = "the info of a step that truncates has no action_mask; learners go on from there: put one into every info"
            raise self.report.stop("mask", text)
        self._mask(raw)

    def _look(self, obs: Obs) -> None:
        space = self.env.observation_space
        check_value(space, obs, "the observation", self.report)
        check_size(space, obs, self.report)
        if any(not np.array_equal(array, copy, equal_nan=array.dtype.kind == "f") for array, copy in self._kept):
            text = (
                "the observation that was returned before changes when the environment goes on: it is the same memory. Whoever "
                "keeps observations (a frame stack, a list of your own) then holds the newest many times; return a copy"
            )
            self.report.warn("memory", text)
        self._kept = [(array, array.copy()) for array in arrays(obs)]

    def _action(self, obs: Obs, info: Info, rng: np.random.Generator) -> Action:
        """A random action, one that the mask allows if there is a mask."""
        raw = self._raw_mask(obs, info)
        if self._masked is None:
            self._masked = raw is not None
        if self._masked != (raw is not None):
            came = "none later" if self._masked else "none at its first reset"
            text = f"action_mask comes sometimes: the environment gave {came}. Put one into every info, of reset and of step"
            raise self.report.stop("mask", text)
        if raw is None:
            return self.env.action_space.sample()
        mask = self._mask(raw)
        row = random_action(self._spec, mask, rng)
        return self._to_env(row)

    def _raw_mask(self, obs: Obs, info: Info) -> object:
        return obs.get(MASK) if self._mask_in_obs and isinstance(obs, Mapping) else info.get(MASK)

    def _mask(self, raw: object) -> np.ndarray:
        report, size = self.report, self._spec.mask_size
        if not size:
            raise report.stop("mask", "an action_mask needs something discrete to choose from; drop the mask or the Box")
        try:
            mask = flat_mask(raw, self._spec)
        except (TypeError, ValueError, LookupError) as error:
            text = f"action_mask cannot be read: {error}; give one array of {size} flags, or one array for each part"
            raise report.stop("mask", text) from error
        if mask.shape != (size,):
            each = "action" if self._spec.kind == "discrete" else "choice of each part, side by side"
            raise report.stop("mask", f"action_mask has shape {mask.shape}; it must have one entry per {each}, ({size},)")
        if any(not np.isin(np.asarray(x), (0, 1)).all() for x in arrays(raw)):
            report.error("mask values", "action_mask has values other than 0 and 1: all but 0 are taken for open")
        if not all(part.any() for part in mask_parts(mask, self._spec)):
            raise report.stop("mask", "action_mask allows no action at all; end the episode instead")
        return mask


def random_action(spec: ActionSpec, mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random network action that `mask` allows."""
    choices = [rng.choice(np.flatnonzero(part)) for part in mask_parts(mask, spec)]
    if spec.kind == "discrete":
        return np.asarray(choices[0])
    numbers: list[float] = []
    for part in spec.parts:
        numbers += [float(choices.pop(0))] if part.kind == "discrete" else rng.normal(size=part.size).tolist()
    return np.asarray(numbers)


def arrays(value: object) -> list[np.ndarray]:
    """All numpy arrays inside a nested value."""
    if isinstance(value, np.ndarray):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return [array for part in inner for array in arrays(part)]


def digest(value: object) -> object:
    """A form of `value` that compares exactly (NaN equals NaN) and shares no memory with it."""
    if isinstance(value, Mapping):
        return {key: digest(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [digest(part) for part in value]
    if isinstance(value, np.ndarray | np.generic):
        return (str(value.dtype), value.shape, value.tobytes())
    return repr(value)


def difference(first: list[History], second: list[History]) -> str | None:
    """The first difference between two histories, in words; None if they are equal."""
    step = 0
    for i, (a, b) in enumerate(zip(first, second, strict=False)):
        step += "reward" in a
        parts = [name for name in a if a[name] != b.get(name)]
        if parts == ["first observation"]:
            return "the first observation is another one" + (f" (of the episode after step {step})" if i else "")
        if parts:
            return f"step {step} gave another {' and '.join(parts)}"
    return None if len(first) == len(second) else "one of them stopped earlier"


def step_seconds(player: Player, num_steps: int) -> tuple[list[History], float]:
    """The history of a play, and the seconds of one step."""
    start = time.perf_counter()
    history = player.play(num_steps)
    return history, (time.perf_counter() - start) / max(num_steps, 1)


def _flag(value: object) -> bool:
    try:
        return bool(value)
    except ValueError:  # an array of several flags: `check_outcome` has reported it
        return False


def _kind(result: Any) -> str:
    return f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"
