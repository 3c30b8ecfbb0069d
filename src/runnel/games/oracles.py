"""Policy-space response oracles with exact best responses: what self-play against a pool comes to where learning is perfect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from runnel.core.errors import ConfigError
from runnel.core.state import Array
from runnel.games.small import SmallGame, Strategy
from runnel.ops.metagame import META_SOLVERS, MetaSolver


@dataclass(frozen=True)
class PSROStep:
    """A population and how it is played."""

    exploitability: float
    """Of the strategy below, in the whole game."""
    probabilities: tuple[Array, Array]
    """How often each member of the first and of the second seat is played. `[K]` each"""
    strategy: Strategy
    """The mixture of the population with these probabilities."""


def psro(
    game: Any, *, solver: str | MetaSolver = "nash", iterations: int = 10, start: Strategy | None = None
) -> list[PSROStep]:
    """PSRO (Lanctot et al. 2017, arXiv:1711.00832) on a game of OpenSpiel; a step for the `start` (all actions alike), and one
    for each iteration.

        p, q = solver(pay-offs between the members of both seats)
        add best_response_0(sum_l q_l y_l) to the first seat's members, best_response_1(sum_k p_k x_k) to the second's

    The solver decides what this is (`ops/metagame.py`): `nash` is double oracle, `uniform` fictitious play, `latest` self-play
    against the last opponent alone. Each seat has members of its own: a game whose seats differ is not one population's.
    """
    small = game if isinstance(game, SmallGame) else SmallGame(game)
    if iterations < 0:
        raise ConfigError("iterations", iterations, "use 0 or more")
    if isinstance(solver, str):
        if solver not in META_SOLVERS:
            raise ConfigError("solver", solver, f"unknown; use one of {', '.join(META_SOLVERS)}")
        solver = META_SOLVERS[solver]
    first, second = (plan[None] for plan in small.plans(start or small.uniform()))
    rows, columns = small.payoffs(0, first, second), small.payoffs(1, first, second)
    steps: list[PSROStep] = []
    while True:
        p, q = solver(rows, columns)
        mixed = p @ first, q @ second
        strategy = small.from_plan(0, mixed[0]), small.from_plan(1, mixed[1])
        steps.append(PSROStep(small.exploitability(strategy), (p, q), strategy))
        if len(steps) > iterations:
            return steps
        answers = [small.plan(i, small.best_response_to_plan(i, mixed[1 - i]).probabilities)[None] for i in (0, 1)]
        rows, columns = (_grown(small, i, x, first, second, answers) for i, x in enumerate((rows, columns)))
        first, second = np.concatenate([first, answers[0]]), np.concatenate([second, answers[1]])


def _grown(small: SmallGame, seat: int, payoffs: Array, first: Array, second: Array, answers: list[Array]) -> Array:
    """The pay-offs with one member more in each seat: only the new row and the new column are computed."""
    column = small.payoffs(seat, first, answers[1])
    row = small.payoffs(seat, answers[0], np.concatenate([second, answers[1]]))
    return np.concatenate([np.concatenate([payoffs, column], axis=1), row])
