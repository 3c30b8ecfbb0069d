"""Steps a tensor environment on a device: adds resets, time limits and episode records to its three functions.

Nothing here waits for the device, and no Python branch depends on the content of a tensor. So a CUDA graph can record a whole
segment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runnel.core.records import Batch
from runnel.core.state import State
from runnel.core.trajectories import REWARD, TASK_PARAMS
from runnel.envs.device.base import TaskedEnv, TensorEnv
from runnel.envs.device.episodes import TorchLog, carried, ended_episodes
from runnel.envs.vector.contract import BEGUN, TASKS_AHEAD, Episode, StepOut

Act = Callable[[Batch], Batch]
"""From request rows (observation leaves `[B, ...]`, `noise` `[B, n]`) to a reply (`action`, `logprob`, ...)."""
NEVER = 1 << 30


@dataclass
class Played:
    """The result of a segment: the number of final observations, records of episodes (of `ended_episodes`; None where they are
    in the log), and a number that is finite if all observations and rewards are."""

    num_final: int
    records: tuple[Tensor, Tensor] | None
    total: Tensor


class TorchEngine:
    """`num_envs` copies of `env` as tensors on the device of `generator`.

    A single step gives dense final observations. A segment keeps those of truncated episodes only, because nobody bootstraps
    from the end of a terminated episode. An environment is truncated at most once in `max_steps` steps, so one row for each
    environment is enough. Where no episode was truncated, the row repeats the last observation of the segment.
    """

    dense = True

    def __init__(self, env: TensorEnv, num_envs: int, generator: torch.Generator, out: StepOut) -> None:
        self._env, self._num_envs, self._generator = env, num_envs, generator
        self._task, self._next_task = out.task, out.next_task
        self._limit = env.max_steps or NEVER
        self._state = self._first().map(torch.clone)
        self._channels = env.spec.channels.names
        self._totals = [torch.zeros(num_envs, dtype=torch.float64, device=generator.device) for _ in (REWARD, *self._channels)]
        self._length = torch.zeros(num_envs, dtype=torch.int64, device=generator.device)
        self._log = TorchLog(num_envs, generator.device, self._channels)
        shown = env.observe(self._state)
        self._same = {leaf: key for key, x in shown.items() for leaf, y in self._state.items() if x is y}
        self._derived = [key for key in shown if key not in self._same.values()]

    def _first(self) -> Batch:
        """First states of all environments, which play the tasks that come next if those are given."""
        if not self._task:
            return self._env.initial(self._num_envs, self._generator)
        assert isinstance(self._env, TaskedEnv), "an environment without tasks is refused before"
        return self._env.initial_of(self._coming()[TASK_PARAMS], self._generator)

    def _coming(self) -> Batch:
        """The task that each row plays next."""
        place = self._next_task[BEGUN] % TASKS_AHEAD
        rows = torch.arange(self._num_envs, device=place.device)
        return Batch({k: self._next_task[k][rows, place] for k in self._task})

    def _begin_tasks(self, over: Tensor) -> None:
        """The rows whose episodes ended (`over` `[B]`) go on to their next tasks."""
        if self._task:
            _copy(self._task, {k: torch.where(_beside(over, x), x, self._task[k]) for k, x in self._coming().items()})
            self._next_task[BEGUN] += over

    def begin(self) -> None:
        """Begin an episode in every environment."""
        _copy(self._state, self._first())
        self._begin_tasks(torch.ones_like(self._length, dtype=torch.bool))
        for total in self._totals:
            total.zero_()
        self._length.zero_()
        self._log.clear()

    def show(self, into: Batch) -> None:
        """Write the current observation."""
        _copy(into, self._env.observe(self._state))

    def step(self, action: Tensor, out: StepOut) -> None:
        following, reward, terminated = self._env.transition(self._state, action)
        self._length += 1
        rewards = [reward, *(following[name] for name in self._channels)]
        for total, into, x in zip(self._totals, (out.reward, *out.channels.values()), rewards, strict=True):
            total += x
            into.copy_(x)
        out.terminated.copy_(terminated)
        torch.ge(self._length, self._limit, out=out.truncated)
        over = out.terminated | out.truncated
        _copy(out.final_obs, self._env.observe(following))
        self._log.add(over, self._totals[0], self._length, *self._totals[1:])
        # a first state for every row, used or not: a number of rows that ended would have to come from the device
        fresh = self._first()
        self._begin_tasks(over)
        _copy(self._state, {k: torch.where(_beside(over, x), fresh[k], x) for k, x in following.items()})
        for total in self._totals:
            total.masked_fill_(over, 0.0)
        self._length.masked_fill_(over, 0)
        self.show(out.obs)

    # -------------------------------------------------------------------------------------------------------- a segment
    def play(self, arrays: Batch, act: Act, noise: Tensor) -> Played:
        """Fill the arrays of a segment; `noise` is `[T, B, n]`.

        The environment writes each observation where the policy reads it. Replies, rewards and ends are new tensors at each
        step; they are stacked once at the end, which is one kernel instead of T.
        """
        num_steps, truncated = len(noise), arrays["truncated"]
        pool = self._pool(num_steps)
        obs = {key: arrays[key] for key in self._env.spec.obs}
        self.show(Batch({key: x[0] for key, x in obs.items()}))
        state, deadline, over = self._state, self._limit - self._length, torch.empty_like(truncated)
        _copy(Batch({k: arrays[k][0] for k in self._task}), self._task)
        replies, followings, rewards, ends = [], [], [], []
        for t in range(num_steps):
            replies.append(act(Batch({**{key: x[t] for key, x in obs.items()}, "noise": noise[t]})))
            following, reward, terminated = self._env.transition(state, replies[-1]["action"])
            torch.eq(deadline, t + 1, out=truncated[t])
            torch.logical_or(terminated, truncated[t], out=over[t])
            fresh = self._first() if self._task else Batch({k: x[t] for k, x in pool.items()})
            state = self._go_on(t, over[t], following, fresh, obs)
            self._begin_tasks(over[t])
            _copy(Batch({k: arrays[k][t + 1] for k in self._task}), self._task)
            deadline.masked_fill_(over[t], t + 1 + self._limit)
            followings.append(following)
            rewards.append(reward)
            ends.append(terminated)
        torch.stack(rewards, out=arrays[REWARD])
        for name in self._channels:
            torch.stack([following[name] for following in followings], out=arrays[name])
        torch.stack(ends, out=arrays["terminated"])
        for key in (k for k in replies[0] if k in arrays):
            torch.stack([reply[key] for reply in replies], out=arrays[key])
        num_final = self._finals(arrays, followings, state)
        _copy(self._state, state)
        channels = [arrays[name] for name in (REWARD, *self._channels)]
        return Played(num_final, self._record(channels, over), _total([*channels, *obs.values()]))

    def _pool(self, num_steps: int) -> Batch:
        """First states for all steps of a segment `[T, B, ...]`, drawn at once; of given tasks it is not known ahead which."""
        if self._task:
            return Batch()
        found = self._env.initial(num_steps * self._num_envs, self._generator)
        return found.map(lambda x: x.view(num_steps, self._num_envs, *x.shape[1:]))

    def _go_on(self, t: int, over: Tensor, following: Mapping[str, Tensor], fresh: Batch, obs: Mapping[str, Tensor]) -> Batch:
        """The state after resets. A leaf that is an observation is written where the next request reads it."""
        state = Batch()
        for leaf, x in following.items():
            if leaf in self._same:
                into = obs[self._same[leaf]][t + 1]
                state[leaf] = torch.where(_beside(over, x), fresh[leaf], x, out=into)
            else:
                state[leaf] = torch.where(_beside(over, x), fresh[leaf], x)
        if self._derived:
            shown = self._env.observe(state)
            for key in self._derived:
                obs[key][t + 1].copy_(shown[key])
        return state

    def _finals(self, arrays: Batch, followings: list[dict[str, Tensor]], state: Batch) -> int:
        """Write final observations and their places in `[T * B]`. Returns their number."""
        if not self._env.max_steps:
            return 0
        num_steps, num_envs = len(followings), self._num_envs
        place = torch.arange(num_steps * num_envs, device=self._length.device)
        stacked = {k: torch.stack([f[k] for f in followings]) for k in followings[0]}
        if num_steps > self._limit:  # a row may be truncated twice in a segment: keep all observations
            num, found = num_steps * num_envs, {k: x.flatten(0, 1) for k, x in stacked.items()}
        else:
            num, rows = num_envs, place[:num_envs]
            cut, when = arrays["truncated"].any(dim=0), arrays["truncated"].to(torch.uint8).argmax(dim=0)
            place = torch.where(cut, when, num_steps - 1) * num_envs + rows
            found = {k: torch.where(_beside(cut, state[k]), x[when, rows], state[k]) for k, x in stacked.items()}
        arrays["final_index"][:num].copy_(place)
        for key, x in self._env.observe(found).items():
            arrays["final_" + key][:num].copy_(x)
        return num

    def _record(self, rewards: list[Tensor], over: Tensor) -> tuple[Tensor, Tensor]:
        """Records of the episodes that ended. Updates sums and length of the episodes that go on."""
        records = ended_episodes(rewards, over, self._totals, self._length)
        totals, length = carried(rewards, over, self._totals, self._length)
        for total, now in zip(self._totals, totals, strict=True):
            total.copy_(now)
        self._length.copy_(length)
        return records

    # ---------------------------------------------------------------------------------------------------------- records
    def episodes(self, index0: int) -> list[Episode]:
        """Episodes that ended in single steps since the last call. Waits for the device."""
        return self._log.take(index0)

    def save(self) -> State:
        total, *sums = (x.clone() for x in self._totals)
        state = {"state": dict(self._state.map(torch.clone)), "total": total, "length": self._length.clone()}
        return {**state, "sums": sums, "log": self._log.save()}

    def load(self, state: State) -> None:
        _copy(self._state, {k: torch.as_tensor(x) for k, x in state["state"].items()})
        for now, saved in zip(self._totals, (state["total"], *state.get("sums", ())), strict=True):  # older ones have no sums
            now.copy_(torch.as_tensor(saved))
        self._length.copy_(torch.as_tensor(state["length"]))
        self._log.load(state["log"])


def _copy(into: Batch, source: Mapping[str, Tensor]) -> None:
    for key, x in source.items():
        if x is not into[key]:
            into[key].copy_(x)


def _beside(flag: Tensor, x: Tensor) -> Tensor:
    """`flag` `[B]` as `[B, 1, ...]`, with as many dimensions as `x` `[B, ...]`."""
    return flag.view(-1, *([1] * (x.dim() - 1)))


def _total(arrays: Sequence[Tensor]) -> Tensor:
    """Sum of rewards, first, and observations: finite only if all of them are."""
    total = arrays[0].sum()
    for x in arrays[1:]:
        if x.is_floating_point():
            total = total + x.sum()
    return total
