"""n Gymnasium environments in this process, stepped one after the other. The reference for every other back end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from runnel.core.action_codec import env_action_rows, final_mask, read_mask
from runnel.core.checks import reward_number
from runnel.core.errors import ConfigError, DataError
from runnel.core.spaces import ActionSpec, EnvSpec
from runnel.core.state import State
from runnel.core.user_code import frames, place_of, told
from runnel.core.worker import progressed
from runnel.envs.bounds import Bounds, due_rows
from runnel.envs.rewind import load_env, save_env, stateful_part
from runnel.envs.spaces import MASK, env_spec, mask_in_obs, obs_leaves
from runnel.envs.vector.contract import MAX_FAILURES, Episode, StepOut, mark_stack
from runnel.envs.vector.cpu_base import EpisodeSeeds, HostVector, explained_by, obs_writer, of_gymnasium, trusting

_PRUNE_AT = 1024


def look_at(env: Any, name: str, check: str = "") -> EnvSpec:
    """The spec of a Gymnasium environment, from one reset: only that shows whether masks come in `info`. `check` is the command
    that says what is wrong with it."""
    from runnel.envs.wrappers import stacked_frames

    _check_spaces(env, name)
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
        spec = env_spec(env.observation_space, env.action_space, has_mask=MASK in first[1])
    except ConfigError as error:
        place = place_of(type(getattr(env, "unwrapped", env)))
        raise ConfigError("env", name, error.fix + (f"; see {place}" if place else "")) from error
    return mark_stack(spec, stacked_frames(env))


def _check_spaces(env: Any, name: str) -> None:
    missing = [space for space in ("observation_space", "action_space") if getattr(env, space, None) is None]
    if missing:
        place = place_of(type(getattr(env, "unwrapped", env)))
        at = f" ({place})" if place else ""
        raise DataError(f"environment {name!r}{at} has no {' and no '.join(missing)}; set it in __init__")


def same_spec(env: Any, spec: EnvSpec, name: str) -> None:
    """Refuse an environment whose spaces are not those of its vector's first one."""
    found = env_spec(env.observation_space, env.action_space, has_mask=spec.has_mask)
    shapes = {k: (x.shape, x.dtype) for k, x in spec.obs.items()}
    if {k: (x.shape, x.dtype) for k, x in found.obs.items()} != shapes or found.action != spec.action:
        raise DataError(f"environments of {name!r} differ in their spaces: {found} is not {spec}; give all of them the same")


class _Seat:
    """One environment of a vector, with what a replay of its episode needs."""

    def __init__(self, env: Any, index: int) -> None:
        self.env, self.index = trusting(env), index
        self.stateful = stateful_part(env)
        self.episode = -1
        self.seed = 0
        self.total = 0.0
        self.start = 0
        self.failures = 0
        self._seeds = EpisodeSeeds(index)

    def next_episode(self, seed: int, clock: int) -> tuple[Any, dict[str, Any]]:
        """Reset into the next episode of run seed `seed`; `clock` is the vector's step count at its first decision."""
        self.episode += 1
        self.seed = self._seeds(seed, self.episode)
        self.total, self.start = 0.0, clock
        obs, info = self.env.reset(seed=self.seed)
        progressed()
        return obs, info


class SerialVector(HostVector):
    """`num_envs` Gymnasium environments, made by `make`, stepped one after the other in this process.

    `index0` is the global number of the first one: seeds and episode records carry global numbers. With `restart`, an
    environment that raises is made anew, its episode cut, and the fault counted. `out` is memory from elsewhere.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        num_envs: int,
        *,
        seed: int,
        index0: int = 0,
        name: str = "",
        restart: bool = False,
        out: StepOut | None = None,
        check: str = "",
    ) -> None:
        from runnel.envs.wrappers import FrameStack

        env = make()
        self.name = name or (env.spec.id if env.spec is not None else type(env.unwrapped).__name__)
        spec = look_at(env, self.name, check)
        super().__init__(spec, num_envs, seed=seed, index0=index0, name=self.name, out=out, check=check)
        self._make, self._restart = make, restart
        self._stack = env if isinstance(env, FrameStack) else None
        envs = [env, *(_made(make) for _ in range(num_envs - 1))]
        for other in envs[1:]:
            same_spec(other, spec, self.name)
        self._seats = [_Seat(self._inner(e), index0 + i) for i, e in enumerate(envs)]
        inner = self._seats[0].env
        self._mask_in_obs = mask_in_obs(inner.observation_space)
        self._convert = _action_rows(spec.action)
        self._leaves = obs_leaves(inner.observation_space)
        known = self._stack is not None or of_gymnasium(inner)  # some of Gymnasium's own leave their Box, and stay usable
        self._bounds = Bounds([] if known else self._leaves)
        self._bounded = bool(self._bounds)
        self._bind_writers()
        self._watcher: Callable[[int], None] | None = None
        self._steps = [self._stepper(row) for row in range(num_envs)]
        self._replayed = any(seat.stateful is None for seat in self._seats)
        self._history: list[Any] = []
        self._prune_at = _PRUNE_AT

    def watch(self, watcher: Callable[[int], None]) -> None:
        """Call `watcher(row)` before each step of an environment, so that another process sees which one is at work."""
        self._watcher = watcher
        self._steps = [self._stepper(row) for row in range(self.num_envs)]

    def _stepper(self, row: int) -> Callable[[Any], Any]:
        step, watcher = self._seats[row].env.step, self._watcher
        if watcher is None:
            found: Callable[[Any], Any] = step
            return found

        def watched(action: Any) -> Any:
            watcher(row)
            return step(action)

        return watched

    def _inner(self, env: Any) -> Any:
        return env if self._stack is None else env.env

    def _bind_writers(self) -> None:
        from runnel.envs.wrappers import StackWriter

        self._write_first: Callable[[int, Any], None]
        self._write: Callable[[int, Any], None]
        self._write_last: Callable[[int, int, Any], None]
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
        for seat in self._seats:
            seat.episode = -1
        self._begin_all()
        return self.out

    def begin_at(self, episodes: list[int], *, seed: int, clock: int) -> None:
        """Start each environment at the given episode of its own, at a step count of `clock`."""
        self._seed, self._clock, self._history = seed, clock, []
        for seat, episode in zip(self._seats, episodes, strict=True):
            seat.episode = episode - 1
        self._begin_all()

    def _begin_all(self) -> None:
        for row, seat in enumerate(self._seats):
            try:
                self._begin(row, seat)
            except (Exception, SystemExit) as error:
                raise self._failure(seat, error) from error
        self._check_bounds(slice(None))
        self._reward.fill(0.0)
        self._clear_flags()

    def _check_bounds(self, rows: slice) -> None:
        """Refuse what lies outside of its Box, in some rows."""
        if (found := self._bounds.outside(self._obs, rows)) is not None:
            raise self._failure(self._seats[found[0]], DataError(found[1]))

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

    def step(self, actions: Tensor) -> StepOut:
        self.send(actions)
        return self.out

    def _step_from(self, start: int, actions: list[Any]) -> int:
        """Step the environments from row `start` on; returns the row after the last that was tried."""
        reward_out, write, mask, seats, steps = self._reward, self._write, self._mask, self._seats, self._steps
        first, row = self._clock == 1, start
        try:
            for row in range(start, len(seats)):
                seat = seats[row]
                obs, reward, terminated, truncated, info = steps[row](actions[row])
                progressed()
                if type(reward) is not float:  # numpy would read text, and broadcast arrays
                    reward = reward_number(reward)
                reward_out[row] = reward
                seat.total += reward
                if terminated or truncated:
                    self._check(info)
                    self._end(row, seat, (obs, info), (terminated, truncated))
                    self._begin(row, seat)
                    continue
                write(row, obs)
                if mask is not None:
                    self._write_mask(row, obs, info)
                if first:
                    self._check(info)
        except (Exception, SystemExit) as error:  # an environment may not end the program, and call that a success
            if not self._restart:
                raise self._failure(seats[row], error) from error
            self._replace(row, error)
        return row + 1

    def _remember(self, actions: NDArray[Any]) -> None:
        """Keep the actions for replays, from the first of the oldest episode on."""
        self._history.append(actions.copy())
        if len(self._history) > self._prune_at:
            oldest = min(seat.start for seat in self._seats)
            del self._history[: len(self._history) - (self._clock - oldest)]
            self._prune_at = max(_PRUNE_AT, 2 * len(self._history))

    def _begin(self, row: int, seat: _Seat) -> None:
        """The next episode of a seat."""
        obs, info = seat.next_episode(self._seed, self._clock)
        self._check(info)
        self._write_first(row, obs)
        if self._mask is not None:
            self._write_mask(row, obs, info)

    def _check(self, info: Mapping[str, Any]) -> None:
        """Masks that come late are looked for at the first step, and at both ends of every episode."""
        if self._mask is None and MASK in info:
            raise DataError("gave an action_mask, but none at its first reset; put one into every info")

    def _write_mask(self, row: int, obs: Any, info: Mapping[str, Any]) -> None:
        assert self._mask is not None
        self._mask[row] = read_mask(obs[MASK] if self._mask_in_obs else info[MASK], self.spec.action)

    def _end(self, row: int, seat: _Seat, seen: tuple[Any, Mapping[str, Any]], flags: tuple[Any, Any]) -> None:
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
        seat.failures = 0
        self._ended.append(Episode(seat.index, seat.total, self._clock - seat.start))

    def _replace(self, row: int, error: BaseException) -> None:
        """Make the environment of `row` anew; its episode is cut at the last good observation, and is no `Episode`."""
        seat, rows = self._seats[row], self.out.final_rows
        assert rows is not None
        fault = {"kind": "env_failed", "env": seat.index, "episode": seat.episode, "step": self._clock - seat.start}
        self._faults.append({**fault, "seed": seat.seed, "error": told(error)})
        seat.failures += 1
        if row in rows or seat.failures > MAX_FAILURES:  # it broke while an episode began, or breaks every time
            raise self._failure(seat, error) from error
        try:
            seat.env.close()
        except Exception as problem:
            self._faults[-1]["error"] += f"\n  (and closing it raised {told(problem)})"
        seat.env = trusting(self._inner(self._make()))
        seat.stateful, self._steps[row] = stateful_part(seat.env), self._stepper(row)
        self._keep_last(row)
        try:
            self._begin(row, seat)
        except (Exception, SystemExit) as problem:
            raise self._failure(seat, problem) from problem

    def _failure(self, seat: _Seat, error: BaseException) -> Exception:
        where = f"environment {self.name!r} (index {seat.index}, episode {seat.episode}, step {self._clock - seat.start})"
        again = f", for the {seat.failures}th time in a row" if seat.failures > 1 else ""
        return self._told(where, error, seat.env, f"{again} [its episode began with reset(seed={seat.seed})]")

    def snapshot(self) -> State:
        return {**self._save_host(), "envs": [self._save(row, seat) for row, seat in enumerate(self._seats)]}

    def _save(self, row: int, seat: _Seat) -> State:
        counters = {"episode": seat.episode, "seed": seat.seed, "total": seat.total, "start": seat.start}
        length = self._clock - seat.start
        actions = [a[row] for a in self._history[len(self._history) - length :]] if length else []
        return {**counters, "env": save_env(seat.stateful, actions)}

    def restore(self, state: State) -> None:
        self._load_host(state)
        played = []
        for row, (seat, saved) in enumerate(zip(self._seats, state["envs"], strict=True)):
            seat.episode, seat.seed, seat.total = saved["episode"], saved["seed"], saved["total"]
            seat.start = saved["start"]
            raw = np.asarray(saved["env"].get("actions", []))
            obs = load_env(
                seat.env,
                saved["env"].get("state"),
                actions=self._convert(raw) if len(raw) else [],
                seed=seat.seed,
                length=self._clock - seat.start,
                where=f"{self.name!r} (index {seat.index})",
            )
            played.append(raw)
            if obs is not None:
                self._verify(row, seat, obs, len(raw))
        self._history = _side_by_side(played)

    def _verify(self, row: int, seat: _Seat, obs: Any, num_actions: int) -> None:
        for leaf in self._leaves:
            stored = self._obs[leaf.key][row] if self._stack is None else self._obs[leaf.key][row, -self._stack.channels :]
            found = leaf.read(obs) if self._stack is None else self._stack.read(obs)
            if not np.array_equal(found.astype(stored.dtype), stored, equal_nan=stored.dtype == np.float32):
                raise DataError(
                    f"environment {self.name!r} (index {seat.index}) is not deterministic: a replay of {num_actions} "
                    f"actions after reset(seed={seat.seed}) gave another {leaf.key!r}. Implement get_state() and "
                    "set_state(state) on it, or draw all its randomness from self.np_random"
                )

    def close(self) -> None:
        for seat in self._seats:
            seat.env.close()


def _made(make: Callable[[], Any]) -> Any:
    env = make()
    progressed()
    return env


def _action_rows(action: ActionSpec) -> Callable[[NDArray[Any]], list[Any]]:
    """A function from network actions `[B, ...]` to what `env.step` takes, one for each environment."""
    if action.kind == "discrete" and action.start == 0:
        return list
    rows = env_action_rows(action)
    return lambda actions: rows(actions.reshape(len(actions), *action.shape))


def _side_by_side(played: list[Any]) -> list[Any]:
    """Actions of each row `[n_row, ...]`, all up to now, as one array `[B, ...]` a step (zeros before a row's first)."""
    longest = max(played, key=len)
    history = [np.zeros((len(played), *longest.shape[1:]), longest.dtype) for _ in range(len(longest))]
    for row, actions in enumerate(played):
        for step, action in enumerate(reversed(actions), start=1):
            history[-step][row] = action
    return history
