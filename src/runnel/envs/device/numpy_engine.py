"""Steps a tensor environment on the CPU, in numpy. Same contract as `torch_engine.py`, at a third of its cost for 8 rows.

On the CPU the ends of episodes are known at once. So final observations are sparse, and only rows that ended are reset.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from runnel.core.contracts.inference import RowPolicy
from runnel.core.records import Batch
from runnel.core.state import Array, State
from runnel.core.trajectories import REWARD, TASK_PARAMS
from runnel.envs.device.base import Leaves, TaskedEnv, TensorEnv
from runnel.envs.device.cartpole import CartPole
from runnel.envs.device.episodes import NumpyLog
from runnel.envs.device.torch_engine import NEVER, Act, Played
from runnel.envs.vector.contract import BEGUN, TASKS_AHEAD, Episode, StepOut

Rows = Array
_FRESH = 256
"""Least number of first states that are drawn together."""
_COMPILED = (CartPole,)
"""Environments in `compiled.py` (not imported here: that takes a second). Subclasses are excluded: they may step otherwise."""
_COMPILED_ROWS = 256
"""Above this number of environments, numpy steps all of them as fast."""


class NumpyEngine:
    """`num_envs` copies of an `ArrayEnv` in CPU memory."""

    dense = False

    def __init__(self, env: TensorEnv, num_envs: int, generator: torch.Generator, out: StepOut) -> None:
        self._env, self._num_envs, self._generator = env, num_envs, generator
        self._task, self._next_task = ({k: x.numpy() for k, x in part.items()} for part in (out.task, out.next_task))
        self._limit = env.max_steps or NEVER
        self._channels = env.spec.channels.names
        self._log = NumpyLog(self._channels)
        self._clock, self._next = 0, 0
        self._state: Leaves = {}
        self._fresh: Leaves = {}
        self._used = 0
        self._totals = {name: np.zeros(num_envs) for name in (REWARD, *self._channels)}
        self._deadline = np.zeros(num_envs, np.int64)
        self._plans: dict[tuple[int, int], _Plan] = {}
        self.compiles = type(env) in _COMPILED and num_envs <= _COMPILED_ROWS and not self._task
        """Whether `play_compiled` can play a segment."""
        self._views: dict[int, _Views] = {}
        self.begin()

    def begin(self) -> None:
        """Begin an episode in every environment."""
        self._state = columnwise(self._first(np.arange(self._num_envs)))
        self._fresh, self._used = {}, 0
        self._clock, self._next = 0, self._limit
        for total in self._totals.values():
            total.fill(0.0)
        self._deadline.fill(self._limit)
        self._log.clear()

    def _first(self, rows: Rows) -> Mapping[str, ArrayLike]:
        """First states of `rows`, which play their next tasks from now on if those are given."""
        if not self._task:
            return self._env.initial(len(rows), self._generator)
        assert isinstance(self._env, TaskedEnv), "an environment without tasks is refused before"
        begun = self._next_task[BEGUN]
        for key, now in self._task.items():
            now[rows] = self._next_task[key][rows, begun[rows] % TASKS_AHEAD]
        begun[rows] += 1
        return self._env.initial_of(torch.from_numpy(self._task[TASK_PARAMS][rows]), self._generator)

    def show(self, into: Batch) -> None:
        """Write the current observation."""
        for key, x in self._env.observe(self._state).items():
            into[key].numpy()[...] = x

    def step(self, action: Tensor, out: StepOut) -> None:
        views = self._views.get(id(out)) or self._views.setdefault(id(out), _Views(out))
        following, rows = self._advance(action.numpy(), views.rewards, views.terminated, views.truncated)
        out.final_rows = []
        if rows is not None:
            out.final_rows = rows.tolist()
            for key, x in self._reset(following, rows).items():
                views.final[key][: len(rows)] = x
        self._state = following
        for key, x in self._env.observe(following).items():
            views.obs[key][...] = x

    def _advance(self, action: Rows, rewards: Leaves, terminated: Rows, truncated: Rows) -> tuple[Leaves, Rows | None]:
        """Step into the given memory, by channel. Returns the state before resets and the rows that ended (None: no row)."""
        self._refill()
        following, earned, ended = self._env.transition(self._state, action)
        self._clock += 1
        self._totals[REWARD] += earned
        rewards[REWARD][...] = earned
        for name in self._channels:
            self._totals[name] += following[name]
            rewards[name][...] = following[name]
        terminated[...] = ended
        # `_next` is the earliest time limit of all rows: until then no comparison of arrays is needed
        if self._clock < self._next:
            truncated.fill(False)
        else:
            np.equal(self._deadline, self._clock, out=truncated)
            ended = ended | truncated
        return following, np.flatnonzero(ended) if np.count_nonzero(ended) else None

    def _reset(self, following: Leaves, rows: Rows) -> Leaves:
        """Log the episodes of `rows` and begin new ones in `following`. Returns the final observations."""
        final = self._env.observe({k: x[rows] for k, x in following.items()})
        lengths = self._clock + self._limit - self._deadline[rows]
        self._log.add(rows, lengths, *(total[rows] for total in self._totals.values()))
        for total in self._totals.values():
            total[rows] = 0.0
        self._deadline[rows] = self._clock + self._limit
        if self._clock >= self._next:
            self._next = int(self._deadline.min())
        if self._task:  # a first state belongs to the task of its row, so none are kept in store
            fresh = {k: np.asarray(x) for k, x in self._first(rows).items()}
        else:
            fresh = {k: x[self._used : self._used + len(rows)] for k, x in self._fresh.items()}
            self._used += len(rows)
        for key, x in fresh.items():
            # a copy, because the environment may have returned shared memory; "K" keeps columns contiguous
            following[key] = following[key].copy(order="K")
            following[key][rows] = x
        return final

    def _refill(self) -> None:
        """Draw first states unless there are enough for all environments. Called before each step."""
        if self._task:
            return
        if not self._fresh or self._used + self._num_envs > len(next(iter(self._fresh.values()))):
            num = max(_FRESH, 4 * self._num_envs)
            self._fresh = {k: x.numpy() for k, x in self._env.initial(num, self._generator).items()}
            self._used = 0

    # -------------------------------------------------------------------------------------------------------- a segment
    def play_compiled(self, arrays: Batch, policy: RowPolicy, noise: Tensor) -> Played:
        """`play` by compiled code, for an environment in `PLAYS` and a policy as a `RowPolicy`."""
        from runnel.envs.device.compiled import PLAYS

        plan, play = self._plan(arrays, noise), PLAYS[type(self._env)]
        ((leaf, obs),) = plan.obs.items()
        self.show(plan.rows[0])
        memory = (obs, *(plan.arrays[k] for k in ("action", "logprob", REWARD)), plan.terminated, plan.truncated)
        scratch = tuple(np.empty(n, np.float32) for n in policy.sizes[1:4])
        num_steps, num_final, t = len(plan.terminated), 0, 0
        while t < num_steps:
            self._refill()
            log = self._log.room(num_steps * self._num_envs)
            marks = np.array([self._clock, self._limit, self._used, num_final, 0])
            (pool,) = self._fresh.values()
            shape, ends, numbers = (policy.vector, policy.sizes, policy.relu), (plan.final[leaf], plan.final_index), plan.noise
            t = play(*shape, t, pool, marks, self._deadline, self._totals[REWARD], numbers, memory, ends, log, scratch)
            self._clock, _, self._used, num_final, num_episodes = marks.tolist()
            self._log.keep(num_episodes)
        self._state = columnwise(dict.fromkeys(self._state, obs[num_steps]))
        self._next = int(self._deadline.min())
        return Played(num_final, None, plan.total())

    def play(self, arrays: Batch, act: Act, noise: Tensor) -> Played:
        """Fill the arrays of a segment. `noise` is `[T, B, n]`, the same memory at every call."""
        plan = self._plan(arrays, noise)
        terminated, truncated = plan.terminated, plan.truncated
        self.show(plan.rows[0])
        for key, now in self._task.items():
            plan.arrays[key][0] = now
        num_final = 0
        for t, request in enumerate(plan.rows):
            reply = act(request)
            for key, into in plan.fields_of(reply):
                into[t] = reply[key].numpy()
            rewards = {name: x[t] for name, x in plan.rewards.items()}
            following, rows = self._advance(reply["action"].numpy(), rewards, terminated[t], truncated[t])
            if rows is not None:
                stop = num_final + len(rows)
                for key, x in self._reset(following, rows).items():
                    plan.final[key][num_final:stop] = x
                plan.final_index[num_final:stop] = rows + t * self._num_envs
                num_final = stop
            self._state = following
            for key, x in self._env.observe(following).items():
                plan.obs[key][t + 1] = x
            for key, now in self._task.items():
                plan.arrays[key][t + 1] = now
        return Played(num_final, None, plan.total())

    def _plan(self, arrays: Batch, noise: Tensor) -> _Plan:
        key = (arrays["final_index"].data_ptr(), noise.data_ptr())
        if key not in self._plans:
            self._plans[key] = _Plan(arrays, noise, list(self._env.spec.obs), list(self._totals))
        return self._plans[key]

    # ---------------------------------------------------------------------------------------------------------- records
    def episodes(self, index0: int) -> list[Episode]:
        return self._log.take(index0)

    def save(self) -> State:
        numbers = {"clock": self._clock, "next": self._next, "used": self._used}
        totals = {_total_name(name): total.copy() for name, total in self._totals.items()}
        arrays = {**totals, "deadline": self._deadline.copy()}
        return {"state": plain(self._state), "fresh": plain(self._fresh), **numbers, **arrays, "log": self._log.save()}

    def load(self, state: State) -> None:
        self._state, self._fresh = columnwise(state["state"]), {k: np.array(x) for k, x in state["fresh"].items()}
        self._clock, self._next, self._used = int(state["clock"]), int(state["next"]), int(state["used"])
        for name, total in self._totals.items():
            total[:] = state[_total_name(name)]
        self._deadline[:] = state["deadline"]
        self._log.load(state["log"])


class _Views:
    """Numpy views of a vector's output memory."""

    def __init__(self, out: StepOut) -> None:
        self.rewards = {name: x.numpy() for name, x in {REWARD: out.reward, **out.channels}.items()}
        self.terminated, self.truncated = out.terminated.numpy(), out.truncated.numpy()
        self.obs = {k: x.numpy() for k, x in out.obs.items()}
        self.final = {k: x.numpy() for k, x in out.final_obs.items()}


class _Plan:
    """Views of one segment's memory, made once: a request for each step, and numpy views of the arrays to write."""

    def __init__(self, arrays: Batch, noise: Tensor, keys: list[str], channels: list[str]) -> None:
        steps = [dict(zip(keys, leaves, strict=True)) for leaves in zip(*(arrays[k].unbind(0) for k in keys), strict=True)]
        self.rows = [Batch({**obs, "noise": u}) for obs, u in zip(steps, noise.unbind(0), strict=False)]
        found = {k: x.numpy() for k, x in arrays.items()}
        self.obs = {k: found[k] for k in keys}
        self.final = {k: found["final_" + k] for k in keys}
        self.final_index = found["final_index"]
        self.rewards = {name: found[name] for name in channels}
        self.terminated, self.truncated = found["terminated"], found["truncated"]
        self.arrays, self.noise = found, noise.numpy()
        self._fields: list[tuple[str, Rows]] | None = None

    def fields_of(self, reply: Batch) -> list[tuple[str, Rows]]:
        """Arrays for those fields of a policy's reply that the stream has."""
        if self._fields is None:
            self._fields = [(k, self.arrays[k]) for k in reply if k in self.arrays]
        return self._fields

    def total(self) -> Tensor:
        """Sum of all observations and rewards: finite only if all of them are."""
        floats = [x for x in (*self.rewards.values(), *self.obs.values()) if x.dtype == np.float32]
        return torch.tensor(sum(float(x.sum()) for x in floats))


def _total_name(channel: str) -> str:
    """The name of a channel's totals in a checkpoint."""
    return "total" if channel == REWARD else f"total/{channel}"


def columnwise(leaves: Mapping[str, ArrayLike]) -> Leaves:
    """Copies with contiguous columns."""
    return {k: np.array(x, order="F") for k, x in leaves.items()}


def plain(leaves: Leaves) -> State:
    """Copies as data of a checkpoint."""
    return {k: torch.from_numpy(np.array(x, order="C")) for k, x in leaves.items()}
