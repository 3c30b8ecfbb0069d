"""The whole tree of a game of OpenSpiel, walked once: its information states, and what every end pays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runnel.core.errors import ConfigError, DataError
from runnel.core.state import Array, Settings

MOST_STATES = 1_000_000
"""States of the largest game that is walked: about a minute, and some GiB."""
SEATS = 2


@dataclass(frozen=True)
class Seat:
    """What one player may come to know and do. An information state is all that the player knows at one of its decisions; a
    sequence is one of them with an action, or (number 0) nothing at all."""

    keys: tuple[str, ...]
    """The name of each information state, as OpenSpiel writes it."""
    seen: Array
    """Its tensor, float32 `[N, D]`."""
    legal: Array
    """The actions that it allows, bool `[N, A]`."""
    before: Array
    """The player's own sequence that led there, int64 `[N]`."""
    behind: Array
    """The sequence of each action, int64 `[N, A]`; 0 where it is not legal."""
    levels: tuple[Array, ...]
    """Numbers of information states, by how often the player decided before: each comes later than what it follows."""

    @property
    def num_sequences(self) -> int:
        return int(self.legal.sum()) + 1


@dataclass(frozen=True)
class Ends:
    """The ends of a game: the sequences of both seats that lead there, and what both are paid, times how probable chance is."""

    sequences: tuple[Array, Array]
    """int64 `[M]` each."""
    paid: tuple[Array, Array]
    """float64 `[M]` each."""


@dataclass
class _Growing:
    """A seat while the tree is walked."""

    numbers: dict[str, int] = field(default_factory=dict)
    seen: list[Array] = field(default_factory=list)
    actions: list[list[int]] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=lambda: [0])
    """How many decisions of its own each sequence has."""
    first: list[int] = field(default_factory=list)
    """The sequence of the first legal action."""

    def number(self, key: str, state: Any, player: int, before: int) -> int:
        """The number of an information state, which is new where it has not been seen."""
        if key not in self.numbers:
            self.numbers[key] = len(self.numbers)
            actions, depth = state.legal_actions(player), self.sequences[before]
            self.seen.append(np.asarray(state.information_state_tensor(player), np.float32))
            self.actions.append(actions)
            self.before.append(before)
            self.depths.append(depth)
            self.first.append(len(self.sequences))
            self.sequences += [depth + 1] * len(actions)
        found = self.numbers[key]
        if self.before[found] != before:
            fix = "a player forgets what it did, so its mixtures are no strategies; this is for games of perfect recall"
            raise DataError(f"information state {key!r} is reached in two ways of the player's own: {fix}")
        return found

    def grown(self, num_actions: int) -> Seat:
        num = len(self.numbers)
        legal, behind = np.zeros((num, num_actions), bool), np.zeros((num, num_actions), np.int64)
        for i, actions in enumerate(self.actions):
            legal[i, actions] = True
            behind[i, actions] = self.first[i] + np.arange(len(actions))
        depths = np.array(self.depths, np.int64)
        levels = tuple(np.flatnonzero(depths == depth) for depth in range(int(depths.max(initial=-1)) + 1))
        seen = np.stack(self.seen) if num else np.zeros((0, 0), np.float32)
        return Seat(tuple(self.numbers), seen, legal, np.array(self.before, np.int64), behind, levels)


def walk(game: Any) -> tuple[tuple[Seat, Seat], Ends]:
    """Both seats of a game, and its ends."""
    seats, ends = (_Growing(), _Growing()), []
    left = MOST_STATES
    stack = [(game.new_initial_state(), (0, 0), 1.0)]
    while stack:
        state, at, chance = stack.pop()
        left -= 1
        if left < 0:
            fix = "its tree cannot be walked whole; use a smaller one, or play matches"
            raise ConfigError("game", str(game), f"has more than {MOST_STATES:,} states: {fix}")
        if state.is_terminal():
            ends.append((*at, *(chance * x for x in state.returns())))
        elif state.is_chance_node():
            # the last child is taken first, so the order is that of the game
            stack += [(state.child(a), at, chance * p) for a, p in reversed(state.chance_outcomes())]
        else:
            player = state.current_player()
            number = seats[player].number(state.information_state_string(player), state, player, at[player])
            for i, action in reversed(list(enumerate(seats[player].actions[number]))):
                after = seats[player].first[number] + i
                stack.append((state.child(action), (after, at[1]) if player == 0 else (at[0], after), chance))
    first, second, paid, other = zip(*ends, strict=True)
    sequences = np.array(first, np.int64), np.array(second, np.int64)
    grown = seats[0].grown(game.num_distinct_actions()), seats[1].grown(game.num_distinct_actions())
    return grown, Ends(sequences, (np.array(paid), np.array(other)))


def load_game(name: Any, parameters: Settings | None = None) -> Any:
    """The game of this name and these parameters (or a game of OpenSpiel itself), if its tree can be walked here."""
    try:
        import pyspiel
    except ModuleNotFoundError as error:
        raise ConfigError("game", name, 'needs the package open_spiel: pip install "runnel[games]"') from error
    try:
        game = pyspiel.load_game(*((name, dict(parameters)) if parameters else (name,))) if isinstance(name, str) else name
    except pyspiel.SpielError as error:
        raise ConfigError("game", name, f"OpenSpiel does not know it ({str(error).splitlines()[0]})") from error
    kind = game.get_type()
    if game.num_players() != SEATS:
        raise ConfigError("game", str(game), f"has {game.num_players()} players; exploitability is of games of two")
    if kind.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL:
        fix = f"its players move at once; use turn_based_simultaneous_game(game={game})"
        raise ConfigError("game", str(game), fix)
    if kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC:
        raise ConfigError("game", str(game), "draws its chance inside of OpenSpiel, so its tree cannot be walked")
    if not (kind.provides_information_state_string and kind.provides_information_state_tensor):
        raise ConfigError("game", str(game), "OpenSpiel does not say what its players know (information states)")
    return game
