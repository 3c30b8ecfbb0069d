"""Environments of the parallel API in this process, stepped one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runnel.core.errors import DataError, RunnelError
from runnel.core.routes import Side
from runnel.core.state import Array, State
from runnel.core.user_code import frames, summary
from runnel.envs.rewind import load_env, save_env
from runnel.envs.spaces import Obs
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.rows import PolicyRows, Seen
from runnel.envs.vector.contract import Episode, Fault, StepOut
from runnel.envs.vector.copies import EnvCopy, side_by_side

_PRUNE_AT = 1024
Actions = Mapping[str, Array]
"""Network actions of each policy."""


class SerialTeam:
    """A `TeamVector` of `num_envs` environments, made by `make`, whose agents follow `sides`.

    Seeds of episodes and replays on resume are those of `SerialVector`. An environment that raises ends the run.
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
    ) -> None:
        self.name = name or getattr(make, "__name__", "team")
        self.num_envs, self.index0, self.sides, self._seed = num_envs, index0, sides, seed
        self._envs = [ParallelEnv(make(), self.name) for _ in range(num_envs)]
        self._same_specs()
        self._copies = [EnvCopy(env, index0 + i) for i, env in enumerate(self._envs)]
        self._rows = {policy: PolicyRows(side, num_envs, self._envs[0]) for policy, side in sides.items()}
        self.outs: Mapping[str, StepOut] = {policy: rows.out for policy, rows in self._rows.items()}
        self._agents = self._envs[0].agents
        self._totals = [dict.fromkeys(self._agents, 0.0) for _ in range(num_envs)]
        self._replayed = any(copy.stateful is None for copy in self._copies)
        self._clock, self._prune_at = 0, _PRUNE_AT
        self._history: list[Actions] = []
        self._ended: list[Episode] = []

    def _same_specs(self) -> None:
        first = self._envs[0].spec()
        for env in self._envs[1:]:
            if (found := env.spec()) != first:
                raise DataError(f"environments of {self.name!r} differ in their agents: {found} is not {first}")

    # ------------------------------------------------------------------------------------------------------------ steps
    def reset(self, seed: int | None = None) -> None:
        self._seed = self._seed if seed is None else seed
        self._clock, self._ended, self._history = 0, [], []
        for rows in self._rows.values():
            rows.clear()
        for copy in self._copies:
            copy.episode = -1
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
            rows.clear()
        self._clock += 1
        if self._replayed:
            self._remember(raw)
        for index in range(self.num_envs):
            self._guard(index, partial(self._step, index, self._chosen(index, ready)))

    def _chosen(self, index: int, ready: Mapping[str, list[Any]]) -> dict[str, Any]:
        """The actions of all agents of environment `index`."""
        agents = [(policy, rows, agent) for policy, rows in self._rows.items() for agent in rows.side.agents]
        return {agent: ready[policy][rows.row(index, agent)] for policy, rows, agent in agents}

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
            self._begin(index)
        else:
            self._show(index, (obs, infos))

    def _guard(self, index: int, play: Callable[[], None]) -> None:
        """Call `play`; an error of the environment says which one it was, and how to repeat its episode."""
        try:
            play()
        except (Exception, SystemExit) as error:  # sys.exit(0) in an environment must not end a run as a success
            copy = self._copies[index]
            what = str(error) if isinstance(error, RunnelError) else f"raised {summary(error)}"
            where = f"environment {self.name!r} (index {copy.index}, episode {copy.episode}, step {self._clock - copy.start})"
            seed = f" [its episode began with reset(seed={copy.seed})]"
            raise DataError(f"{where} {what}{seed}{frames(error)}") from error

    def ready(self) -> bool:
        return True

    def recv(self) -> None:
        """A step is done when `send` returns."""

    def episodes(self) -> list[Episode]:
        ended, self._ended = self._ended, []
        return ended

    def faults(self) -> list[Fault]:
        return []

    def close(self) -> None:
        for env in self._envs:
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
        return {
            "seed": self._seed,
            "clock": self._clock,
            "out": {policy: {k: x.clone() for k, x in rows.arrays().items()} for policy, rows in self._rows.items()},
            "ended": [[e.env, e.total, e.length, dict(e.by_policy)] for e in self._ended],
            "envs": [self._save(index) for index in range(self.num_envs)],
        }

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
        self._seed, self._clock = state["seed"], state["clock"]
        self._ended = [Episode(int(e), float(total), int(n), dict(by)) for e, total, n, by in state["ended"]]
        for policy, rows in self._rows.items():
            rows.clear()
            for key, x in rows.arrays().items():
                x.copy_(torch.as_tensor(np.asarray(state["out"][policy][key])))
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
        env.acted, env.ended = set(saved["acted"]), set(saved["ended"])

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


def team_return(sides: Mapping[str, Side], totals: Mapping[str, float]) -> tuple[float, dict[str, float]]:
    """Of what each agent got in an episode: the mean over the agents that are trained, and over the agents of each policy.

    Means, because environments that pay a whole team at once give the same reward to each of its agents.
    """
    by_policy = {policy: sum(totals[agent] for agent in side.agents) / len(side.agents) for policy, side in sides.items()}
    trained = [totals[agent] for side in sides.values() if side.trains for agent in side.agents]
    return sum(trained) / len(trained), by_policy
