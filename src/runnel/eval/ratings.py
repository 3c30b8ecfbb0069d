"""One number for each player: Elo ratings that explain a table of pay-offs best, and openskill's, which knows teams.

Elo as it is kept in many programs depends on the order of games, and drifts. Here the ratings of all players are fitted at
once, to all games: the maximum of the likelihood of Bradley and Terry (1952), in which player i scores

    p_ij = 1 / (1 + 10 ** ((r_j - r_i) / 400))

against j, and a draw is half a win. A player whose rating is held (an anchor: random moves, a script, the first version) fixes
the scale. One number cannot say who beats whom where results go in a circle, and then a warning says so.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from runnel.core.errors import ConfigError, DataError
from runnel.core.rng import make_rng
from runnel.eval.payoffs import Payoffs
from runnel.eval.statistics import Array

START = 1000.0
"""The mean rating where no player is held: that of self-play, too."""
POINTS = 400.0 / math.log(10.0)
"""Elo points of one unit of log-odds."""
NUM_RESAMPLES = 1_000
WIDE = NormalDist().inv_cdf(0.975)
"""Deviations on both sides of a 95 % interval."""
CHUNK = 1 << 20
"""Numbers of tables that are fitted at a time. It limits the memory."""
MOST_STEPS = 200
CLOSE = 1e-9
LONGEST_STEP = 2.0
"""Units of log-odds that a rating may move in one step of the fit."""
UNLIKELY = 0.01
"""A result that ratings make less likely than this, over all pairs, is told."""


@dataclass(frozen=True)
class Rating:
    """A player's rating with its 95 % interval. `held`: it was given, and so has no interval."""

    player: str
    value: float
    low: float
    high: float
    games: int
    held: bool = False


@dataclass(frozen=True)
class Ratings:
    """Ratings in the order of the players, and what should be known of them."""

    ratings: tuple[Rating, ...]
    warnings: tuple[str, ...] = ()

    def __getitem__(self, player: str) -> Rating:
        return next(rating for rating in self.ratings if rating.player == player)

    @property
    def ranked(self) -> list[Rating]:
        """The best first."""
        return sorted(self.ratings, key=lambda rating: -rating.value)


def fit_elo(
    payoffs: Payoffs,
    *,
    anchors: Mapping[str, float] | None = None,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Ratings:
    """Elo ratings of all players of `payoffs`, by maximum likelihood.

    `anchors` are players whose ratings are held; without one, the mean rating is 1000. As many draws are added as there are
    ratings to find, the same share to each pair that has met (`drawn_before`): then who has won all its games has a finite
    rating, and the fit of few games has little bias (Firth 1993). Intervals are 1.96 deviations of a bootstrap: the games of
    each pair, with those draws among them, are drawn anew, and all ratings are fitted again.

    >>> found = fit_elo(Payoffs.of("ab", [("a", "b", (60, 0, 15))]), anchors={"b": 1000.0})
    >>> round(found["a"].value, 1), found["b"].value, found["a"].games
    (1236.6, 1000.0, 75)
    """
    held = _held(payoffs, anchors or {})
    _check_met(payoffs, held)
    prior = drawn_before(payoffs, held)
    values = fit(payoffs.points[None], payoffs.num_games, held, prior=prior)[0]
    rng, rows = make_rng(seed, "elo"), max(1, CHUNK // payoffs.counts[..., 0].size)
    sizes = [min(rows, num_resamples - done) for done in range(0, num_resamples, rows)]
    draws = [fit(_resampled(payoffs, prior, num, rng), payoffs.num_games, held, prior=prior) for num in sizes]
    half = WIDE * np.concatenate(draws).std(axis=0)
    games = payoffs.num_games.sum(axis=1) - np.diag(payoffs.num_games)
    ratings = tuple(
        Rating(player, float(values[i]), float(values[i] - half[i]), float(values[i] + half[i]), int(games[i]), i in held)
        for i, player in enumerate(payoffs.players)
    )
    return Ratings(ratings, tuple(_warnings(payoffs, values, held)))


def drawn_before(payoffs: Payoffs, held: Collection[int]) -> float:
    """Draws that are added to each pair that has met: as many in all as ratings are to be found.

    >>> drawn_before(Payoffs.of("abc", [("a", "b", (1, 0, 1)), ("b", "c", (2, 0, 2))]), held=[])
    1.0
    """
    free = len(payoffs.players) - max(1, len(held))
    return free / max(1, int((np.triu(payoffs.num_games, 1) > 0).sum()))


def fit(points: Array, num_games: NDArray[np.int64], held: Mapping[int, float], *, prior: float) -> Array:
    """Ratings `[R, K]` of R tables of `points` `[R, K, K]` that come from `num_games` `[K, K]`, by Newton's method.

    With s_ij points of n_ij games, the log-likelihood is the sum over pairs of s_ij log p_ij + s_ji log p_ji. Its gradient by
    r_i is the sum over j of s_ij - n_ij p_ij, and it is concave. `held` are ratings that do not move. `prior` draws are added
    to each pair that has met; with 0, the maximum exists only where no group of players has all points against the others.

    >>> fit(np.array([[[0.0, 10.0], [1.0, 0.0]]]), np.array([[0, 11], [11, 0]]), {1: 1000.0}, prior=0.0).round(6).tolist()
    [[1400.0, 1000.0]]
    """
    k = len(num_games)
    met = (num_games > 0) & ~np.eye(k, dtype=bool)
    n = np.where(met, num_games + prior, 0.0)
    s = np.where(met, points + prior / 2.0, 0.0)
    free = [i for i in range(k) if i not in held]
    start = sum(held.values()) / len(held) if held else START
    r = np.full((len(points), k), 0.0)
    for i, rating in held.items():
        r[:, i] = (rating - start) / POINTS
    ones = np.zeros((len(free), len(free))) if held else np.ones((len(free), len(free)))
    for _ in range(MOST_STEPS):
        p = 1.0 / (1.0 + np.exp(r[:, None, :] - r[:, :, None]))
        gradient = (s - n * p).sum(axis=-1)[:, free]
        spread = n * p * (1.0 - p)
        curve = -spread[:, free][:, :, free]
        curve[:, range(len(free)), range(len(free))] += spread.sum(axis=-1)[:, free]
        try:
            # without an anchor the sum stays as it is: `ones` gives that direction a curvature, and the gradient is 0 along it
            step = np.linalg.solve(curve + ones, gradient[..., None])[..., 0]
        except np.linalg.LinAlgError:
            break
        longest = np.abs(step).max(axis=-1, keepdims=True, initial=0.0)
        r[:, free] += step * np.minimum(1.0, LONGEST_STEP / np.maximum(longest, LONGEST_STEP))
        if longest.max() < CLOSE:
            return np.asarray(start + POINTS * r)
    raise DataError("ratings did not settle: some players have all points against the others; use a prior above 0")


def _held(payoffs: Payoffs, anchors: Mapping[str, float]) -> dict[int, float]:
    for name, rating in anchors.items():
        if name not in payoffs.players:
            raise ConfigError("anchors", name, f"no player has this name; they are {', '.join(payoffs.players)}")
        if not math.isfinite(rating):
            raise ConfigError("anchors", f"{name}={rating}", "give a finite rating")
    return {payoffs.players.index(name): float(rating) for name, rating in anchors.items()}


def _check_met(payoffs: Payoffs, held: Mapping[int, float]) -> None:
    """Ratings of players are of one scale only where games, or anchors, join them."""
    joined, todo = set(held or {0}), list(held or {0})
    while todo:
        for j in np.flatnonzero(payoffs.num_games[todo.pop()]).tolist():
            if j not in joined:
                joined.add(j)
                todo.append(j)
    if apart := [name for i, name in enumerate(payoffs.players) if i not in joined]:
        raise DataError(f"{', '.join(apart)} met nobody of the others, so no common rating exists; let them play")


def _resampled(payoffs: Payoffs, prior: float, num: int, rng: np.random.Generator) -> Array:
    """Points `[num, K, K]` if the games of each pair were played again, at the rates that were found."""
    games = np.triu(payoffs.num_games, 1)
    first, second = np.nonzero(games)
    counts = payoffs.counts[first, second] + np.array([0.0, prior, 0.0])
    drawn = rng.multinomial(games[first, second], counts / counts.sum(axis=1, keepdims=True), size=(num, len(first)))
    found = np.zeros((num, *games.shape))
    found[:, first, second] = drawn[..., 0] + 0.5 * drawn[..., 1]
    found[:, second, first] = drawn[..., 2] + 0.5 * drawn[..., 1]
    return found


def _warnings(payoffs: Payoffs, values: Array, held: Mapping[int, float]) -> list[str]:
    told = []
    if circle := payoffs.circle():
        steps = [
            f"{a} beats {b} ({payoffs.score(a, b).value:.2f})" for a, b in zip(circle, [*circle[1:], circle[0]], strict=True)
        ]
        told.append(
            f"results go in a circle: {', '.join(steps)}. One number for each player cannot say this; read the pay-offs, and "
            "the worst case of each"
        )
    if text := _misfit(payoffs, values):
        told.append(text)
    off = ~np.eye(len(payoffs.players), dtype=bool)
    points, games = (payoffs.points * off).sum(axis=1), (payoffs.num_games * off).sum(axis=1)
    for what, bound, at in (("won", "at least", games), ("lost", "at most", np.zeros_like(points))):
        if names := [n for i, n in enumerate(payoffs.players) if i not in held and games[i] and points[i] == at[i]]:
            told.append(f"{', '.join(names)} {what} every game, so its rating is {bound} this: stronger opponents would tell")
    return told


def _misfit(payoffs: Payoffs, values: Array) -> str:
    """The result that the ratings explain least, if they make it unlikely: each pair is tested, corrected for their number."""
    games, pairs = payoffs.num_games, [(i, j) for i, j in zip(*np.triu_indices(len(values), 1), strict=True)]
    pairs = [(i, j) for i, j in pairs if games[i, j]]
    found = []
    for i, j in pairs:
        expected = 1.0 / (1.0 + 10.0 ** ((values[j] - values[i]) / 400.0))
        spread = math.sqrt(games[i, j] * expected * (1.0 - expected))
        off = abs(payoffs.points[i, j] - games[i, j] * expected) - 0.5
        found.append((off / spread if spread > 0 else 0.0, i, j, expected))
    if not found:
        return ""
    most, i, j, expected = max(found)
    if 2.0 * (1.0 - NormalDist().cdf(most)) * len(pairs) >= UNLIKELY:
        return ""
    a, b, num = payoffs.players[i], payoffs.players[j], int(games[i, j])
    return f"{a} scored {payoffs.scores[i, j]:.2f} against {b} in {num:,} games, where their ratings say {expected:.2f}"


# ------------------------------------------------------------------------------------------------------------ openskill
@dataclass(frozen=True)
class TeamGame:
    """A game of several teams: the players of each team, and what each team got; who got most has won, equals drew."""

    teams: tuple[tuple[str, ...], ...]
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Skill:
    """A player's skill as openskill says it: its mean, its deviation, and a careful number (`mu - 3 sigma`) to rank by."""

    player: str
    mu: float
    sigma: float
    games: int

    @property
    def ordinal(self) -> float:
        """What the player can be trusted to have."""
        return self.mu - 3.0 * self.sigma


def rate_skill(games: Sequence[TeamGame], *, seed: int = 0) -> list[Skill]:
    """Skills of all players of `games` by openskill's model of Plackett and Luce (Joshy 2024), which takes teams, draws and
    more than two sides. Needs the package openskill (`pip install "runnel[games]"`).

    It goes over games one by one, so their order matters a little. Here they are sorted, and shuffled by `seed`: the same games
    give the same skills, in whichever order they are given.
    """
    try:
        from openskill.models import PlackettLuce
    except ImportError as error:
        raise ConfigError("openskill", True, f"needs a package ({error}); pip install 'runnel[games]'") from error
    model = PlackettLuce()
    names = sorted({name for game in games for team in game.teams for name in team})
    skills = {name: model.rating(name=name) for name in names}
    played = dict.fromkeys(names, 0)
    ordered = sorted(games, key=lambda game: sorted(zip(game.teams, game.scores, strict=True)))
    for place in make_rng(seed, "skill").permutation(len(ordered)).tolist():
        teams, scores = zip(*sorted(zip(ordered[place].teams, ordered[place].scores, strict=True)), strict=True)
        members = [name for team in teams for name in team]
        if len(teams) < 2 or not all(teams) or len(set(members)) < len(members):
            raise DataError("a game needs at least two teams of at least one player each, and nobody plays twice in it")
        rated = model.rate([[skills[name] for name in team] for team in teams], scores=list(scores))
        for team, found in zip(teams, rated, strict=True):
            for name, rating in zip(team, found, strict=True):
                skills[name] = rating
                played[name] += 1
    return [Skill(name, float(skill.mu), float(skill.sigma), played[name]) for name, skill in skills.items()]
