"""A tensor environment of several agents behind the contract of vectors of teams, stepped in numpy.

There is no loop over environments: a step is one transition of all worlds, and rows of a policy are columns of its arrays.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from runnel.core.checks import check_tensor_team
from runnel.core.rng import make_seed
from runnel.core.routes import Side
from runnel.core.state import Array, State
from runnel.core.trajectories import CLOCK, episode_metric
from runnel.envs.device.base import Leaves
from runnel.envs.device.episodes import MAX_RECORDS, SEGMENT_RECORDS, STEP_RECORDS, NumpyLog, of_team
from runnel.envs.device.numpy_engine import columnwise, plain
from runnel.envs.device.team import CountingTeam, DrawnTeam, TensorTeamEnv, in_numpy, statistics_of
from runnel.envs.device.team_joined import Joined
from runnel.envs.device.team_rows import Decision, Outcome, Seen, TeamRows
from runnel.envs.device.torch_engine import NEVER
from runnel.envs.team.base import RowMemory, team_out
from runnel.envs.team.global_state import SEEN, STATE, has_shared
from runnel.envs.vector.contract import Episode, Fault, StepOut

_FRESH = 256
"""Least number of first states that are drawn together."""
_NO_ROWS = np.zeros(0, np.int64)


class TensorTeam:
    """`num_envs` copies of a `TensorTeamEnv` in CPU memory, whose agents follow `sides`.

    Contract: `envs/team/contract.py`. First states come from one generator, seeded by `seed` and `index0`. With `every_episode`
    no episode is left out of the records of a step, as an evaluation needs it; a run's mean return is of a few.
    """

    def __init__(
        self,
        env: TensorTeamEnv,
        num_envs: int,
        *,
        sides: Mapping[str, Side],
        seed: int,
        index0: int = 0,
        name: str = "",
        every_episode: bool = True,
    ) -> None:
        check_tensor_team(env)
        self.name, self.num_envs, self.index0 = name or env.name, num_envs, index0
        self.sides: Mapping[str, Side] = sides
        self.outs: Mapping[str, StepOut] = {policy: team_out(side, num_envs) for policy, side in sides.items()}
        self._env, self._draws = in_numpy(env), env if isinstance(env, DrawnTeam) else None
        self._seed, self._generator = seed, torch.Generator()
        self._limit = env.max_steps or NEVER
        self._memory = {policy: RowMemory(side, self.outs[policy]) for policy, side in sides.items()}
        self._rows = {policy: TeamRows(side, env.spec) for policy, side in sides.items()}
        views = {policy: rows.of_out(self.outs[policy]) for policy, rows in self._rows.items()}
        self._decisions = {policy: decision for policy, (decision, _) in views.items()}
        self._outcomes = {policy: outcome for policy, (_, outcome) in views.items()}
        self._finals = {policy: {k: x.numpy() for k, x in out.final_obs.items()} for policy, out in self.outs.items()}
        self._shares = any(has_shared(side.spec) for side in sides.values())
        self._joined = Joined(env) if self._shares and env.state_spec is None else None
        names = list(env.spec.agents)
        self._averages = {policy: [names.index(a) for a in side.agents] for policy, side in sides.items()}
        self._trained = [place for policy, side in sides.items() if side.trains for place in self._averages[policy]]
        self._actions = _Actions(env, self._rows, num_envs)
        self._statistics = statistics_of(env)
        self._log = NumpyLog([*sides, *map(episode_metric, self._statistics)])
        self._most_records = max(MAX_RECORDS, min(num_envs, STEP_RECORDS)) if every_episode else SEGMENT_RECORDS
        self._clock, self._next, self._used = 0, 0, 0
        self._state: Leaves = {}
        self._fresh: Leaves = {}
        shape = num_envs, len(names)
        self._totals, self._deadline = np.zeros(shape), np.zeros(num_envs, np.int64)
        self._gone, self._acted, self._some_gone = np.zeros(shape, bool), np.zeros(shape, bool), False
        """Who has left (ended before in this episode), who has decided in it, and whether anybody has left."""
        self._deciding: Array | None = None
        self.reset()

    # ------------------------------------------------------------------------------------------------------------ steps
    def reset(self, seed: int | None = None) -> None:
        self._seed = self._seed if seed is None else seed
        self._generator.manual_seed(make_seed(self._seed, "tensor_env", self.index0))
        self._state = columnwise(self._env.initial(self.num_envs, self._generator))
        self._fresh, self._used = {}, 0
        self._clock, self._next = 0, self._limit
        self._deadline.fill(self._limit)
        self._totals.fill(0.0)
        self._gone.fill(False)
        self._acted.fill(False)
        self._some_gone = False
        self._log.clear()
        for memory in self._memory.values():
            memory.clear()
        self.show(self._decisions)

    def show(self, into: Mapping[str, Decision]) -> None:
        """Write what the agents see now, by policy."""
        active = self._env.active(self._state)
        if self._some_gone:
            active = ~self._gone if active is None else active & ~self._gone
        self._deciding = active
        seen = self._see(self._state, active, self._gone if self._some_gone else None, self._steps())
        for policy, rows in self._rows.items():
            rows.show(seen, into[policy])

    def _see(self, state: Leaves, active: Array | None, gone: Array | None, steps: Array) -> Seen:
        """What everybody sees in `state`, `steps` after the episode began; `gone` `[E, A]` are not there (None: all are)."""
        kinds = self._env.observe(state)
        if not self._shares:
            return Seen(kinds, {}, active)
        if self._joined is not None:
            return Seen(kinds, {SEEN: self._joined(kinds, gone), CLOCK: steps}, active)
        return Seen(kinds, {STATE: self._env.global_state(state), CLOCK: steps}, active)

    def _steps(self) -> Array:
        """The steps that each world has made in its episode."""
        steps: Array = self._clock + self._limit - self._deadline
        return steps

    def send(self, actions: Mapping[str, Tensor]) -> None:
        raw = {policy: actions[policy].numpy() for policy in self._rows}
        for policy, memory in self._memory.items():
            memory.check_actions(raw[policy])
        ends = self.advance(raw, self._outcomes, self._finals)
        for policy, rows in ends.items():
            self.outs[policy].final_rows = rows.tolist()
        self.show(self._decisions)

    def advance(
        self,
        actions: Mapping[str, Array],
        outcomes: Mapping[str, Outcome],
        finals: Mapping[str, Leaves],
        starts: Mapping[str, int] | None = None,
    ) -> dict[str, Array]:
        """One step of all worlds, by policy. Final observations go into `finals`, from the places `starts` on (default 0); the
        rows of those who ended are returned."""
        self._refill()
        following, earned, ended = self._env.transition(self._state, self._actions(actions, self._deciding))
        self._clock += 1
        if self._some_gone:
            earned = np.where(self._gone, np.float32(0.0), earned)
        self._totals += earned
        for policy, rows in self._rows.items():
            outcomes[policy].reward[...] = earned[:, rows.of_team]
        self._state = following
        # `_next` is the earliest time limit of all worlds: until then no comparison of arrays is needed
        if self._clock < self._next and not ended.any():
            if self._deciding is not None:
                self._acted |= self._deciding
            for outcome in outcomes.values():
                outcome.terminated.fill(False)
                outcome.truncated.fill(False)
            return dict.fromkeys(self._rows, _NO_ROWS)
        return self._end(following, ended, outcomes, finals, starts or dict.fromkeys(self._rows, 0))

    def _end(
        self,
        following: Leaves,
        ended: Array,
        outcomes: Mapping[str, Outcome],
        finals: Mapping[str, Leaves],
        starts: Mapping[str, int],
    ) -> dict[str, Array]:
        """Flags and final observations of agents that ended, and a new episode where nobody is left."""
        terminated = ended & ~self._gone
        gone = self._gone | terminated
        cut = self._deadline == self._clock
        truncated = cut[:, None] & ~gone
        over = cut | gone.all(axis=1)
        if self._deciding is not None:  # where an agent ends that has not decided in this episode, there is nothing to end
            self._acted |= self._deciding
            terminated, truncated = terminated & self._acted, truncated & self._acted
        ends = terminated | truncated
        seen = self._see_last(following, ends, gone & ~ends) if ends.any() else None
        rows_of = dict.fromkeys(self._rows, _NO_ROWS)
        for policy, rows in self._rows.items():
            outcomes[policy].terminated[...] = terminated[:, rows.of_team]
            outcomes[policy].truncated[...] = truncated[:, rows.of_team]
            if seen is not None:
                rows_of[policy] = rows.end(seen, ends, terminated, finals[policy], start=starts[policy])
        self._gone = gone
        self._begin(np.flatnonzero(over))
        self._some_gone = bool(self._gone.any())
        return rows_of

    def _see_last(self, following: Leaves, ends: Array, gone: Array) -> Seen:
        """What is seen behind the last step of some agents, in the environments where there are such."""
        envs = np.flatnonzero(ends.any(axis=1))
        state = {k: x[envs] for k, x in following.items()}
        return self._see(state, self._env.active(state), gone[envs] if gone.any() else None, self._steps()[envs])

    def _begin(self, envs: Array) -> None:
        """Log the episodes of `envs` and begin new ones."""
        if not len(envs):
            return
        totals = self._totals[envs]
        means = [totals[:, places].sum(axis=1) / len(places) for places in (self._trained, *self._averages.values())]
        self._log.add(envs, self._steps()[envs], *means, *self._count(envs))
        self._totals[envs] = 0.0
        self._gone[envs], self._acted[envs] = False, False
        self._deadline[envs] = self._clock + self._limit
        if self._clock >= self._next:
            self._next = int(self._deadline.min())
        state = dict(self._state)
        for key, x in self._fresh.items():
            # a copy, because the world may have returned shared memory; "K" keeps columns contiguous
            state[key] = state[key].copy(order="K")
            state[key][envs] = x[self._used : self._used + len(envs)]
        self._state = state
        self._used += len(envs)

    def _count(self, envs: Array) -> list[Array]:
        """What the world says of the episodes of `envs`, which end in its present state."""
        if not self._statistics:
            return []
        assert isinstance(self._env, CountingTeam)
        found = self._env.episode_stats({k: x[envs] for k, x in self._state.items()})
        return [found[name] for name in self._statistics]

    def frame(self, env: int) -> Array:
        """A picture of world `env` as it is, `[H, W, 3]` uint8; only of worlds that draw themselves (`DrawnTeam`)."""
        assert self._draws is not None, "who asks for pictures has looked"
        return self._draws.render(self._state, env)

    def _refill(self) -> None:
        """Draw first states unless there are enough for all worlds. Called before each step."""
        if not self._fresh or self._used + self.num_envs > len(next(iter(self._fresh.values()))):
            num = max(_FRESH, 4 * self.num_envs)
            self._fresh = {k: np.asarray(x) for k, x in self._env.initial(num, self._generator).items()}
            self._used = 0

    def ready(self) -> bool:
        return True

    def recv(self) -> None:
        """A step is done when `send` returns."""

    # ---------------------------------------------------------------------------------------------------------- records
    def episodes(self) -> list[Episode]:
        """Episodes that ended since the last call; of very many, evenly chosen ones: 100 (as many as a run's mean return is
        of), or with `every_episode` at least 256 and as many as there are worlds, up to 4,096."""
        found = self._log.take(self.index0, self._most_records)
        return [of_team(e, list(self.sides), self._statistics) for e in found]

    def faults(self) -> list[Fault]:
        return []

    def snapshot(self) -> State:
        numbers = {"seed": self._seed, "clock": self._clock, "next": self._next, "used": self._used}
        arrays = {"totals": self._totals, "deadline": self._deadline, "gone": self._gone, "acted": self._acted}
        return {
            **numbers,
            **{key: x.copy() for key, x in arrays.items()},
            "generator": self._generator.get_state(),
            "state": plain(self._state),
            "fresh": plain(self._fresh),
            "log": self._log.save(),
        }

    def restore(self, state: State) -> None:
        self._seed = state["seed"]
        self._clock, self._next, self._used = (int(state[key]) for key in ("clock", "next", "used"))
        for key, now in (("totals", self._totals), ("deadline", self._deadline), ("gone", self._gone), ("acted", self._acted)):
            now[...] = state[key]
        self._some_gone = bool(self._gone.any())
        self._generator.set_state(torch.as_tensor(state["generator"]))
        self._state, self._fresh = columnwise(state["state"]), {k: np.array(x) for k, x in state["fresh"].items()}
        self._log.load(state["log"])
        for memory in self._memory.values():
            memory.clear()
        self.show(self._decisions)

    def close(self) -> None:
        """Nothing is open."""


class _Actions:
    """Puts the actions of policies together: an array `[E, A_k, ...]` for each kind of agents, zeros where nobody decides."""

    def __init__(self, env: TensorTeamEnv, rows: Mapping[str, TeamRows], num_envs: int) -> None:
        specs, self._kinds = list(env.spec.agents.values()), [list(places) for places in env.spec.kinds]
        self._parts: list[list[tuple[str, TeamRows]]] = []
        self._shapes, self._memory = [], []
        for kind, places in enumerate(env.spec.kinds):
            action = specs[places[0]].action
            self._parts.append([(policy, mine) for policy, mine in rows.items() if mine.kind == kind])
            self._shapes.append((num_envs, len(places), *action.shape))
            self._memory.append(torch.zeros(self._shapes[-1], dtype=action.dtype).numpy())

    def __call__(self, actions: Mapping[str, Array], deciding: Array | None) -> list[Array]:
        found = []
        for parts, shape, memory, places in zip(self._parts, self._shapes, self._memory, self._kinds, strict=True):
            whole = parts[0][1].is_kind
            if whole and deciding is None:
                found.append(actions[parts[0][0]].reshape(shape))
                continue
            for policy, rows in parts:
                memory[:, rows.of_kind] = actions[policy].reshape(len(memory), rows.width, *shape[2:])
            if deciding is not None:
                memory[~deciding[:, places]] = 0
            found.append(memory)
        return found
