"""Plays a league's main policy against fixed opponents and against the members of its pool, from every seat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runnel.core.contracts.evaluation import POLICY, Clients, EvalResult, Progress, ResultTable
from runnel.core.contracts.inference import InferenceClient
from runnel.core.errors import ConfigError
from runnel.core.lineups import LINEUP, MEMBER, RANDOM, place_code, role_and_version
from runnel.core.records import Batch
from runnel.core.rng import make_rng, make_seed
from runnel.core.spaces import ArraySpec
from runnel.envs.spaces import MASK
from runnel.envs.team.contract import TeamVector
from runnel.eval.runner import MAX_STEPS, ask

MAIN = 0
"""The place of the policy that is measured."""


@dataclass(frozen=True)
class LeagueGame:
    """An episode: the seat of the main policy, its sum of rewards, and its result (1 won, 0.5 drawn, 0 lost)."""

    seat: int
    total: float
    length: int
    points: float
    cut: bool


class LeagueEvaluation:
    """Plays `episodes` episodes against each opponent, as many from every seat, on seeds that training never uses.

    Opponents are a player that draws its actions at random, and every member of the pool. The main policy takes its most
    probable action; the others draw theirs, as in training. The client serves a `nets/pool.PoolNet` with `places` for frozen
    members. `returns` are those against the random player, which is the same in every run, so that evaluations can be compared;
    `extra` has the win rates (a draw is half a win): `win_rate/random`, `win_rate/first`,
    `win_rate/last`, `win_rate/worst` over the pool, and each from one seat alone (`win_rate/random/seat_0`).
    """

    def __init__(
        self,
        make_vector: Callable[[], TeamVector],
        *,
        episodes: int,
        seed: int,
        roles: tuple[str, ...],
        places: int,
        noise_size: int,
        state: Mapping[str, ArraySpec],
        max_steps: int = MAX_STEPS,
    ) -> None:
        if max_steps < 1:
            raise ConfigError("eval.max_steps", max_steps, "use at least 1")
        self._make, self._episodes, self._seed, self._max_steps = make_vector, episodes, seed, max_steps
        self._roles, self._places, self._noise_size, self._state = roles, places, noise_size, dict(state)
        self._vector: TeamVector | None = None

    def run(self, clients: Clients, *, round_index: int, progress: Progress | None = None) -> EvalResult:
        if self._vector is None:
            self._vector = self._make()
        seed, client = make_seed(self._seed, "eval", round_index), clients[POLICY]
        members = self._members(client)
        opponents = {"random": RANDOM, **{name: place_code(place) for name, place in members.items()}}
        games: dict[str, list[LeagueGame]] = {}
        for name, code in opponents.items():
            # every opponent is met on the same seeds
            games[name] = _Match(self, self._vector, client, code, seed).play()
            if progress is not None:
                progress(len(games), len(opponents))
        return self._result(games, list(members))

    def _members(self, client: InferenceClient) -> dict[str, int]:
        """The place of each member of the pool by its name, oldest first."""
        assert self._vector is not None
        (side,), num_roles = self._vector.sides.values(), len(self._roles)
        seats, found = len(side.agents), dict[int, int]()
        for place in range(num_roles, num_roles + self._places):
            rows = Batch({key: torch.zeros(seats, *leaf.shape, dtype=leaf.dtype) for key, leaf in side.spec.obs.items()})
            rows |= {key: torch.zeros(seats, *leaf.shape, dtype=leaf.dtype) for key, leaf in self._state.items()}
            rows |= {LINEUP: torch.full((seats, seats), place_code(place)), "noise": torch.full((seats, self._noise_size), 0.5)}
            if side.spec.has_mask:
                rows[MASK] = torch.ones(seats, side.spec.action.mask_size, dtype=torch.bool)
            number = int(ask(client, rows)[MEMBER][0])
            if number > 0:
                found[number] = place
        named = {}
        for number in sorted(found):
            role, version = role_and_version(number, num_roles)
            named[f"{self._roles[role]}@{version}"] = found[number]
        return named

    def _result(self, games: Mapping[str, list[LeagueGame]], members: list[str]) -> EvalResult:
        assert self._vector is not None
        (side,) = self._vector.sides.values()
        compared = games["random"]
        extra = {"length": [float(g.length) for g in compared]}
        if any(g.cut for g in compared):
            extra["cut"] = [float(g.cut) for g in compared]
        worst = min(members, key=lambda name: _rate(games[name]), default="")
        named = {"random": "random"} | ({"first": members[0], "last": members[-1], "worst": worst} if members else {})
        for name, whom in named.items():
            extra[f"win_rate/{name}"] = [g.points for g in games[whom]]
            for seat in range(len(side.agents)):
                extra[f"win_rate/{name}/seat_{seat}"] = [g.points for g in games[whom] if g.seat == seat]
        columns = ["win rate", *(f"as {agent}" for agent in side.agents)]
        rows = [
            [_rate(played), *(_rate([g for g in played if g.seat == seat]) for seat in range(len(side.agents)))]
            for played in games.values()
        ]
        return EvalResult([g.total for g in compared], extra, tables={"Main against": ResultTable(list(games), columns, rows)})

    def close(self) -> None:
        if self._vector is not None:
            self._vector.close()
            self._vector = None


def _rate(played: list[LeagueGame]) -> float:
    return sum(g.points for g in played) / len(played) if played else float("nan")


class _Match:
    """The episodes against one opponent. Environment i plays with the main policy on seat i modulo the number of seats."""

    def __init__(self, owner: LeagueEvaluation, vector: TeamVector, client: InferenceClient, opponent: int, seed: int) -> None:
        self._vector, self._client, self._seed = vector, client, seed
        self._max_steps, self._noise_size = owner._max_steps, owner._noise_size
        ((self._policy, side),) = vector.sides.items()
        self._seats, self._out = len(side.agents), vector.outs[self._policy]
        base, more = divmod(owner._episodes, vector.num_envs)
        self._owed = [base + (env < more) for env in range(vector.num_envs)]
        self._rng = make_rng(seed, "noise", opponent + 1_000_000)
        self._seat = [env % self._seats for env in range(vector.num_envs)]
        codes = torch.full((vector.num_envs, self._seats), opponent)
        codes[torch.arange(vector.num_envs), torch.tensor(self._seat)] = place_code(MAIN)
        self._lineup: Tensor = codes.repeat_interleave(self._seats, 0)
        self._memory = {
            key: torch.zeros(len(self._out.reward), *leaf.shape, dtype=leaf.dtype)
            for key, leaf in owner._state.items()
            if key != LINEUP
        }

    def play(self) -> list[LeagueGame]:
        """Play all of them; once more from a reset where an episode had to be cut, because nothing else ends it."""
        found: list[LeagueGame] = []
        attempt = 0
        while any(self._owed):
            self._vector.reset(self._seed if attempt == 0 else make_seed(self._seed, "again", attempt))
            self._vector.episodes(), self._vector.faults()
            found += self._until_stuck()
            attempt += 1
        return found

    def _until_stuck(self) -> list[LeagueGame]:
        """From a reset until no environment owes an episode, or those that do are in one that was cut."""
        num = self._vector.num_envs
        found, sums, age, stuck = list[LeagueGame](), np.zeros((num, self._seats)), np.zeros(num, np.int64), set[int]()
        for x in self._memory.values():
            x.zero_()
        while any(owed and env not in stuck for env, owed in enumerate(self._owed)):
            rows = ask(self._client, self._request())
            active = self._out.active
            assert active is not None
            for key, x in self._memory.items():
                x.copy_(torch.where(active.view(-1, *[1] * (x.dim() - 1)), rows[key], x))
            self._vector.send({self._policy: rows["action"]})
            self._vector.recv()
            over = self._out.terminated | self._out.truncated
            for x in self._memory.values():
                x.masked_fill_(over.view(-1, *[1] * (x.dim() - 1)), 0)
            sums += self._out.reward.numpy().reshape(sums.shape)
            age += 1
            ended = {e.env - self._vector.index0: int(e.length) for e in self._vector.episodes()}
            broken = {int(fault["env"]) - self._vector.index0 for fault in self._vector.faults()}
            late = set(np.flatnonzero(age == self._max_steps).tolist()) - ended.keys() - broken
            for env in sorted({*ended, *late}):
                if self._owed[env] and env not in stuck:
                    found.append(self._played(env, sums[env], int(age[env]), cut=env in late))
                    self._owed[env] -= 1
            stuck |= late
            for env in {*ended, *broken}:
                sums[env], age[env] = 0.0, 0
        return found

    def _request(self) -> Batch:
        out = self._out
        noise = torch.from_numpy(self._rng.random((len(out.reward), self._noise_size), dtype=np.float32)).clamp_min(2.0**-25)
        rows = Batch({**out.obs, **self._memory, LINEUP: self._lineup, "noise": noise})
        if out.action_mask is not None:
            rows[MASK] = out.action_mask
        return rows

    def _played(self, env: int, sums: np.ndarray, length: int, *, cut: bool) -> LeagueGame:
        seat = self._seat[env]
        mine, best = float(sums[seat]), float(np.delete(sums, seat).max())
        points = 1.0 if mine > best else 0.5 if mine == best else 0.0
        return LeagueGame(seat, mine, length, points, cut)
