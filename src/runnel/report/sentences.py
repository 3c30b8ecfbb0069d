"""The verdicts of a comparison as sentences: which group is better, by how much, how certain, and how many seeds would
decide."""

from __future__ import annotations

from runnel.eval.aggregates import Interval
from runnel.eval.comparisons import Comparison
from runnel.track.numbers import short


def sentence(first: str, second: str, found: Comparison, *, ends: tuple[float, float], unit: str, num_tasks: int = 1) -> str:
    """The sentence about one pair. `ends` are the IQMs of both."""
    if found.better < 0:
        return _undecidable(first, second, found, ends)
    better, worse = (first, second) if found.better == 0 else (second, first)
    high, low = ends if found.better == 0 else (ends[1], ends[0])
    difference, probability = (found.difference, found.probability) if found.better == 0 else _turned(found)
    where = f" over {num_tasks} tasks" if num_tasks > 1 else ""
    what = f"IQM of {unit}{where} {short(high)} against {short(low)}"
    if min(found.num_seeds) == 1:
        return (
            f"{better} looks better than {worse} ({what}), but the data cannot tell: with one seed in a group nothing is "
            "known of how much seeds differ. Run at least 4 seeds of each."
        )
    enough = found.has_intervals
    bounds = f"95 % interval {short(difference.low)} to {short(difference.high)}" if enough else "two seeds give no interval"
    much = f"a difference of {short(difference.value)} ({bounds})"
    shares = f" ({probability.low:.2f} to {probability.high:.2f})" if enough else ""
    sure = f"a run of {better} beats one of {worse} with probability {probability.value:.2f}{shares}"
    if found.decided:  # the rank test decides; a bootstrap interval of few seeds may still contain 0
        doubt = " How much better is open: the interval of the difference contains 0."
        doubt = "" if difference.low > 0 or not enough else doubt
        return f"{better} is better than {worse}: {what}, {much}; {sure}, rank test p = {_p(found.p_value)}.{doubt}"
    open_end = f"{better} looks better than {worse}, but it is not decided"
    return f"{open_end}: {what}, {much}; {sure}, rank test p = {_p(found.p_value)}. {_more(first, second, found)}"


def _more(first: str, second: str, found: Comparison) -> str:
    needed = found.seeds_needed
    if needed is None:
        return "The data cannot tell: at this difference even 1,000 seeds of each would probably not decide it."
    more = {name: max(needed - n, 0) for name, n in zip((first, second), found.num_seeds, strict=True)}
    if len(set(more.values())) == 1:
        told = f"{more[first]} more seed{'s' if more[first] > 1 else ''} of each ({needed} in all)"
    else:
        told = " and ".join(f"{num} more of {name}" for name, num in more.items() if num) + f" ({needed} seeds of each)"
    return f"About {told} would decide it, if the difference is what it looks like."


def _undecidable(first: str, second: str, found: Comparison, ends: tuple[float, float]) -> str:
    if found.probability.value == 0.5 and found.difference.value == 0:
        same = f"both have an IQM of {short(ends[0])}, and neither wins more often"
        return f"{first} and {second} cannot be told apart: {same}."
    ranks, middle = (first, second) if found.probability.value > 0.5 else (second, first)
    return (
        f"The data cannot tell between {first} and {second}: {ranks} wins more often (probability "
        f"{max(found.probability.value, 1 - found.probability.value):.2f}), but {middle} has the higher IQM "
        f"({short(max(ends))} against {short(min(ends))}). Look at the profile; more seeds alone may not settle it."
    )


def _turned(found: Comparison) -> tuple[Interval, Interval]:
    d, p = found.difference, found.probability
    return Interval(-d.value, -d.high, -d.low), Interval(1 - p.value, 1 - p.high, 1 - p.low)


def _p(value: float) -> str:
    """A p-value as text.

    >>> _p(0.0288), _p(0.00001)
    ('0.029', 'below 0.001')
    """
    return f"{value:.2g}" if value >= 0.001 else "below 0.001"
