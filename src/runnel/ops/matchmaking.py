"""Self-play's arithmetic: how often each member of a pool is drawn as an opponent, win rates, and Elo ratings.

Everything here is a pure function of what is known. Rows and columns are the members of a pool, oldest first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from runnel.ops.metagame import meta_strategy

WIN, DRAW, LOSS = 0, 1, 2
"""Places of results in counts `[..., 3]`."""
PRIOR = 1.0
"""Drawn games that stand for what is not known yet of an opponent, from each seat."""
ELO_STEP = 8.0
"""The K-factor: a single win against an equal moves both ratings by half of it."""
ELO_START = 1000.0
"""The rating of the first member of a pool, which never changes: without an anchor the whole scale would drift."""


@dataclass(frozen=True)
class Standing:
    """What is known when opponents are picked, of K members.

    `wins` `[K]` is how often the live policy beats each of them (a draw is half a win). `payoffs` `[K, K]` is the mean result
    of the member of a row against that of a column, from -1 to 1 and antisymmetric: measured while the newer of the two was
    live. `power` and `floor` are settings (`agents/league.PoolConfig`).
    """

    wins: Tensor
    payoffs: Tensor
    power: float = 2.0
    floor: float = 0.1

    @property
    def num_members(self) -> int:
        """Members that may be picked."""
        return len(self.wins)


Pick = Callable[[Standing], Tensor]
"""From what is known to the probability of each member, `[K]` float64 of sum 1."""


def uniform(standing: Standing) -> Tensor:
    """All members alike: fictitious self-play (Heinrich et al. 2015).

    >>> uniform(Standing(torch.tensor([0.9, 0.5]), torch.zeros(2, 2))).tolist()
    [0.5, 0.5]
    """
    return torch.full((standing.num_members,), 1.0 / standing.num_members, dtype=torch.float64)


def latest(standing: Standing) -> Tensor:
    """The newest member alone: naive self-play, which goes round in circles where there is no best strategy.

    >>> latest(Standing(torch.tensor([0.9, 0.5]), torch.zeros(2, 2))).tolist()
    [0.0, 1.0]
    """
    found = torch.zeros(standing.num_members, dtype=torch.float64)
    found[-1] = 1.0
    return found


def pfsp(standing: Standing) -> Tensor:
    """Prioritised fictitious self-play (Vinyals et al. 2019, "Grandmaster level in StarCraft II", f_hard): `(1 - win)^power`.

    Whom the live policy beats is drawn rarely, whom it loses to often. `floor` of the episodes are spread evenly, so that what
    it once learned stays measured.

    >>> pfsp(Standing(torch.tensor([0.5, 0.9]), torch.zeros(2, 2), power=1.0, floor=0.0)).mul(6).round().tolist()
    [5.0, 1.0]
    """
    return _weighted((1.0 - standing.wins.double()).clamp(min=0.0) ** standing.power, standing)


def even(standing: Standing) -> Tensor:
    """Opponents of equal strength (the same paper, f_var): `win (1 - win)`, with `floor` as in `pfsp`.

    >>> even(Standing(torch.tensor([0.5, 1.0]), torch.zeros(2, 2), floor=0.0)).tolist()
    [1.0, 0.0]
    """
    wins = standing.wins.double().clamp(0.0, 1.0)
    return _weighted(wins * (1.0 - wins), standing)


def nash(standing: Standing) -> Tensor:
    """A Nash equilibrium of the pool (`ops/metagame.py`), with `floor` as in `pfsp`: PSRO whose best responses are learned
    (Lanctot et al. 2017, arXiv:1711.00832).

    >>> rps = torch.tensor([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
    >>> nash(Standing(torch.ones(3), rps, floor=0.0)).mul(3).round().tolist()
    [1.0, 1.0, 1.0]
    """
    return _solved("nash", standing)


def risk_averse(standing: Standing) -> Tensor:
    """An equilibrium of the pool whose players dislike variance (`ops/metagame.risk_averse`), with `floor` as in `pfsp`."""
    return _solved("risk_averse", standing)


def _solved(solver: str, standing: Standing) -> Tensor:
    payoffs = standing.payoffs.double().cpu().numpy()
    weights = _solved_once(solver, payoffs.tobytes(), len(payoffs))
    return _weighted(torch.tensor(weights, dtype=torch.float64), standing)


@lru_cache(maxsize=8)
def _solved_once(solver: str, payoffs: bytes, num: int) -> tuple[float, ...]:
    """The probabilities of the members. A pick is asked for at each update, and results between members change seldom."""
    found = meta_strategy(solver, np.frombuffer(payoffs).reshape(num, num))
    return tuple(found.tolist())


def _weighted(weights: Tensor, standing: Standing) -> Tensor:
    even_share, total = uniform(standing), weights.sum()
    if total <= 0.0:  # it beats all of them always: then all are alike
        return even_share
    return (1.0 - standing.floor) * weights / total + standing.floor * even_share


PICKS: dict[str, Pick] = {
    **{"uniform": uniform, "latest": latest, "pfsp": pfsp, "even": even},
    **{"nash": nash, "risk_averse": risk_averse},
}
"""The ways to pick an opponent, by name."""


def win_rates(counts: Tensor) -> Tensor:
    """Win rates from wins, draws and losses of each seat, every seat alike: `[..., A, 3] -> [...]`. A draw is half a win.

    Of a seat without games the rate is 0.5 (`PRIOR`); seats are averaged, so that one in which more games were played (or which
    moves first) does not count more.

    >>> win_rates(torch.tensor([[[3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])).tolist()
    [0.6875]
    """
    points = counts[..., WIN] + 0.5 * (counts[..., DRAW] + PRIOR)
    return (points / (counts.sum(-1) + PRIOR)).mean(-1)


def expected_score(rating: float, other: float) -> float:
    """What Elo expects of a game: `1 / (1 + 10^((other - rating) / 400))`.

    >>> round(expected_score(1200.0, 1000.0), 2)
    0.76
    """
    return 1.0 / (1.0 + math.pow(10.0, (other - rating) / 400.0))


def rate(ratings: dict[int, float], games: Mapping[tuple[int, int], tuple[float, int]], *, fixed: int) -> None:
    """Move `ratings` by results: `games[a, b]` is the points of a against b and the number of games. That of `fixed` stays.

    Both move by the K-factor times what was not expected, game by game. All games of a pair in one update count as the mean
    result, so the order in which they were played does not matter.

    >>> ratings = {1: 1000.0, 2: 1000.0}
    >>> rate(ratings, {(2, 1): (1.0, 1)}, fixed=1)
    >>> ratings
    {1: 1000.0, 2: 1004.0}
    """
    for (a, b), (points, num) in sorted(games.items()):
        score = points / num
        for _ in range(num):
            step = ELO_STEP * (score - expected_score(ratings[a], ratings[b]))
            ratings[a] += step if a != fixed else 0.0
            ratings[b] -= step if b != fixed else 0.0
