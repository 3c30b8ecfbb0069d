"""A game that is small enough to be solved: values, best responses, mixtures and exploitability, exact.

In the sequence form (Koller, Megiddo and von Stengel 1996) a strategy is a plan: the probability that a player's own choices
allow each of its sequences. What a game pays is linear in the plan of each player. So a best response is one pass from the last
decisions to the first, and the mixture of strategies that are drawn before a game is the mean of their plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from runnel.core.errors import DataError
from runnel.core.spaces import EnvSpec
from runnel.core.state import Array, Plain, Settings
from runnel.games.tree import SEATS, Seat, load_game, walk

Strategy = tuple[Array, Array]
"""The probability of each action in each information state, of both seats. `[N, A]` each"""


class BestResponse(NamedTuple):
    """What a seat gets at best, and how: the probabilities of its actions `[N, A]`, which are 0 and 1."""

    value: float
    probabilities: Array


class SeatPolicy(Protocol):
    """A policy that says how probable its actions are (`nets/policy.EnvPolicy`)."""

    env_spec: EnvSpec

    def probabilities(self, obs: Plain, *, action_mask: Plain = None) -> Array: ...


class SmallGame:
    """A two-player game in turns: its name in OpenSpiel, with its `parameters` beside it or in it (`liars_dice(dice_sides=3)`);
    or a game object of OpenSpiel."""

    def __init__(self, game: Any, parameters: Settings | None = None) -> None:
        self.game = load_game(game, parameters)
        self.seats, self._ends = walk(self.game)

    # -------------------------------------------------------------------------------------------------------- strategies
    def uniform(self) -> Strategy:
        """All legal actions alike."""
        first, second = (seat.legal / seat.legal.sum(axis=1, keepdims=True) for seat in self.seats)
        return first, second

    def strategy(self, policy: SeatPolicy | Any) -> Strategy:
        """What a trained policy does in every information state: `rl.load(RUN)` of a run on this game, whose agents have the
        numbers of the seats (`player_0`, `player_1`), or one policy for both seats."""
        first, second = (self._asked(seat, policy_of(policy, i)) for i, seat in enumerate(self.seats))
        return first, second

    def _asked(self, seat: Seat, policy: SeatPolicy) -> Array:
        """The probabilities of a policy in all information states of a seat, in one batch."""
        spec = policy.env_spec
        (key, leaf), *more = spec.obs.items()
        width = int(np.prod(leaf.shape))
        if more or width != seat.seen.shape[1] or spec.action.size != seat.legal.shape[1]:
            knows = f"the policy reads {', '.join(spec.obs)} with {width} numbers, and has {spec.action.size} actions"
            there = f"an information state of {self.game} has {seat.seen.shape[1]}, and {seat.legal.shape[1]} actions"
            raise DataError(f"this policy was not trained on the information states of this game: {knows}; {there}")
        # the keys behind `obs` are those of a Dict, in which the mask stands beside the observation
        obs: Plain = seat.seen.reshape(-1, *leaf.shape)
        for i, part in enumerate(reversed(key.split("/")[1:])):
            obs = {part: obs} if i else {part: obs, "action_mask": seat.legal}
        asked = np.asarray(policy.probabilities(obs, action_mask=seat.legal), np.float64)
        found: Array = np.where(seat.legal, asked, 0.0)
        return np.asarray(found / found.sum(axis=1, keepdims=True))  # float32 sums to 1 but for rounding

    def mixture(self, strategies: Sequence[Strategy], weights: Array | Sequence[float] | None = None) -> Strategy:
        """The one strategy that plays like one of several that each seat draws for itself by `weights` `[K]` before each game;
        without weights, all alike.

            pi(a | s) = sum_k w_k x_k(s, a) / sum_k w_k x_k(s),   x_k the plan of strategy k

        It is no mean of probabilities: who has seldom gone where a decision is has little weight there.
        """
        if not strategies:
            raise DataError("a mixture is of at least one strategy")
        w = np.full(len(strategies), 1.0 / len(strategies)) if weights is None else np.asarray(weights, np.float64)
        if w.shape != (len(strategies),) or (w < 0).any() or not w.sum() > 0.0:
            raise DataError(f"weights are {len(strategies)} numbers of 0 or more, not all of them 0; got {w.tolist()}")
        plans = [self.plans(strategy) for strategy in strategies]
        means = [np.tensordot(w / w.sum(), np.stack([plan[i] for plan in plans]), axes=1) for i in range(SEATS)]
        return self.from_plan(0, means[0]), self.from_plan(1, means[1])

    # ------------------------------------------------------------------------------------------------------------- plans
    def plans(self, strategy: Strategy) -> tuple[Array, Array]:
        """The plans of both seats: the probability of each sequence by the player's own choices. `[S]` each"""
        return self.plan(0, strategy[0]), self.plan(1, strategy[1])

    def plan(self, seat: int, probabilities: Array) -> Array:
        """The plan of one seat. `[N, A] -> [S]`"""
        of, p = self.seats[seat], np.asarray(probabilities, np.float64)
        if p.shape != of.legal.shape or (p < 0).any() or not np.allclose((p * of.legal).sum(axis=1), 1.0, atol=1e-6):
            raise DataError(f"a strategy of seat {seat} has probabilities {of.legal.shape} of legal actions, which sum to 1")
        plan = np.ones(of.num_sequences)
        for level in of.levels:
            legal, behind = of.legal[level], of.behind[level]
            plan[behind[legal]] = (plan[of.before[level]][:, None] * p[level])[legal]
        return plan

    def from_plan(self, seat: int, plan: Array) -> Array:
        """The probabilities that have this plan; all actions alike where it never goes. `[S] -> [N, A]`"""
        of = self.seats[seat]
        reach = plan[of.before][:, None]
        alike = of.legal / of.legal.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(of.legal, np.where(reach > 0.0, plan[of.behind] / reach, alike), 0.0)

    def payoffs(self, seat: int, first: Array, second: Array) -> Array:
        """What `seat` gets where plans of the first seat meet plans of the second. `[K, S], [L, S] -> [K, L]`"""
        rows, columns = self._ends.sequences
        return np.asarray((first[:, rows] * self._ends.paid[seat]) @ second[:, columns].T)

    # ------------------------------------------------------------------------------------------------------------ solved
    def values(self, strategy: Strategy) -> tuple[float, float]:
        """What both seats get on average."""
        first, second = self.plans(strategy)
        return self.payoffs(0, first[None], second[None]).item(), self.payoffs(1, first[None], second[None]).item()

    def best_response(self, seat: int, strategy: Strategy) -> BestResponse:
        """The most that `seat` can get against `strategy`."""
        return self.best_response_to_plan(seat, self.plan(1 - seat, strategy[1 - seat]))

    def best_response_to_plan(self, seat: int, plan: Array) -> BestResponse:
        """The most that `seat` can get against a plan `[S]` of the other."""
        of, (own, other) = self.seats[seat], (self._ends.sequences[seat], self._ends.sequences[1 - seat])
        # what each sequence brings by the ends right behind it; then, from the last decisions on, by the best that follows
        worth = np.bincount(own, self._ends.paid[seat] * plan[other], minlength=of.num_sequences)
        chosen = np.zeros_like(of.legal, dtype=np.float64)
        for level in reversed(of.levels):
            offers = np.where(of.legal[level], worth[of.behind[level]], -np.inf)
            chosen[level, offers.argmax(axis=1)] = 1.0
            np.add.at(worth, of.before[level], offers.max(axis=1))
        return BestResponse(float(worth[0]), chosen)

    def gains(self, strategy: Strategy) -> tuple[float, float]:
        """What a best response gets more than the strategy itself, in the first and in the second seat; never below 0."""
        values = self.values(strategy)
        return (
            self.best_response(0, strategy).value - values[0],
            self.best_response(1, strategy).value - values[1],
        )

    def exploitability(self, strategy: Strategy) -> float:
        """The mean of the gains over both seats (NashConv / 2): 0 at a Nash equilibrium."""
        return sum(self.gains(strategy)) / SEATS


def policy_of(policy: Any, seat: int) -> SeatPolicy:
    """The policy that sits in `seat`: that of the agent whose name ends with its number, or the only one that there is."""
    agents: Mapping[str, SeatPolicy] | None = getattr(policy, "policies", None)
    found: SeatPolicy = policy
    if agents is not None:
        names = [name for name in agents if name.rpartition("_")[2] == str(seat)]
        if len(names) != 1:
            known = ", ".join(agents)
            raise DataError(f"no agent sits in seat {seat}: names end with the number of a seat (player_0); here are {known}")
        found = agents[names[0]]
    if not callable(getattr(found, "probabilities", None)):
        raise DataError(f"{type(found).__name__} does not say how probable its actions are; give what rl.load(RUN) gives")
    return found
