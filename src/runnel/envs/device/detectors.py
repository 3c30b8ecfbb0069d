"""The numbers that tell the stages of hide-and-seek apart, one of each for every episode.

Names of boxes, ramps and their locks are those of Baker et al. 2020 (arXiv:1909.07528, appendix); what a world has instead of
ramps (`climbing`) takes their place. Distances are from where a thing was at the beginning of the phase, whatever its way was.
"""

from __future__ import annotations

UNSEEN = "unseen"
"""1 where no seeker ever saw a hider in the main phase, else 0: its mean is a share of episodes."""
SEEKERS_HIGH = "seekers_high"
"""The share of the seekers' steps in the main phase that they made high up, on a wall or a box."""
HIDERS, SEEKERS = "hider_return", "seeker_return"
"""The return of one hider, and of one seeker."""


def detectors(climbing: str = "ramp") -> tuple[str, ...]:
    """The names, in the order in which worlds give them.

    >>> detectors("ladder")[4:8]
    ('max_ladder_move_prep', 'max_ladder_move', 'num_ladder_lock_prep', 'num_ladder_lock')
    """
    of_things = [
        f"{what}{when}"
        for thing in ("box", climbing)
        for what in (f"max_{thing}_move", f"num_{thing}_lock")
        for when in ("_prep", "")
    ]
    return (*of_things, SEEKERS_HIGH, UNSEEN, HIDERS, SEEKERS)
