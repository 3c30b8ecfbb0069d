"""The common part of all vectors in CPU memory: output memory, episode records, faults, and trust in Gymnasium's environments.

Gymnasium's classic environments begin each step with `action_space.contains(action)`, which takes a fifth of CartPole's step. A
vector has already checked type, shape and range of all actions (`CpuVector._check_actions`), so for plain choices this second
check is skipped (`trusting`). It stays wherever the action could be another one than the vector has checked: behind a wrapper
that may change it, and in an environment that may ask its space about something else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from runnel.core.errors import DataError, RunnelError
from runnel.core.rng import seed_sequence
from runnel.core.spaces import EnvSpec
from runnel.core.state import Array, State
from runnel.core.user_code import called_wrongly, frames, place_of, summary
from runnel.envs.spaces import MASK, Obs, ObsLeaf
from runnel.envs.vector.contract import Episode, Fault, StepOut, allocate
from runnel.envs.vector.memory import check_memory

if TYPE_CHECKING:
    import gymnasium as gym


def explained_by(check: str, method: object, error: BaseException | None = None) -> str:
    """The end of a message about an environment that broke the contract: the place of `method` and the command `check`.

    Empty where `error` came from the environment's own lines, which the message shows already.
    """
    if error is not None and not called_wrongly(error):
        return ""
    place = place_of(method)
    found = [f"see {place}"] if place else []
    found += [f"`{check}` explains what is wrong"] if check else []
    return f"\n  {'; '.join(found)}" if found else ""


def _step_of(env: gym.Env) -> object:
    return getattr(type(getattr(env, "unwrapped", env)), "step", None)


class CpuVector:
    """The part of the contract that is the same for all back ends. A step is done when `send` returns, unless overridden."""

    name: str
    out: StepOut

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        *,
        seed: int,
        index0: int,
        name: str,
        out: StepOut | None = None,
        check: str = "",
        tasks: bool = False,
    ) -> None:
        """`check` is the command that explains what is wrong with an environment. `out`: memory to use; None allocates it, with
        room for `tasks`."""
        self.check = check
        check_memory(spec, num_envs, num_steps=0, num_segments=0)
        self.spec, self.num_envs, self.index0, self.name = spec, num_envs, index0, name
        self._seed, self._clock = seed, 0
        self._ended: list[Episode] = []
        self._faults: list[Fault] = []
        self.out = out = allocate(spec, num_envs, tasks=tasks) if out is None else out
        self._obs = {k: x.numpy() for k, x in out.obs.items()}
        self._final = {k: x.numpy() for k, x in out.final_obs.items()}
        self._reward, self._terminated, self._truncated = out.reward.numpy(), out.terminated.numpy(), out.truncated.numpy()
        self._channels = {k: x.numpy() for k, x in out.channels.items()}
        self._mask = None if out.action_mask is None else out.action_mask.numpy()
        self._task = {k: x.numpy() for k, x in out.task.items()}
        self._next_task = {k: x.numpy() for k, x in out.next_task.items()}
        self._now = {k: x.numpy() for k, x in out_arrays(out).items()}
        self._num_actions = spec.action.num_actions if spec.action.kind == "discrete" else 0
        self._action_size = num_envs * prod(spec.action.shape)

    def send(self, actions: Tensor) -> None:
        raise NotImplementedError

    def _check_actions(self, actions: Array) -> None:
        """Refuse all but one action for each row, and a choice outside its space, as Gymnasium would."""
        if actions.size != self._action_size or len(actions) != self.num_envs:
            raise DataError(
                f"{self.num_envs} environments {self.name!r} were given actions of shape {actions.shape}, not "
                f"{(self.num_envs, *self.spec.action.shape)}"
            )
        if not self._num_actions:
            return
        if actions.dtype.kind not in "iu":
            raise DataError(f"environment {self.name!r} was given actions as {actions.dtype}; a choice is an integer")
        chosen = actions.tolist()  # Python's min and max beat numpy's up to thousands of rows
        if min(chosen) < 0 or max(chosen) >= self._num_actions:
            row = next(i for i, a in enumerate(chosen) if not 0 <= a < self._num_actions)
            raise DataError(
                f"environment {self.name!r} (index {self.index0 + row}) was given action {chosen[row]}, outside of its "
                f"space: there are {self._num_actions} actions, counted from 0"
            )

    def _error(self, where: str, error: BaseException, env: gym.Env, after: str = "") -> DataError:
        """The error about an environment: where, what, the lines of its own code, and `explained_by`."""
        what = str(error) if isinstance(error, RunnelError) else f"raised {summary(error)}"
        return DataError(f"{where} {what}{after}{frames(error)}{explained_by(self.check, _step_of(env), error)}")

    def ready(self) -> bool:
        return True

    def recv(self) -> StepOut:
        return self.out

    def step(self, actions: Tensor) -> StepOut:
        self.send(actions)
        return self.recv()

    def episodes(self) -> list[Episode]:
        ended, self._ended = self._ended, []
        return ended

    def faults(self) -> list[Fault]:
        faults, self._faults = self._faults, []
        return faults

    def _clear_rewards(self) -> None:
        for numbers in (self._reward, *self._channels.values()):
            numbers.fill(0.0)

    def _clear_flags(self) -> None:
        self._terminated.fill(False)
        self._truncated.fill(False)
        self.out.final_rows = []

    def _keep_last(self, row: int) -> None:
        """Truncate the episode of `row` now, with reward 0 and the last good observation as its final one."""
        rows = self.out.final_rows
        assert rows is not None
        for key, final in self._final.items():
            final[len(rows)] = self._now[key][row]
        self._reward[row], self._terminated[row], self._truncated[row] = 0.0, False, True
        for channel in self._channels.values():
            channel[row] = 0.0
        rows.append(row)

    def _save_outputs(self) -> State:
        return {
            "seed": self._seed,
            "clock": self._clock,
            "out": {k: x.clone() for k, x in out_arrays(self.out).items()},
            "ended": [[e.env, e.total, e.length, dict(e.channels)] for e in self._ended],
            **({"tasks": save_tasks(self.out)} if self.out.task else {}),
        }

    def _load_outputs(self, state: State) -> None:
        self._seed, self._clock = state["seed"], state["clock"]
        self._ended = [  # older checkpoints have no channels
            Episode(int(e), float(r), int(n), channels=dict(*channels)) for e, r, n, *channels in state["ended"]
        ]
        for key, x in out_arrays(self.out).items():
            x.copy_(torch.as_tensor(np.asarray(state["out"][key])))
        load_tasks(self.out, state.get("tasks", {}))
        self._clear_rewards()
        self._clear_flags()


def save_tasks(out: StepOut) -> State:
    """What each row plays, and what its next episodes are to play."""
    return {part: {k: x.clone() for k, x in getattr(out, part).items()} for part in ("task", "next_task")}


def load_tasks(out: StepOut, state: State) -> None:
    """Undo `save_tasks`."""
    for part in state:
        for key, x in getattr(out, part).items():
            x.copy_(torch.as_tensor(np.asarray(state[part][key])))


def out_arrays(out: StepOut) -> dict[str, Tensor]:
    """The arrays of the next decision: observation leaves and mask."""
    return {**out.obs, **({} if out.action_mask is None else {MASK: out.action_mask})}


def of_gymnasium(env: gym.Env) -> bool:
    """Whether an environment, or a vector of them, is part of Gymnasium itself."""
    return type(env.unwrapped).__module__.startswith("gymnasium.envs.")


def trusting(env: gym.Env) -> gym.Env:
    """`env`, whose `Discrete` action space accepts every action without a look at it, where that is safe."""
    from gymnasium import spaces

    inner = env.unwrapped
    plain = type(vars(inner).get("action_space")) is spaces.Discrete
    if plain and of_gymnasium(env) and _hands_on(env):
        inner.action_space = _open(inner.action_space)
    return env


def _hands_on(env: gym.Env) -> bool:
    """Whether an action reaches the environment unchanged: every wrapper around it is known not to touch actions."""
    from gymnasium import wrappers

    while env is not env.unwrapped:
        if type(env) not in (wrappers.TimeLimit, wrappers.OrderEnforcing, wrappers.PassiveEnvChecker):
            return False
        env = env.env
    return True


def trusting_vector(vec: gym.vector.VectorEnv) -> gym.vector.VectorEnv:
    """The same for a Gymnasium vector environment with one plain choice a row."""
    from gymnasium import spaces

    inner = vec.unwrapped
    plain = inner is vec and of_gymnasium(vec) and type(vec.single_action_space) is spaces.Discrete
    if plain and type(vars(inner).get("action_space")) is spaces.MultiDiscrete:
        inner.action_space = _open(inner.action_space)
    return vec


def _open(space: gym.Space) -> gym.Space:
    """A copy of `space`, with its random generator, that contains every action."""
    found, kind = copy.copy(space), space.__class__
    # a subclass, so that `isinstance` and everything else of the space stay as they are
    found.__class__ = _open_class(kind)
    return found


@cache
def _open_class(kind: type) -> type:
    return type(f"Open{kind.__name__}", (kind,), {"contains": lambda self, x: True})


def obs_writer(leaves: list[ObsLeaf], buffers: Mapping[str, Array]) -> Callable[[int, Obs], None]:
    """A function `(row, raw observation)` that checks an observation against its space and writes it into a row of `buffers`.

    For one plain Box this costs three comparisons and one numpy assignment.
    """
    if len(leaves) == 1 and leaves[0].encode is None and not leaves[0].path:
        return _box_writer(leaves[0], buffers[leaves[0].key])
    parts = [(buffers[leaf.key], leaf.pick, leaf.checked, leaf.encode) for leaf in leaves]

    def write(row: int, obs: Obs) -> None:
        for buffer, pick, checked, encode in parts:
            raw = checked(pick(obs))
            buffer[row] = raw if encode is None else encode(raw)

    return write


def _box_writer(leaf: ObsLeaf, buffer: Array) -> Callable[[int, Obs], None]:
    kind, dtype, shape, checked = np.ndarray, leaf.dtype, leaf.shape, leaf.checked

    def write(row: int, obs: Obs) -> None:
        # numpy has one object for each plain type, so `is` suffices; everything else takes the slow check
        if obs.__class__ is kind and obs.dtype is dtype and obs.shape == shape:
            buffer[row] = obs
        else:
            buffer[row] = checked(obs)

    return write


_SEED_BLOCK = 64


def episode_seed(seed: int, env: int, episode: int) -> int:
    """The seed that environment `env` is reset with for its `episode`; `env.reset(seed=...)` replays it anywhere.

    >>> episode_seed(1, 0, 0) != episode_seed(1, 0, 1) != episode_seed(1, 1, 0)
    True
    """
    return int(_seed_block(seed, env, episode // _SEED_BLOCK)[episode % _SEED_BLOCK])


@lru_cache(maxsize=1 << 15)
def _seed_block(seed: int, env: int, block: int) -> Array:
    """The seeds of 64 episodes in a row. Making a seed sequence costs as much as a few environment steps."""
    words: Array = seed_sequence(seed, "env", env, block).generate_state(_SEED_BLOCK, np.uint32)
    return words >> 1
