"""The vector contract, and n Gymnasium environments in this process behind it.

A vector steps B environments in lock-step with same-step autoreset: where an episode ends, `obs` is already the next
episode's first observation, and the observation that ended it is in `final_obs`. The tensors of a `StepOut` are the same
memory at every step, so that a sampler looks them up once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from runnel.core.batch import Batch
from runnel.core.errors import DataError, RunnelError
from runnel.core.protocols import State
from runnel.core.rng import seed_sequence
from runnel.core.spaces import EnvSpec
from runnel.envs.rewind import load_env, save_env, stateful_part
from runnel.envs.spaces import MASK, action_converter, env_spec, mask_in_obs, obs_leaves, obs_writer

_SEED_BLOCK = 64


@dataclass
class Episode:
    """A finished episode of environment `env`: the sum of its rewards and its number of steps."""

    env: int
    total: float
    length: int


@dataclass
class StepOut:
    """What a step left behind: fixed memory, overwritten by the next step.

    `obs` leaves `[B, ...]` and `action_mask` `[B, A]` belong to the next decision; `reward` (float32), `terminated` and
    `truncated` (bool) are `[B]`. `final_rows` names the environments whose episode just ended, and `final_obs[key][f]`
    is the last observation of `final_rows[f]`. Dense vectors (`final_rows` None) give `final_obs` `[B, ...]` for every
    row: the observation that followed the action, before any reset.
    """

    obs: Batch
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_obs: Batch
    final_rows: list[int] | None
    action_mask: Tensor | None = None


@runtime_checkable
class VectorEnv(Protocol):
    """B environments that step together. `out` is the fixed memory that `reset` and `step` fill and return;
    `index0` is the global number of the first one."""

    name: str
    num_envs: int
    index0: int
    spec: EnvSpec
    out: StepOut

    def reset(self, seed: int | None = None) -> StepOut:
        """Start every environment anew, at episode 0 of `seed` (None: of the seed it was made with)."""
        ...

    def step(self, actions: Tensor) -> StepOut:
        """One step of every environment with network actions `[B, ...]` (counted from 0, not clipped)."""
        ...

    def episodes(self) -> list[Episode]:
        """Episodes that ended since the last call."""
        ...

    def snapshot(self) -> State: ...

    def restore(self, state: State) -> None: ...

    def close(self) -> None: ...


def episode_seed(seed: int, env: int, episode: int) -> int:
    """The seed that environment `env` is reset with for its `episode`; `env.reset(seed=...)` replays it anywhere.

    Seeds are drawn in blocks, because making a seed sequence costs as much as a few environment steps.

    >>> episode_seed(1, 0, 0) != episode_seed(1, 0, 1) != episode_seed(1, 1, 0)
    True
    """
    return _seed_block(seed, env, episode // _SEED_BLOCK)[episode % _SEED_BLOCK]


def _seed_block(seed: int, env: int, block: int) -> list[int]:
    words = seed_sequence(seed, "env", env, block).generate_state(_SEED_BLOCK, np.uint32)
    return [int(w) for w in words >> 1]


def look_at(env: Any, name: str) -> EnvSpec:
    """The spec of a Gymnasium environment, from one reset: only that shows whether masks come in `info`."""
    try:
        _, info = env.reset(seed=0)
    except Exception as error:
        raise DataError(f"environment {name!r} raised {type(error).__name__} at its first reset: {error}") from error
    return env_spec(env.observation_space, env.action_space, has_mask=MASK in info)


class _Seat:
    """One environment of a vector, with what a replay of its episode needs."""

    def __init__(self, env: Any, index: int) -> None:
        self.env, self.index = env, index
        self.stateful = stateful_part(env)
        self.episode = -1
        self.seed = 0
        self.actions: list[Any] = []
        self.total = 0.0
        self.start = 0
        self._block: tuple[int, int, list[int]] = (-1, -1, [])

    def next_episode(self, seed: int, clock: int) -> tuple[Any, dict[str, Any]]:
        """Reset into the next episode of run seed `seed`; `clock` is the vector's step count at its first decision."""
        self.episode += 1
        block, offset = divmod(self.episode, _SEED_BLOCK)
        if self._block[:2] != (seed, block):
            self._block = (seed, block, _seed_block(seed, self.index, block))
        self.seed = self._block[2][offset]
        self.actions, self.total, self.start = [], 0.0, clock
        obs, info = self.env.reset(seed=self.seed)
        return obs, info


class SerialVector:
    """`num_envs` Gymnasium environments, made by `make`, stepped one after the other in this process.

    `index0` is the global number of the first one: seeds and episode records carry global numbers.
    """

    def __init__(self, make: Callable[[], Any], num_envs: int, *, seed: int, index0: int = 0, name: str = "") -> None:
        self.num_envs, self._seed, self.index0 = num_envs, seed, index0
        self._seats = [_Seat(make(), index0 + i) for i in range(num_envs)]
        env = self._seats[0].env
        self.name = name or (env.spec.id if env.spec is not None else type(env.unwrapped).__name__)
        self._mask_in_obs = mask_in_obs(env.observation_space)
        self._clock = 0
        self._ended: list[Episode] = []
        self._steps = [seat.env.step for seat in self._seats]
        self._convert = action_converter(env.action_space)
        self._leaves = obs_leaves(env.observation_space)
        self.spec = look_at(env, self.name)
        self._allocate()

    def _allocate(self) -> None:
        b = self.num_envs
        obs, final = (
            Batch({k: torch.zeros(b, *leaf.shape, dtype=leaf.dtype) for k, leaf in self.spec.obs.items()}) for _ in range(2)
        )
        mask = torch.ones(b, self.spec.action.num_actions, dtype=torch.bool) if self.spec.has_mask else None
        flags = [torch.zeros(b, dtype=torch.bool) for _ in range(2)]
        self.out = StepOut(obs, torch.zeros(b), flags[0], flags[1], final, [], mask)
        self._write = obs_writer(self._leaves, {k: x.numpy() for k, x in obs.items()})
        self._write_final = obs_writer(self._leaves, {k: x.numpy() for k, x in final.items()})
        self._reward, self._terminated, self._truncated = self.out.reward.numpy(), flags[0].numpy(), flags[1].numpy()
        self._mask = None if mask is None else mask.numpy()

    def reset(self, seed: int | None = None) -> StepOut:
        self._seed = self._seed if seed is None else seed
        self._clock, self._ended = 0, []
        for row, seat in enumerate(self._seats):
            seat.episode = -1
            try:
                self._begin(row, seat)
            except Exception as error:
                raise self._failure(seat, error) from error
        self._reward.fill(0.0)
        self._clear_flags()
        return self.out

    def step(self, actions: Tensor) -> StepOut:
        if self.out.final_rows:
            self._clear_flags()
        reward_out, write, mask, seats = self._reward, self._write, self._mask, self._seats
        self._clock += 1
        first, row = self._clock == 1, 0
        try:
            for row, action in enumerate(self._convert(actions)):
                seat = seats[row]
                obs, reward, terminated, truncated, info = self._steps[row](action)
                if seat.stateful is None:
                    seat.actions.append(action)
                reward_out[row] = reward
                seat.total += float(reward)
                if terminated or truncated:
                    self._check(obs, info)
                    self._end(row, seat, obs, (terminated, truncated))
                    self._begin(row, seat)
                    continue
                write(row, obs)
                if mask is not None:
                    self._write_mask(row, obs, info)
                if first:
                    self._check(obs, info)
        except Exception as error:
            raise self._failure(seats[row], error) from error
        return self.out

    def _begin(self, row: int, seat: _Seat) -> None:
        """The next episode of a seat."""
        obs, info = seat.next_episode(self._seed, self._clock)
        self._check(obs, info)
        self._write(row, obs)
        if self._mask is not None:
            self._write_mask(row, obs, info)

    def _check(self, obs: Any, info: Mapping[str, Any]) -> None:
        """What an environment gives is held against its spaces at the first step, and at both ends of every episode."""
        for leaf in self._leaves:
            leaf.check(obs)
        if self._mask is None and MASK in info:
            raise DataError("gave an action_mask, but none at its first reset; put one into every info")

    def _write_mask(self, row: int, obs: Any, info: Mapping[str, Any]) -> None:
        assert self._mask is not None
        found = np.asarray(obs[MASK] if self._mask_in_obs else info[MASK], dtype=bool)
        if found.shape != self._mask.shape[1:] or not found.any():
            raise DataError(
                f"gave the action_mask {found.tolist()}; it needs one flag for each of {self._mask.shape[1]} actions, and at "
                "least one open action (where none is left, end the episode)"
            )
        self._mask[row] = found

    def _end(self, row: int, seat: _Seat, obs: Any, flags: tuple[Any, Any]) -> None:
        rows = self.out.final_rows
        assert rows is not None
        self._terminated[row], self._truncated[row] = flags
        self._write_final(len(rows), obs)
        rows.append(row)
        self._ended.append(Episode(seat.index, seat.total, self._clock - seat.start))

    def _clear_flags(self) -> None:
        self._terminated.fill(False)
        self._truncated.fill(False)
        self.out.final_rows = []

    def _failure(self, seat: _Seat, error: Exception) -> Exception:
        where = f"environment {self.name!r} (index {seat.index}, episode {seat.episode}, step {self._clock - seat.start})"
        detail = str(error) if isinstance(error, RunnelError) else f"raised {type(error).__name__}: {error}"
        return DataError(f"{where} {detail}")

    def episodes(self) -> list[Episode]:
        ended, self._ended = self._ended, []
        return ended

    def snapshot(self) -> State:
        return {
            "seed": self._seed,
            "clock": self._clock,
            "out": {k: x.clone() for k, x in _out_arrays(self.out).items()},
            "ended": [[e.env, e.total, e.length] for e in self._ended],
            "envs": [self._save(seat) for seat in self._seats],
        }

    def _save(self, seat: _Seat) -> State:
        counters = {"episode": seat.episode, "seed": seat.seed, "total": seat.total, "start": seat.start}
        return {**counters, "env": save_env(seat.stateful, seat.actions)}

    def restore(self, state: State) -> None:
        self._seed, self._clock = state["seed"], state["clock"]
        self._ended = [Episode(int(e), float(r), int(n)) for e, r, n in state["ended"]]
        for key, x in _out_arrays(self.out).items():
            x.copy_(torch.as_tensor(state["out"][key]))
        for row, (seat, saved) in enumerate(zip(self._seats, state["envs"], strict=True)):
            seat.episode, seat.seed, seat.total = saved["episode"], saved["seed"], saved["total"]
            seat.start = saved["start"]
            obs, seat.actions = load_env(
                seat.env,
                saved["env"],
                seed=seat.seed,
                length=self._clock - seat.start,
                where=f"{self.name!r} (index {seat.index})",
            )
            if obs is not None:
                self._verify(row, seat, obs)
        self._clear_flags()

    def _verify(self, row: int, seat: _Seat, obs: Any) -> None:
        for leaf in self._leaves:
            stored = self.out.obs[leaf.key][row].numpy()
            if not np.array_equal(leaf.read(obs).astype(stored.dtype), stored, equal_nan=stored.dtype == np.float32):
                raise DataError(
                    f"environment {self.name!r} (index {seat.index}) is not deterministic: a replay of {len(seat.actions)} "
                    f"actions after reset(seed={seat.seed}) gave another {leaf.key!r}. Implement get_state() and "
                    "set_state(state) on it, or draw all its randomness from self.np_random"
                )

    def close(self) -> None:
        for seat in self._seats:
            seat.env.close()


def _out_arrays(out: StepOut) -> dict[str, Tensor]:
    return {**out.obs, **({} if out.action_mask is None else {MASK: out.action_mask})}
