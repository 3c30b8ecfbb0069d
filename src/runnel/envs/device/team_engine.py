"""Plays whole segments of worlds of several agents on a device, all policies in one function of tensors.

It does what `team_vector.py` does step by step in numpy: agents leave early and wait, worlds begin anew when all have left or
at their time limit. Nothing here waits for the device, and no Python branch depends on the content of a tensor. So a CUDA graph
can record a segment: what all policies see and answer, what the worlds do, resets, and all that is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runnel.core.checks import check_tensor_team
from runnel.core.records import Batch
from runnel.core.rng import make_seed
from runnel.core.routes import Side
from runnel.core.state import State
from runnel.core.trajectories import CLOCK
from runnel.envs.device.base import Leaves
from runnel.envs.device.episodes import carried, ended_episodes
from runnel.envs.device.team import CountingTeam, TeamWorld, TensorTeamEnv, statistics_of
from runnel.envs.device.team_columns import AskedRows, Playing, PolicyColumns, Shown, write_replies
from runnel.envs.device.team_joined import Joined
from runnel.envs.device.torch_engine import NEVER
from runnel.envs.team.global_state import SEEN, STATE, has_shared


@dataclass
class TeamPlayed:
    """The result of a segment: by policy the number of final observations; records of episodes (`ended_episodes`: the return of
    the trained agents, those of each policy, then `TeamEngine.statistics`); and by trained policy a number that is finite if
    all that it wrote is."""

    num_final: dict[str, int]
    records: tuple[Tensor, Tensor]
    totals: Tensor


@dataclass
class _Worlds:
    """Where all worlds are: their states, who has left, who has decided in this episode `[E, A]`, and the step of this segment
    behind which each world is cut `[E]`."""

    state: Leaves
    gone: Tensor
    acted: Tensor
    deadline: Tensor


@dataclass
class _TeamStep:
    """What a step did: the states behind it, before anything begins anew; rewards and ends, and who had left before `[E, A]`;
    and which worlds are over `[E]`."""

    following: Leaves
    earned: Tensor
    terminated: Tensor
    truncated: Tensor
    left: Tensor
    over: Tensor


class TeamEngine:
    """`num_envs` copies of a `TensorTeamEnv` as tensors on `device`, whose agents follow `sides`.

    Only truncated agents have final observations, because nobody bootstraps from the end of a terminated episode. A world is
    cut at most once in `max_steps` steps, so one place for each row is enough; in longer segments every step has one.
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
        device: str = "cpu",
    ) -> None:
        check_tensor_team(env)
        self.env, self.num_envs, self.sides, self.index0 = env, num_envs, sides, index0
        self.name, self.device = name or env.name, torch.empty(0, device=device).device
        self._seed, self.generator = seed, torch.Generator(device=self.device)
        self._limit = env.max_steps or NEVER
        self._columns = {policy: PolicyColumns(side, env.spec, num_envs, self.device) for policy, side in sides.items()}
        self._shares = any(has_shared(side.spec) for side in sides.values())
        self._joined = Joined(env) if self._shares and env.state_spec is None else None
        self._by_kind = _ByKind(env, self._columns, self.device)
        self._means = _means(list(env.spec.agents), sides).to(self.device)
        shape = num_envs, len(env.spec.agents)
        self._gone, self._acted = (torch.zeros(shape, dtype=torch.bool, device=self.device) for _ in range(2))
        self._length = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self.statistics = statistics_of(env, self.device)
        """Names of what the world says of whole episodes."""
        sums = self._means.shape[1] + len(self.statistics)
        self._totals = [torch.zeros(num_envs, dtype=torch.float64, device=self.device) for _ in range(sums)]
        self._state = Batch()

    def begin(self) -> None:
        """Begin an episode in every world, from the seed."""
        self.generator.manual_seed(make_seed(self._seed, "tensor_env", self.index0))
        first = Batch(self.env.initial(self.num_envs, self.generator))
        self._state = self._state or first.map(torch.clone)
        _copy(self._state, first)
        for x in (self._gone, self._acted, self._length, *self._totals):
            x.zero_()

    # -------------------------------------------------------------------------------------------------------- a segment
    def play(self, parts: Mapping[str, Playing]) -> TeamPlayed:
        """Fill the arrays of all policies; their segments are of one length."""
        num_steps = len(next(iter(parts.values())).noise)
        fresh = self._first_states(num_steps)
        worlds = _Worlds(self._state, self._gone, self._acted, self._limit - self._length)
        memory = {policy: dict(part.state) for policy, part in parts.items()}
        replies: dict[str, list[Batch]] = {policy: [] for policy in parts}
        steps: list[_TeamStep] = []
        for part in parts.values():
            _copy(part.arrays or {}, {} if part.arrays is None else part.state)
        for t in range(num_steps):
            shown = self._see(worlds.state, worlds.gone, worlds.gone, t + self._limit - worlds.deadline)
            asked = {policy: self._columns[policy].show(shown, t, part.arrays) for policy, part in parts.items()}
            for policy, part in parts.items():
                rows = Batch({**asked[policy].seen, **memory[policy], "noise": part.noise[t]})
                replies[policy].append(part.act(rows))
            actions = {policy: self._columns[policy].actions(given[-1]) for policy, given in replies.items()}
            step, worlds = self._step(t, worlds, self._by_kind(actions, shown.active), shown.active, fresh)
            ended = step.terminated | step.truncated
            for policy, columns in self._columns.items():
                over = columns.of_team(ended).flatten()
                memory[policy] = _remember(memory[policy], replies[policy][-1], asked[policy], over)
            steps.append(step)
        shown = self._see(worlds.state, worlds.gone, worlds.gone, num_steps + self._limit - worlds.deadline)
        for policy, part in parts.items():
            if part.arrays is not None:
                self._columns[policy].show(shown, num_steps, part.arrays)
        played = self._finish(steps, parts, replies)
        # last, because a world may return a leaf of the state as it got it: the first steps' are then this memory
        self._keep(worlds, parts, memory)
        return played

    def _first_states(self, num_steps: int) -> Batch:
        """First states for all steps of a segment `[T, E, ...]`, drawn at once: how many are needed only the device knows.
        Where no world can begin anew twice, all steps have the same."""
        once = isinstance(self.env, TeamWorld) and self.env.all_stay and num_steps <= self._limit
        drawn = 1 if once else num_steps
        found = Batch(self.env.initial(drawn * self.num_envs, self.generator))
        shape = num_steps, self.num_envs
        return found.map(lambda x: x.reshape(drawn, self.num_envs, *x.shape[1:]).expand(*shape, *x.shape[1:]))

    def _see(self, state: Leaves, gone: Tensor, absent: Tensor, steps: Tensor) -> Shown:
        """What everybody sees in `state`, `steps` after the episode began. Those who are `gone` do not decide; of those who are
        `absent` the global state has nothing. `[E, A]` each"""
        kinds, active = self.env.observe(state), self.env.active(state)
        active = ~gone if active is None else active & ~gone
        if not self._shares:
            return Shown(kinds, {}, active)
        if self._joined is not None:
            return Shown(kinds, {SEEN: self._joined(kinds, absent), CLOCK: steps}, active)
        return Shown(kinds, {STATE: self.env.global_state(state), CLOCK: steps}, active)

    def _step(self, t: int, w: _Worlds, actions: Sequence[Tensor], active: Tensor, fresh: Batch) -> tuple[_TeamStep, _Worlds]:
        """One step of all worlds, and where they are behind it: those that are over have begun anew."""
        following, earned, ended = self.env.transition(w.state, actions)
        earned = earned.masked_fill(w.gone, 0.0)
        terminated = ended & ~w.gone
        gone, cut = w.gone | terminated, w.deadline == t + 1
        truncated = cut.unsqueeze(1) & ~gone
        over = cut | gone.all(1)
        # where an agent ends that has not decided in this episode, there is nothing to end
        acted = w.acted | active
        terminated, truncated = terminated & acted, truncated & acted
        # agents that end in this step are still there at its end; others that left before are not
        step = _TeamStep(following, earned, terminated, truncated, gone & ~(terminated | truncated), over)
        state = {k: torch.where(_beside(over, x), fresh[k][t], x) for k, x in following.items()}
        goes_on = ~over.unsqueeze(1)
        deadline = w.deadline.masked_fill(over, t + 1 + self._limit)
        return step, _Worlds(state, gone & goes_on, acted & goes_on, deadline)

    def _keep(self, w: _Worlds, parts: Mapping[str, Playing], memory: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Write what the next segment begins with into fixed memory."""
        for policy, part in parts.items():
            _copy(part.state, memory[policy])
        _copy(self._state, w.state)
        _copy({"gone": self._gone, "acted": self._acted}, {"gone": w.gone, "acted": w.acted})

    def _finish(
        self, steps: Sequence[_TeamStep], parts: Mapping[str, Playing], replies: Mapping[str, Sequence[Batch]]
    ) -> TeamPlayed:
        """Write what came of the steps, and account for the episodes that ended."""
        earned, terminated, truncated = (
            torch.stack([getattr(s, name) for s in steps]) for name in ("earned", "terminated", "truncated")
        )
        over = torch.stack([s.over for s in steps])
        num_final, totals = dict.fromkeys(parts, 0), []
        behind = self._behind(steps) if self.env.max_steps or self.statistics else {}
        last = self._last(behind, steps, truncated) if self.env.max_steps else None
        for policy, part in parts.items():
            if part.arrays is None:
                continue
            columns = self._columns[policy]
            columns.write(part.arrays, earned, terminated, truncated)
            write_replies(part, replies[policy])
            if last is not None:
                num_final[policy] = columns.finals(part.arrays, *last)
            totals.append(columns.total(part, num_final[policy]))
        return TeamPlayed(num_final, self._record(earned, over, self._counted(behind, over)), torch.stack(totals))

    @staticmethod
    def _behind(steps: Sequence[_TeamStep]) -> dict[str, Tensor]:
        """The states behind all steps. `[T, E, ...]`"""
        return {k: torch.stack([s.following[k] for s in steps]) for k in steps[0].following}

    def _last(
        self, stacked: Mapping[str, Tensor], steps: Sequence[_TeamStep], truncated: Tensor
    ) -> tuple[Shown, Tensor | None]:
        """What is seen behind the steps that cut worlds, and which step of each that is (`PolicyColumns.finals`)."""
        left = torch.stack([s.left for s in steps])
        if len(steps) > self._limit:
            when, state, gone = None, {k: x.flatten(0, 1) for k, x in stacked.items()}, left.flatten(0, 1)
        else:
            rows, cut = torch.arange(self.num_envs, device=self.device), truncated.any(2)
            when = cut.to(torch.uint8).argmax(0)
            state, gone = {k: x[when, rows] for k, x in stacked.items()}, left[when, rows]
        # only a time limit truncates, so a world that is cut has made all its steps
        length = torch.full((len(gone),), self._limit, dtype=torch.int64, device=self.device)
        nobody = torch.zeros_like(gone)
        return self._see(state, nobody, gone, length), when

    def _counted(self, stacked: Mapping[str, Tensor], over: Tensor) -> list[Tensor]:
        """What the world says of the episodes that end, at their last step, and 0 at all others: so a sum over an episode is
        that number. `[T, E]` each"""
        if not self.statistics:
            return []
        assert isinstance(self.env, CountingTeam)
        found = self.env.episode_stats({k: x.flatten(0, 1) for k, x in stacked.items()})
        return [found[name].view(over.shape).double() * over for name in self.statistics]

    def _record(self, earned: Tensor, over: Tensor, counted: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Records of the episodes that ended. Updates sums and length of those that go on."""
        rewards = [*(earned.double() @ self._means).unbind(-1), *counted]
        found = ended_episodes(rewards, over, self._totals, self._length)
        totals, length = carried(rewards, over, self._totals, self._length)
        for now, x in zip((*self._totals, self._length), (*totals, length), strict=True):
            now.copy_(x)
        return found

    # ------------------------------------------------------------------------------------------------------------ state
    def save(self) -> State:
        arrays = {"gone": self._gone, "acted": self._acted, "length": self._length}
        return {
            "seed": self._seed,
            "state": dict(self._state.map(torch.clone)),
            "totals": [x.clone() for x in self._totals],
            "generator": self.generator.get_state(),
            **{key: x.clone() for key, x in arrays.items()},
        }

    def load(self, state: State) -> None:
        """Undo `save`, also of an engine on another device; the generator's state is the caller's business."""
        self._seed = state["seed"]
        saved = {k: torch.as_tensor(x) for k, x in state["state"].items()}
        self._state = self._state or Batch({k: x.to(self.device, copy=True) for k, x in saved.items()})
        _copy(self._state, saved)
        for now, saved in zip(self._totals, state["totals"], strict=True):
            now.copy_(torch.as_tensor(saved))
        for key, now in (("gone", self._gone), ("acted", self._acted), ("length", self._length)):
            now.copy_(torch.as_tensor(state[key]))


class _ByKind:
    """Puts the actions of policies together: `[E, A_k, ...]` for each kind of agents, zeros where nobody decides."""

    def __init__(self, env: TensorTeamEnv, columns: Mapping[str, PolicyColumns], device: torch.device) -> None:
        self._kinds = []
        for kind, places in enumerate(env.spec.kinds):
            mine = {policy: c for policy, c in columns.items() if c.kind == kind}
            agents = [agent for c in mine.values() for agent in c.side.agents]
            names = [list(env.spec.agents)[place] for place in places]
            # policies one after the other, brought into the order of the kind
            order = None if agents == names else torch.tensor([agents.index(name) for name in names], device=device)
            self._kinds.append((list(mine), order, torch.tensor(places, device=device)))

    def __call__(self, actions: Mapping[str, Tensor], active: Tensor) -> list[Tensor]:
        found = []
        for policies, order, places in self._kinds:
            parts = [actions[policy] for policy in policies]
            x = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
            x = x if order is None else x.index_select(1, order)
            found.append(x.masked_fill(_beside(~active.index_select(1, places), x), 0))
        return found


def _means(agents: Sequence[str], sides: Mapping[str, Side]) -> Tensor:
    """Columns that make means of agents: of all that are trained, then of each policy. `[A, 1 + P]`"""
    groups = [[agent for side in sides.values() if side.trains for agent in side.agents]]
    groups += [list(side.agents) for side in sides.values()]
    found = torch.zeros(len(agents), len(groups), dtype=torch.float64)
    for k, group in enumerate(groups):
        found[[agents.index(agent) for agent in group], k] = 1.0 / len(group)
    return found


def _remember(now: Mapping[str, Tensor], reply: Batch, asked: AskedRows, ended: Tensor) -> dict[str, Tensor]:
    """The recurrent state behind a step: of a row that decided what the policy says, and zero where an episode ended."""
    found = {key: torch.where(_beside(asked.active, x), reply[key], x) for key, x in now.items()}
    return {key: x.masked_fill(_beside(ended, x), 0) for key, x in found.items()}


def _copy(into: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> None:
    for key, x in source.items():
        into[key].copy_(x)


def _beside(flags: Tensor, x: Tensor) -> Tensor:
    """Flags with as many dimensions as `x`, whose first ones they have."""
    return flags.view(*flags.shape, *[1] * (x.dim() - flags.dim()))
