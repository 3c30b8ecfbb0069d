"""Gymnasium environments in this process, stepped one after the other. Every other back end is compared with this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from runnel.core.action_codec import env_action_rows, final_mask, read_mask
from runnel.core.checks import reward_number
from runnel.core.errors import ConfigError, DataError
from runnel.core.spaces import ActionSpec, Channels, EnvSpec, TaskSpace
from runnel.core.state import Array, State
from runnel.core.trajectories import TASK_PARAMS
from runnel.core.user_code import frames, place_of, told
from runnel.core.worker import progressed
from runnel.envs.bounds import Bounds, due_rows
from runnel.envs.channels import ChannelReader
from runnel.envs.rewind import load_env, save_env, stateful_part
from runnel.envs.spaces import MASK, Action, Info, Obs, StepResult, env_spec, mask_in_obs, obs_leaves
from runnel.envs.vector.contract import BEGUN, MAX_FAILURES, TASKS_AHEAD, Episode, StepOut, mark_stack
from runnel.envs.vector.copies import EnvCopy, side_by_side
from runnel.envs.vector.cpu_base import CpuVector, explained_by, obs_writer, of_gymnasium, trusting

if TYPE_CHECKING:
    import gymnasium as gym

_PRUNE_AT = 1024
"""Actions are pruned when the history has this many steps, or has doubled, so that the cost is spread over many steps."""


def look_at(env: gym.Env, name: str, check: str = "") -> EnvSpec:
    """The spec of a Gymnasium environment. It makes one reset, because only that shows whether masks come in `info`.

    `check` is the command that explains what is wrong with an environment, for messages.
    """
    from runnel.envs.wrappers import stacked_frames

    _check_spaces(env, name)
    tasks = task_space_of(env, name)
    reset = type(getattr(env, "unwrapped", env)).reset
    try:
        first = env.reset(seed=0)
    except (Exception, SystemExit) as error:
        said = f"environment {name!r} raised {type(error).__name__} at its first reset: {error}"
        raise DataError(f"{said}{frames(error)}{explained_by(check, reset, error)}") from error
    if not isinstance(first, tuple) or len(first) != 2 or not isinstance(first[1], Mapping):
        kind = f"a tuple of {len(first)}" if isinstance(first, tuple) else f"a {type(first).__name__}"
        text = f"environment {name!r}: reset returned {kind}; it must return (observation, info), info a dict"
        raise DataError(text + explained_by(check, reset))
    progressed()
    try:
        spec = replace(env_spec(env.observation_space, env.action_space, has_mask=MASK in first[1]), tasks=tasks)
    except ConfigError as error:
        place = place_of(type(getattr(env, "unwrapped", env)))
        raise ConfigError("env", name, error.fix + (f"; see {place}" if place else "")) from error
    return mark_stack(spec, stacked_frames(env))


def task_space_of(env: gym.Env, name: str) -> TaskSpace | None:
    """The space of the tasks that `reset(options={"task": ...})` takes, as the environment declares it (`task_space`)."""
    from gymnasium import spaces

    space = env.get_wrapper_attr("task_space") if env.has_wrapper_attr("task_space") else None
    if space is None:
        return None
    bounded = isinstance(space, spaces.Box) and len(space.shape) == 1 and space.is_bounded()
    if not bounded:
        fix = "use a gymnasium.spaces.Box of one dimension with finite bounds"
        raise DataError(f"environment {name!r}: its task_space is {space}; {fix}")
    return TaskSpace(tuple(space.low.tolist()), tuple(space.high.tolist()))


def _check_spaces(env: gym.Env, name: str) -> None:
    missing = [space for space in ("observation_space", "action_space") if getattr(env, space, None) is None]
    if missing:
        place = place_of(type(getattr(env, "unwrapped", env)))
        at = f" ({place})" if place else ""
        raise DataError(f"environment {name!r}{at} has no {' and no '.join(missing)}; set it in __init__")


def same_spec(env: gym.Env, spec: EnvSpec, name: str) -> None:
    """Refuse an environment with other spaces than the first one of its vector."""
    found = env_spec(env.observation_space, env.action_space, has_mask=spec.has_mask)
    shapes = {k: (x.shape, x.dtype) for k, x in spec.obs.items()}
    if {k: (x.shape, x.dtype) for k, x in found.obs.items()} != shapes or found.action != spec.action:
        raise DataError(f"environments of {name!r} differ in their spaces: {found} is not {spec}; give all of them the same")


class SerialVector(CpuVector):
    """`num_envs` Gymnasium environments, made by `make`, stepped one after the other in this process.

    `index0` is the global number of the first one: seeds and episode records carry global numbers. With `restart`, an
    environment that raises is replaced, its episode truncated, and the fault counted. `out` is memory to write into (None:
    its own). `watcher(row)` is called before each step of an environment, so that another process can see which one is stepped.
    With `tasks`, each episode plays what `out.next_task` says when it begins.
    """

    def __init__(
        self,
        make: Callable[[], gym.Env],
        num_envs: int,
        *,
        seed: int,
        index0: int = 0,
        name: str = "",
        restart: bool = False,
        out: StepOut | None = None,
        check: str = "",
        channels: Channels | None = None,
        watcher: Callable[[int], None] | None = None,
        tasks: bool = False,
    ) -> None:
        from runnel.envs.wrappers import FrameStack

        env = make()
        self.name = name or (env.spec.id if env.spec is not None else type(env.unwrapped).__name__)
        spec = replace(look_at(env, self.name, check), channels=channels or Channels())
        super().__init__(spec, num_envs, seed=seed, index0=index0, name=self.name, out=out, check=check, tasks=tasks)
        self._make, self._restart = make, restart
        self._stack = env if isinstance(env, FrameStack) else None
        envs = [env, *(_made(make) for _ in range(num_envs - 1))]
        for other in envs[1:]:
            same_spec(other, spec, self.name)
        self._copies = [EnvCopy(trusting(self._inner(e)), index0 + i) for i, e in enumerate(envs)]
        inner = self._copies[0].env
        self._mask_in_obs = mask_in_obs(inner.observation_space)
        self._convert = action_rows(spec.action)
        self._leaves = obs_leaves(inner.observation_space)
        # some of Gymnasium's own environments leave their Box; they are known and stay usable
        known = self._stack is not None or of_gymnasium(inner)
        self._bounds = Bounds([] if known else self._leaves)
        self._bounded = bool(self._bounds)
        self._bind_writers()
        self._read_channels = ChannelReader(spec.channels)
        self._watcher = watcher
        self._steps = [self._stepper(row) for row in range(num_envs)]
        self._replayed = any(copy.stateful is None for copy in self._copies)
        self._history: list[Array] = []
        self._prune_at = _PRUNE_AT

    def _stepper(self, row: int) -> Callable[[Action], StepResult]:
        step: Callable[[Action], StepResult] = self._copies[row].env.step
        watcher = self._watcher
        if watcher is None:
            return step

        def watched(action: Action) -> StepResult:
            watcher(row)
            return step(action)

        return watched

    def _inner(self, env: gym.Env) -> gym.Env:
        return env if self._stack is None else env.env

    def _bind_writers(self) -> None:
        from runnel.envs.wrappers import StackWriter

        self._write_first: Callable[[int, Obs], None]
        self._write: Callable[[int, Obs], None]
        self._write_last: Callable[[int, int, Obs], None]
        if self._stack is not None:
            stack = StackWriter(self._stack, self._obs["obs"], self._final["obs"])
            self._write_first, self._write, self._write_last = stack.first, stack.next, stack.last
            return
        final = obs_writer(self._leaves, self._final)
        self._write_first = self._write = obs_writer(self._leaves, self._obs)
        self._write_last = lambda index, row, obs: final(index, obs)

    def reset(self, seed: int | None = None) -> StepOut:
        self._seed = self._seed if seed is None else seed
        self._clock, self._ended, self._history = 0, [], []
        for copy in self._copies:
            copy.episode = -1
        self._begin_all()
        return self.out

    def begin_at(self, episodes: list[int], *, seed: int, clock: int) -> None:
        """Start each environment at its given episode number, at step count `clock` of the vector."""
        self._seed, self._clock, self._history = seed, clock, []
        for copy, episode in zip(self._copies, episodes, strict=True):
            copy.episode = episode - 1
        self._begin_all()

    def _begin_all(self) -> None:
        for row, copy in enumerate(self._copies):
            try:
                self._begin(row, copy)
            except (Exception, SystemExit) as error:
                raise self._failure(copy, error) from error
        self._check_bounds(slice(None))
        self._clear_rewards()
        self._clear_flags()

    def _check_bounds(self, rows: slice) -> None:
        """Refuse an observation outside its Box, in the given rows."""
        if (found := self._bounds.outside(self._obs, rows)) is not None:
            raise self._failure(self._copies[found[0]], DataError(found[1]))

    def send(self, actions: Tensor) -> None:
        raw = actions.cpu().numpy()
        self._check_actions(raw)
        if self.out.final_rows:
            self._clear_flags()
        self._clock += 1
        if self._replayed:
            self._remember(raw)
        converted, row = self._convert(raw), 0
        while row < self.num_envs:
            row = self._step_from(row, converted)
        if self._bounded and (rows := due_rows(self._clock, self.num_envs)) is not None:
            self._check_bounds(rows)

    def _step_from(self, start: int, actions: list[Action]) -> int:
        """Step the environments from row `start` on. Returns the row after the last one that was stepped or failed."""
        # local names: this loop runs for every environment step, and an attribute costs a lookup each time
        reward_out, write, mask, copies, steps = self._reward, self._write, self._mask, self._copies, self._steps
        first, row, channels = self._clock == 1, start, self._channels
        try:
            for row in range(start, len(copies)):
                copy = copies[row]
                obs, reward, terminated, truncated, info = steps[row](actions[row])
                progressed()
                if type(reward) is not float:  # an assignment to numpy would parse text and broadcast arrays
                    reward = reward_number(reward)
                reward_out[row] = reward
                copy.total += reward
                if channels:
                    self._write_channels(row, copy, info)
                if terminated or truncated:
                    self._check(info)
                    self._end(row, copy, (obs, info), (terminated, truncated))
                    self._begin(row, copy)
                    continue
                write(row, obs)
                if mask is not None:
                    self._write_mask(row, obs, info)
                if first:
                    self._check(info)
        except (Exception, SystemExit) as error:  # sys.exit(0) in an environment must not end a run as a success
            if not self._restart:
                raise self._failure(copies[row], error) from error
            self._replace(row, error)
        return row + 1

    def _write_channels(self, row: int, copy: EnvCopy, info: Info) -> None:
        for name, number in self._read_channels.of_step(info).items():
            self._channels[name][row] = number
            copy.channels[name] = copy.channels.get(name, 0.0) + number

    def _remember(self, actions: Array) -> None:
        """Keep the actions for replays, back to the first step of the oldest open episode."""
        self._history.append(actions.copy())
        if len(self._history) > self._prune_at:
            oldest = min(copy.start for copy in self._copies)
            del self._history[: len(self._history) - (self._clock - oldest)]
            self._prune_at = max(_PRUNE_AT, 2 * len(self._history))

    def _begin(self, row: int, copy: EnvCopy) -> None:
        """Begin the next episode of `copy`, in `row`."""
        obs, info = copy.next_episode(self._seed, self._clock, self._next_params(row))
        self._check(info)
        self._write_first(row, obs)
        if self._mask is not None:
            self._write_mask(row, obs, info)

    def _next_params(self, row: int) -> Array | None:
        """The task of the next episode of `row`, which is the task of the row from now on; None where none are given."""
        if not self._task:
            return None
        begun = self._next_task[BEGUN]
        for key, now in self._task.items():
            now[row] = self._next_task[key][row, begun[row] % TASKS_AHEAD]
        begun[row] += 1
        params: Array = self._task[TASK_PARAMS][row].copy()
        return params

    def _check(self, info: Info) -> None:
        """Refuse a mask where the first reset had none. Called at the first step and at both ends of every episode."""
        if self._mask is None and MASK in info:
            raise DataError("gave an action_mask, but none at its first reset; put one into every info")

    def _write_mask(self, row: int, obs: Obs, info: Info) -> None:
        assert self._mask is not None
        self._mask[row] = read_mask(obs[MASK] if self._mask_in_obs else info[MASK], self.spec.action)

    def _end(self, row: int, copy: EnvCopy, seen: tuple[Obs, Info], flags: tuple[bool, bool]) -> None:
        """The episode of `row` ended with the observation and info `seen`."""
        rows, (obs, info) = self.out.final_rows, seen
        assert rows is not None
        self._terminated[row], self._truncated[row] = flags
        self._write_last(len(rows), row, obs)
        if self._mask is not None:
            raw = obs[MASK] if self._mask_in_obs else info.get(MASK)
            self._final[MASK][len(rows)] = final_mask(raw, self.spec.action, terminated=bool(flags[0]))
        if self._bounded and (found := self._bounds.outside(self._final, slice(len(rows), len(rows) + 1))) is not None:
            raise DataError(found[1])
        rows.append(row)
        copy.failures = 0
        self._ended.append(Episode(copy.index, copy.total, self._clock - copy.start, channels=copy.channels))

    def _replace(self, row: int, error: BaseException) -> None:
        """Replace the environment of `row`. Its episode is truncated at the last good observation and gives no `Episode`."""
        copy, rows = self._copies[row], self.out.final_rows
        assert rows is not None
        fault = {"kind": "env_failed", "env": copy.index, "episode": copy.episode, "step": self._clock - copy.start}
        self._faults.append({**fault, "seed": copy.seed, "error": told(error)})
        copy.failures += 1
        if row in rows or copy.failures > MAX_FAILURES:  # it broke at a reset, or breaks every time
            raise self._failure(copy, error) from error
        try:
            copy.env.close()
        except Exception as problem:
            self._faults[-1]["error"] += f"\n  (and closing it raised {told(problem)})"
        copy.env = trusting(self._inner(self._make()))
        copy.stateful, self._steps[row] = stateful_part(copy.env), self._stepper(row)
        self._keep_last(row)
        try:
            self._begin(row, copy)
        except (Exception, SystemExit) as problem:
            raise self._failure(copy, problem) from problem

    def _failure(self, copy: EnvCopy, error: BaseException) -> Exception:
        where = f"environment {self.name!r} (index {copy.index}, episode {copy.episode}, step {self._clock - copy.start})"
        again = f", for the {copy.failures}th time in a row" if copy.failures > 1 else ""
        return self._error(where, error, copy.env, f"{again} [its episode began with reset(seed={copy.seed})]")

    def snapshot(self) -> State:
        return {**self._save_outputs(), "envs": [self._save(row, copy) for row, copy in enumerate(self._copies)]}

    def _save(self, row: int, copy: EnvCopy) -> State:
        counters: State = {"episode": copy.episode, "seed": copy.seed, "total": copy.total, "start": copy.start}
        counters["channels"] = dict(copy.channels)
        if copy.task is not None:
            counters["task"] = copy.task
        length = self._clock - copy.start
        actions = [a[row] for a in self._history[len(self._history) - length :]] if length else []
        return {**counters, "env": save_env(copy.stateful, actions)}

    def restore(self, state: State) -> None:
        self._load_outputs(state)
        played = []
        for row, (copy, saved) in enumerate(zip(self._copies, state["envs"], strict=True)):
            copy.episode, copy.seed, copy.total = saved["episode"], saved["seed"], saved["total"]
            copy.start, copy.channels = saved["start"], dict(saved.get("channels", {}))  # older checkpoints have none
            copy.task = np.asarray(saved["task"], dtype=np.float32) if "task" in saved else None
            raw = np.asarray(saved["env"].get("actions", []))
            obs = load_env(
                copy.env,
                saved["env"].get("state"),
                actions=self._convert(raw) if len(raw) else [],
                seed=copy.seed,
                length=self._clock - copy.start,
                where=f"{self.name!r} (index {copy.index})",
                task=copy.task,
            )
            played.append(raw)
            if obs is not None:
                self._verify(row, copy, obs, len(raw))
        self._history = side_by_side(played)

    def _verify(self, row: int, copy: EnvCopy, obs: Obs, num_actions: int) -> None:
        for leaf in self._leaves:
            stored = self._obs[leaf.key][row] if self._stack is None else self._obs[leaf.key][row, -self._stack.channels :]
            found = leaf.read(obs) if self._stack is None else self._stack.read(obs)
            if not np.array_equal(found.astype(stored.dtype), stored, equal_nan=stored.dtype == np.float32):
                raise DataError(
                    f"environment {self.name!r} (index {copy.index}) is not deterministic: a replay of {num_actions} "
                    f"actions after reset(seed={copy.seed}) gave another {leaf.key!r}. Implement get_state() and "
                    "set_state(state) on it, or draw all its randomness from self.np_random"
                )

    def save_state(self, row: int) -> bytes:
        """The state of the environment in `row`, which was made with start states (`Starts`)."""
        from runnel.envs.started import StartedEnv

        env = self._copies[row].env
        assert isinstance(env, StartedEnv), "whoever records states makes the vector with `Starts`"
        return env.save()

    def close(self) -> None:
        for copy in self._copies:
            copy.env.close()


def _made(make: Callable[[], gym.Env]) -> gym.Env:
    env = make()
    progressed()
    return env


def action_rows(action: ActionSpec) -> Callable[[Array], list[Action]]:
    """A function from network actions `[B, ...]` to a list of B actions that `env.step` takes.

    `Discrete`: numpy integers, as Gymnasium's own vectors give, with `start` added. `Box`: clipped to its bounds, in its type
    and shape (rounded where it holds integers). `MultiDiscrete`, `MultiBinary`: arrays in their type and shape. `Tuple` and
    `Dict`: nested like the space.
    """
    if action.kind == "discrete" and action.start == 0:
        return list
    rows = env_action_rows(action)
    return lambda actions: rows(actions.reshape(len(actions), *action.shape))
