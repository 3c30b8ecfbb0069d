"""Lineups of self-play: who plays each seat of an environment, by number.

The number of a member of a league says whose copy it is and of which version, and is never used twice.
"""

from __future__ import annotations

LINEUP = "state/lineup"
"""Whose turn it is to play each seat of the row's environment, by number; zeros: not drawn yet. `[B, A]` int64"""
OPENING = "state/opening"
"""How many moves of a row are still to be drawn uniformly, where episodes have random openings. `[B]` int64"""
MEMBER = "member"
"""The number of the member that acts for a row, in replies and segments; less than 0 (its number with a minus) where a random
opening acted in its place. `[B]` int64"""
RANDOM = -1
"""In a lineup of an evaluation: a player whose actions are uniform over those that are allowed."""


def number_of(role: int, version: int, num_roles: int) -> int:
    """The number of the copy of a role that was made at `version`; -1: the role itself, which is live.

    >>> number_of(0, -1, 2), number_of(1, -1, 2), number_of(0, 0, 2), number_of(1, 40, 2)
    (1, 2, 3, 84)
    """
    return 1 + role + num_roles * (version + 1)


def role_and_version(number: int, num_roles: int) -> tuple[int, int]:
    """Undo `number_of`.

    >>> role_and_version(84, 2)
    (1, 40)
    """
    return (number - 1) % num_roles, (number - 1) // num_roles - 1


def place_code(place: int) -> int:
    """In a lineup of an evaluation: whoever is at `place`, or nobody.

    >>> place_code(0), place_code(5)
    (-2, -7)
    """
    return -2 - place
