"""How much a perfect opponent wins against what was trained: one policy, or a mixture of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runnel.core.errors import ConfigError
from runnel.core.state import Settings
from runnel.games.small import SmallGame

OPENSPIEL = "openspiel:"
"""How the names of environments begin that are games of OpenSpiel."""
SAME_GAMES = {"tensor:Kuhn": "kuhn_poker", "tensor:Leduc": "leduc_poker"}
"""Environments whose agents see the information states of a game of OpenSpiel, by name."""


def game_of(env: str, kwargs: Settings | None = None) -> SmallGame:
    """The game that an environment of runnel is."""
    if env.startswith(OPENSPIEL):
        return SmallGame(env.removeprefix(OPENSPIEL), kwargs)
    if env not in SAME_GAMES:
        fix = "name the game of OpenSpiel whose information states its agents see: --exploitability GAME"
        raise ConfigError("exploitability", env, f"this environment is no game that can be solved here; {fix}")
    return SmallGame(SAME_GAMES[env])


@dataclass(frozen=True)
class Exploitability:
    """What best responses gain against a strategy."""

    value: float
    """The mean of `gains` (NashConv / 2): 0 at a Nash equilibrium."""
    gains: tuple[float, float]
    """What a best response gets more than the strategy itself, in the first and in the second seat."""
    values: tuple[float, float]
    """What the strategy gets in each seat against itself."""


def exploitability(game: Any, *policies: Any, weights: Sequence[float] | None = None) -> Exploitability:
    """The exploitability of what `rl.load(RUN)` gives, in a game of OpenSpiel (its name, or a `SmallGame`), by exact best
    responses.

    Of several policies it is that of their mixture: one of them is drawn by `weights` before each game, each seat for itself.

        exploitability = (max_x u_0(x, pi_1) - u_0(pi) + max_y u_1(pi_0, y) - u_1(pi)) / 2
    """
    small = game if isinstance(game, SmallGame) else SmallGame(game)
    strategy = small.mixture([small.strategy(policy) for policy in policies], weights)
    return Exploitability(small.exploitability(strategy), small.gains(strategy), small.values(strategy))
