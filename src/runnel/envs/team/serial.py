"""Environments of the parallel API in this process, stepped one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from runnel.core.errors import DataError, RunnelError
from runnel.core.routes import Side
from runnel.core.state import Array, State
from runnel.core.user_code import frames, summary, told
from runnel.envs.rewind import load_env, save_env, stateful_part
from runnel.envs.spaces import Obs
from runnel.envs.team.base import TeamBase, team_out, team_return
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.rows import PolicyRows, Seen
from runnel.envs.vector.contract import MAX_FAILURES, Episode, StepOut
from runnel.envs.vector.copies import EnvCopy, side_by_side

_PRUNE_AT = 1024
Actions = Mapping[str, Array]
"""Network actions of each policy."""


class SerialTeam(TeamBase):
    """A `TeamVector` of `num_envs` environments, made by `make`, whose agents follow `sides`.

    Seeds of episodes and replays on resume are those of `SerialVector`. An environment that raises ends the run; with `restart`
    it is made anew, the episode of its agents is truncated and not counted, and the fault is told. `outs` is memory to write
    into (None: its own). `watcher(env)` is called before each step of an environment, so that another process can see which.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        num_envs: int,
        *,
        sides: Mapping[str, Side],
        seed: int,
        index0: int = 0,
        name: str = "",
        restart: bool = False,
        outs: Mapping[str, StepOut] | None = None,
        watcher: Callable[[int], None] | None = None,
    ) -> None:
        self._make, self._restart, self._watcher = make, restart, watcher
        name = name or getattr(make, "__name__", "team")
        self._envs = [ParallelEnv(make(), name) for _ in range(num_envs)]
        outs = outs or {policy: team_out(side, num_envs) for policy, side in sides.items()}
        self._rows = {policy: PolicyRows(side, outs[policy], self._envs[0]) for policy, side in sides.items()}
        super().__init__(self._rows, num_envs, seed=seed, index0=index0, name=name)
        self._same_specs()
        self._copies = [EnvCopy(env, index0 + i) for i, env in enumerate(self._envs)]
        self._agents = self._envs[0].agents
        self._totals = [dict.fromkeys(self._agents, 0.0) for _ in range(num_envs)]
        self._replayed = any(copy.stateful is None for copy in self._copies)
        self._prune_at = _PRUNE_AT
        self._history: list[Actions] = []

    def _same_specs(self) -> None:
        self._spec = self._envs[0].spec()
        for env in self._envs[1:]:
            self._check_spec(env)

    def _check_spec(self, env: ParallelEnv) -> None:
        if (found := env.spec()) != self._spec:
            raise DataError(f"environments of {self.name!r} differ in their agents: {found} is not {self._spec}")

    # ------------------------------------------------------------------------------------------------------------ steps
    def reset(self, seed: int | None = None) -> None:
        self._seed = self._seed if seed is None else seed
        self._ended = []
        self._clear()
        self.begin_at([0] * self.num_envs, seed=self._seed, clock=0)

    def begin_at(self, episodes: list[int], *, seed: int, clock: int) -> None:
        """Start each environment at its given episode number, at step count `clock` of the vector."""
        self._seed, self._clock, self._history = seed, clock, []
        for copy, episode in zip(self._copies, episodes, strict=True):
            copy.episode = episode - 1
        for index in range(self.num_envs):
            self._guard(index, partial(self._begin, index))

    def _begin(self, index: int) -> None:
        """Begin the next episode of environment `index`."""
        seen = self._copies[index].next_episode(self._seed, self._clock)
        self._totals[index] = dict.fromkeys(self._agents, 0.0)
        self._show(index, seen, first=True)

    def _show(self, index: int, seen: Seen, *, first: bool = False) -> None:
        for rows in self._rows.values():
            rows.show(index, self._envs[index], seen, first=first)

    def send(self, actions: Mapping[str, Tensor]) -> None:
        raw = {policy: actions[policy].cpu().numpy() for policy in self._rows}
        ready = {policy: rows.actions(raw[policy]) for policy, rows in self._rows.items()}
        for rows in self._rows.values():
            rows.keep()
            rows.clear()
        self._clock += 1
        if self._replayed:
            self._remember(raw)
        for index, env in enumerate(self._envs):
            if self._watcher is not None:
                self._watcher(index)
            play = partial(self._step, index, self._chosen(index, ready))
            if not self._restart:
                self._guard(index, play)
                continue
            episode, ended = self._copies[index].episode, set(env.ended)
            try:
                play()
            except (Exception, SystemExit) as error:
                at_reset = self._copies[index].episode != episode
                self._guard(index, partial(self._replace, index, error, env.acted - ended, at_reset=at_reset))

    def _chosen(self, index: int, ready: Mapping[str, list[Any]]) -> dict[str, Any]:
        """The actions of all agents of environment `index`."""
        chosen: dict[str, Any] = {}
        for policy, rows in self._rows.items():
            width = len(rows.side.agents)
            chosen |= zip(rows.side.agents, ready[policy][index * width : (index + 1) * width], strict=True)
        return chosen

    def _step(self, index: int, actions: dict[str, Any]) -> None:
        env, copy, totals = self._envs[index], self._copies[index], self._totals[index]
        obs, _, over, _, infos = env.step(actions)
        for rows in self._rows.values():
            rows.record(index, env, obs, infos)
        for agent, reward in env.rewards.items():
            totals[agent] += reward
        if over:
            total, by_policy = team_return(self.sides, totals)
            self._ended.append(Episode(copy.index, total, self._clock - copy.start, by_policy))
            copy.failures = 0
            self._begin(index)
        else:
            self._show(index, (obs, infos))

    def _replace(self, index: int, error: BaseException, cut: Collection[str], *, at_reset: bool) -> None:
        """Make environment `index` anew. Its episode gives no `Episode`, and is truncated for the agents in `cut`: those who
        have decided in it and had not left."""
        copy = self._copies[index]
        fault = {"kind": "env_failed", "env": copy.index, "episode": copy.episode, "step": self._clock - copy.start}
        self._faults.append({**fault, "seed": copy.seed, "error": told(error)})
        copy.failures += 1
        if at_reset or copy.failures > MAX_FAILURES:
            raise error
        try:
            self._close(self._envs[index])
        except Exception as problem:
            self._faults[-1]["error"] += f"\n  (and closing it raised {told(problem)})"
        self._envs[index] = copy.env = ParallelEnv(self._make(), self.name)
        self._check_spec(self._envs[index])
        copy.stateful = stateful_part(copy.env)
        for rows in self._rows.values():
            rows.cut(index, cut)
        self._begin(index)

    def _guard(self, index: int, play: Callable[[], None]) -> None:
        """Call `play`; an error of the environment says which one it was, and how to repeat its episode."""
        try:
            play()
        except (Exception, SystemExit) as error:  # sys.exit(0) in an environment must not end a run as a success
            copy = self._copies[index]
            what = str(error) if isinstance(error, RunnelError) else f"raised {summary(error)}"
            where = f"environment {self.name!r} (index {copy.index}, episode {copy.episode}, step {self._clock - copy.start})"
            what += f", for the {copy.failures}th time in a row" if copy.failures > 1 else ""
            seed = f" [its episode began with reset(seed={copy.seed})]"
            raise DataError(f"{where} {what}{seed}{frames(error)}") from error

    def ready(self) -> bool:
        return True

    def recv(self) -> None:
        """A step is done when `send` returns."""

    def close(self) -> None:
        for env in self._envs:
            self._close(env)

    @staticmethod
    def _close(env: ParallelEnv) -> None:
        if hasattr(env.env, "close"):
            env.env.close()

    # ------------------------------------------------------------------------------------------------------------ state
    def _remember(self, actions: Actions) -> None:
        """Keep the actions for replays, back to the first step of the oldest open episode."""
        self._history.append({policy: x.copy() for policy, x in actions.items()})
        if len(self._history) > self._prune_at:
            oldest = min(copy.start for copy in self._copies)
            del self._history[: len(self._history) - (self._clock - oldest)]
            self._prune_at = max(_PRUNE_AT, 2 * len(self._history))

    def snapshot(self) -> State:
        return {**self._save_outputs(), "envs": [self._save(index) for index in range(self.num_envs)]}

    def _save(self, index: int) -> State:
        copy, env = self._copies[index], self._envs[index]
        length = self._clock - copy.start
        steps = self._history[len(self._history) - length :] if length else []
        played = {policy: np.array([rows.of_env(index, step[policy]) for step in steps]) for policy, rows in self._rows.items()}
        return {
            "episode": copy.episode,
            "seed": copy.seed,
            "start": copy.start,
            "totals": dict(self._totals[index]),
            "acted": sorted(env.acted),
            "ended": sorted(env.ended),
            "env": played if copy.stateful is None else save_env(copy.stateful, []),
        }

    def restore(self, state: State) -> None:
        self._load_outputs(state)
        for index, saved in enumerate(state["envs"]):
            self._load(index, saved)
        self._history = self._joined([saved["env"] for saved in state["envs"]]) if self._replayed else []

    def _load(self, index: int, saved: State) -> None:
        copy, env = self._copies[index], self._envs[index]
        copy.episode, copy.seed, copy.start = saved["episode"], saved["seed"], saved["start"]
        self._totals[index] = {agent: float(total) for agent, total in saved["totals"].items()}
        where, length = f"{self.name!r} (index {copy.index})", self._clock - copy.start
        state = saved["env"].get("state")
        actions = self._to_replay(saved["env"], length) if copy.stateful is None else []
        obs = load_env(env, state, actions=actions, seed=copy.seed, length=length, where=where)
        if obs is not None:
            self._verify(index, obs)
        env.went_on(saved["acted"], saved["ended"], steps=length)

    def _to_replay(self, played: State, length: int) -> list[dict[str, Any]]:
        """What the agents of one environment did at each of the last `length` steps, as its `step` takes it."""
        each = {
            policy: [rows.convert(np.asarray(played[policy])[t]) for t in range(length)] for policy, rows in self._rows.items()
        }
        sides = [(policy, i, agent) for policy, rows in self._rows.items() for i, agent in enumerate(rows.side.agents)]
        return [{agent: each[policy][t][i] for policy, i, agent in sides} for t in range(length)]

    def _joined(self, played: list[State]) -> list[Actions]:
        """Actions of all environments side by side, for each step."""
        parts = {policy: side_by_side([np.asarray(p[policy]) for p in played]) for policy in self._rows}
        steps = range(len(next(iter(parts.values()))))
        return [{policy: x[t].reshape(-1, *x[t].shape[2:]) for policy, x in parts.items()} for t in steps]

    def _verify(self, index: int, obs: Mapping[str, Obs]) -> None:
        """A replay must show what the checkpoint shows."""
        for policy, rows in self._rows.items():
            if different := rows.differs(index, self._envs[index], obs):
                raise DataError(
                    f"environment {self.name!r} (index {self._copies[index].index}) is not deterministic: a replay of its "
                    f"episode gave agent {different!r} of policy {policy!r} another observation. Implement get_state() and "
                    "set_state(state) on it, or draw all its randomness from the seed of reset"
                )
