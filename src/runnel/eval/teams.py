"""Plays episodes of environments with several agents, to measure all policies of a team at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from runnel.core.contracts.evaluation import POLICY, Clients, EvalResult, Progress
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.rng import make_rng, make_seed
from runnel.core.spaces import ArraySpec
from runnel.envs.spaces import MASK
from runnel.envs.team.base import team_return
from runnel.envs.team.contract import TeamVector
from runnel.envs.vector import StepOut
from runnel.eval.runner import MAX_STEPS, ask
from runnel.eval.tally import Tally


class TeamEvaluation:
    """As `EnvEvaluation`, for teams: exactly `episodes` episodes, on seeds that training never uses, new ones every round.

    The client serves all policies at once (`nets/team.TeamNet`). A return is the mean over the agents that are trained;
    `extra["return/red"]` is that of policy `red`, `extra["win_rate/red"]` says whether it got more than every other (a draw of
    two counts half).
    """

    def __init__(
        self,
        make_vector: Callable[[], TeamVector],
        *,
        episodes: int,
        seed: int,
        noise_sizes: Mapping[str, int],
        states: Mapping[str, Mapping[str, ArraySpec]] | None = None,
        max_steps: int = MAX_STEPS,
    ) -> None:
        if max_steps < 1:
            raise ConfigError("eval.max_steps", max_steps, "use at least 1")
        self._make, self._episodes, self._seed = make_vector, episodes, seed
        self._noise_sizes, self._max_steps = dict(noise_sizes), max_steps
        self._states = {policy: dict(state) for policy, state in (states or {}).items()}
        self._vector: TeamVector | None = None

    def run(self, clients: Clients, *, round_index: int, progress: Progress | None = None) -> EvalResult:
        if self._vector is None:
            self._vector = self._make()
        vector, client = self._vector, clients[POLICY]
        seed, tally = make_seed(self._seed, "eval", round_index), Tally(self._episodes, vector.num_envs)
        team = TeamPlay(vector, noise_sizes=self._noise_sizes, states=self._states, max_steps=self._max_steps)
        rng, attempt = make_rng(seed, "noise"), 0
        while tally.missing:  # once more only where episodes had to be cut: nothing but a reset ends those
            vector.reset(seed if attempt == 0 else make_seed(seed, "again", attempt))
            team.play(lambda rows: ask(client, rows), tally, rng=rng, progress=progress)
            attempt += 1
        return tally.result()

    def close(self) -> None:
        if self._vector is not None:
            self._vector.close()
            self._vector = None


class TeamPlay:
    """Where policies play: the environments of `vector`, what is asked of each policy in them, and when an episode is cut."""

    def __init__(
        self,
        vector: TeamVector,
        *,
        noise_sizes: Mapping[str, int],
        states: Mapping[str, Mapping[str, ArraySpec]],
        max_steps: int = MAX_STEPS,
    ) -> None:
        self._vector, self._noise_sizes, self._states, self._max_steps = vector, noise_sizes, states, max_steps

    def play(
        self, answer: Callable[[Batch], Batch], tally: Tally, *, rng: np.random.Generator, progress: Progress | None = None
    ) -> None:
        """From a reset, until all episodes are played or every environment that owes some is in one that was cut. `answer`
        replies to the requests of all policies at once."""
        vector = self._vector
        tally.begin(self._max_steps)
        running, memory = RunningReturns(vector), RunningStates(vector, self._states)
        while not tally.settled:
            request = self._request(rng)
            request |= memory.now
            rows = answer(request)
            memory.decided(rows)
            vector.send({policy: rows[f"{policy}/action"] for policy in vector.outs})
            vector.recv()
            running.add()
            memory.stepped()
            tally.add(vector, after=running.restart)
            for env in running.at(self._max_steps):
                tally.cut(env, *team_return(vector.sides, running.totals(env)))
            if progress is not None:
                progress(tally.episodes - tally.missing, tally.episodes)

    def _request(self, rng: np.random.Generator) -> Batch:
        """What all policies see now, each under its name."""
        rows = Batch()
        for policy, out in self._vector.outs.items():
            noise = torch.from_numpy(rng.random((len(out.reward), self._noise_sizes[policy]), dtype=np.float32))
            mine = {**out.obs, "noise": noise.clamp_min(2.0**-25)}
            if out.action_mask is not None:
                mine[MASK] = out.action_mask
            rows |= {f"{policy}/{key}": x for key, x in mine.items()}
        return rows


class RunningStates:
    """The recurrent states of all policies, by the names of requests: they change with decisions, and end with episodes."""

    def __init__(self, vector: TeamVector, states: Mapping[str, Mapping[str, ArraySpec]]) -> None:
        self._vector = vector
        self.now = Batch()
        for policy, state in states.items():
            num_rows = len(vector.outs[policy].reward)
            self.now |= {f"{policy}/{key}": torch.zeros(num_rows, *leaf.shape) for key, leaf in state.items()}

    def decided(self, rows: Batch) -> None:
        """Those who decided have the state that the policy answered."""
        for key, now in self.now.items():
            active = self._out(key).active
            assert active is not None
            self.now[key] = torch.where(active.view(-1, *[1] * (now.dim() - 1)), rows[key], now)

    def stepped(self) -> None:
        """Those whose episode ended begin with zeros."""
        for key, now in self.now.items():
            over = self._out(key).terminated | self._out(key).truncated
            self.now[key] = now.masked_fill(over.view(-1, *[1] * (now.dim() - 1)), 0.0)

    def _out(self, key: str) -> StepOut:
        return self._vector.outs[key.partition("/")[0]]


class RunningReturns:
    """What the agents of each environment got so far in an episode that may never end by itself."""

    def __init__(self, vector: TeamVector) -> None:
        self._vector = vector
        self._age = np.zeros(vector.num_envs, np.int64)
        self._sums = {policy: np.zeros((vector.num_envs, len(side.agents))) for policy, side in vector.sides.items()}

    def add(self) -> None:
        """Another step is done."""
        self._age += 1
        for policy, sums in self._sums.items():
            sums += self._vector.outs[policy].reward.numpy().reshape(sums.shape)

    def restart(self, env: int) -> None:
        """The episode of `env` is over."""
        self._age[env] = 0
        for sums in self._sums.values():
            sums[env] = 0.0

    def at(self, age: int) -> list[int]:
        """The environments whose episodes have lasted that many steps."""
        found: list[int] = np.flatnonzero(self._age == age).tolist()
        return found

    def totals(self, env: int) -> dict[str, float]:
        """The sum of each agent of `env`."""
        sides = self._vector.sides
        return {a: float(sums[env, i]) for policy, sums in self._sums.items() for i, a in enumerate(sides[policy].agents)}
