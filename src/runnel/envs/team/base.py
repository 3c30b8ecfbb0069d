"""What vectors of teams share: the memory of their policies' rows, their episodes and their faults."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runnel.core.errors import DataError
from runnel.core.routes import Side
from runnel.core.state import Array, State
from runnel.envs.spaces import MASK
from runnel.envs.vector.contract import Episode, Fault, StepOut, allocate
from runnel.envs.vector.cpu_base import out_arrays


def team_out(side: Side, num_envs: int, zeros: Callable[..., Tensor] = torch.zeros) -> StepOut:
    """Output memory for the agents of `side` in `num_envs` environments; `zeros` decides where it lies."""
    num_rows = num_envs * len(side.agents)
    out = allocate(side.spec, num_rows, zeros)
    out.active = zeros(num_rows, dtype=torch.bool)
    return out


@dataclass
class OutArrays:
    """The memory of a `StepOut` as numpy arrays."""

    reward: Array
    terminated: Array
    truncated: Array
    active: Array
    mask: Array | None
    final_mask: Array | None


class RowMemory:
    """The rows of one policy: `num_envs` times the agents of `side`; row e * A + a is agent a of environment e."""

    def __init__(self, side: Side, out: StepOut) -> None:
        assert out.active is not None
        self.side, self.out, self.num_rows = side, out, len(out.reward)
        self._places = {agent: i for i, agent in enumerate(side.agents)}
        self._obs = {k: x.numpy() for k, x in out.obs.items()}
        self._final = {k: x.numpy() for k, x in out.final_obs.items()}
        self._shown = {k: x.numpy() for k, x in out_arrays(out).items()}
        self._kept = {k: np.zeros_like(x) for k, x in self._shown.items()}
        """What each row saw at its last decision, as a vector may need it to cut an episode."""
        self.now = OutArrays(
            out.reward.numpy(),
            out.terminated.numpy(),
            out.truncated.numpy(),
            out.active.numpy(),
            None if out.action_mask is None else out.action_mask.numpy(),
            self._final.get(MASK),
        )

    def keep(self) -> None:
        """Remember what those see who decide now."""
        for key, x in self._shown.items():
            self._kept[key][self.now.active] = x[self.now.active]

    def cut(self, env: int, agents: Collection[str]) -> None:
        """The environment `env` broke in this step: its `agents` are truncated at what they saw at their last decision, without
        a reward. What the step has written of it already is undone."""
        rows = self.out.final_rows
        assert rows is not None
        first = self.row(env, self.side.agents[0])
        while rows and first <= rows[-1] < first + len(self.side.agents):
            rows.pop()
        mine = slice(first, first + len(self.side.agents))
        self.now.reward[mine], self.now.terminated[mine], self.now.truncated[mine] = 0.0, False, False
        for row in (self.row(env, agent) for agent in self.side.agents if agent in agents):
            self.now.truncated[row] = True
            for key, kept in self._kept.items():
                self._final[key][len(rows)] = kept[row]
            rows.append(row)

    def row(self, env: int, agent: str) -> int:
        return env * len(self._places) + self._places[agent]

    def of_env(self, env: int, x: Array) -> Array:
        """The rows of environment `env` in `[E * A, ...]`."""
        width = len(self.side.agents)
        return x[env * width : (env + 1) * width]

    def clear(self) -> None:
        """Forget the last step: no reward, no end."""
        self.now.reward.fill(0.0)
        self.now.terminated.fill(False)
        self.now.truncated.fill(False)
        self.out.final_rows = []

    def rows_of(self, envs: slice) -> slice:
        """The rows of consecutive environments."""
        width = len(self.side.agents)
        return slice(envs.start * width, envs.stop * width)

    def gather(self, envs: slice, ends: list[int], *, at: int) -> list[int]:
        """Final observations that the process of `envs` wrote from its first row on, moved to place `at`; the rows are counted
        from 0 there, and in the whole vector in what this returns."""
        first = self.rows_of(envs).start
        for final in self._final.values():
            final[at : at + len(ends)] = final[first : first + len(ends)].copy()
        return [first + row for row in ends]

    def check_actions(self, raw: Array) -> None:
        """Refuse all but one action for each row, and choices outside of their space."""
        spec = self.side.spec.action
        if raw.shape != (self.num_rows, *spec.shape):
            wanted = (self.num_rows, *spec.shape)
            raise DataError(f"policy {self.side.route.inference!r} gave actions of shape {raw.shape}, not {wanted}")
        if spec.kind == "discrete" and (raw.dtype.kind not in "iu" or raw.min() < 0 or raw.max() >= spec.num_actions):
            rule = f"a choice is an integer from 0 to {spec.num_actions - 1}"
            raise DataError(f"policy {self.side.route.inference!r} gave actions outside of their space; {rule}")

    def arrays(self) -> dict[str, Tensor]:
        """The arrays of the next decision and what is kept of the last ones, for a checkpoint."""
        assert self.out.active is not None
        kept = {f"kept/{key}": torch.from_numpy(x) for key, x in self._kept.items()}
        return {**out_arrays(self.out), "active": self.out.active, **kept}


class TeamBase:
    """The part of `TeamVector` that is the same wherever the environments are."""

    def __init__(self, rows: Mapping[str, RowMemory], num_envs: int, *, seed: int, index0: int, name: str) -> None:
        self.name, self.num_envs, self.index0, self._seed = name, num_envs, index0, seed
        self.sides: Mapping[str, Side] = {policy: mine.side for policy, mine in rows.items()}
        self.outs: Mapping[str, StepOut] = {policy: mine.out for policy, mine in rows.items()}
        self._memory = rows
        self._clock = 0
        self._ended: list[Episode] = []
        self._faults: list[Fault] = []

    def _clear(self) -> None:
        for rows in self._memory.values():
            rows.clear()

    def episodes(self) -> list[Episode]:
        ended, self._ended = self._ended, []
        return ended

    def faults(self) -> list[Fault]:
        faults, self._faults = self._faults, []
        return faults

    def _save_outputs(self) -> State:
        return {
            "seed": self._seed,
            "clock": self._clock,
            "out": {policy: {k: x.clone() for k, x in rows.arrays().items()} for policy, rows in self._memory.items()},
            "ended": [[e.env, e.total, e.length, dict(e.by_policy)] for e in self._ended],
        }

    def _load_outputs(self, state: State) -> None:
        self._seed, self._clock = state["seed"], state["clock"]
        self._ended = [Episode(int(e), float(total), int(n), dict(by)) for e, total, n, by in state["ended"]]
        self._clear()
        for policy, rows in self._memory.items():
            for key, x in rows.arrays().items():
                x.copy_(torch.as_tensor(np.asarray(state["out"][policy][key])))


def team_return(sides: Mapping[str, Side], totals: Mapping[str, float]) -> tuple[float, dict[str, float]]:
    """Of what each agent got in an episode: the mean over the agents that are trained, and over the agents of each policy.

    Means, because environments that pay a whole team at once give the same reward to each of its agents.
    """
    by_policy = {policy: sum(totals[agent] for agent in side.agents) / len(side.agents) for policy, side in sides.items()}
    trained = [totals[agent] for side in sides.values() if side.trains for agent in side.agents]
    return sum(trained) / len(trained), by_policy
