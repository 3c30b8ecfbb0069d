"""Labels of run groups: recipe and task, and the few settings that distinguish a group from all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import combinations
from operator import and_, or_
from typing import TYPE_CHECKING

from runnel.core.config import flat
from runnel.core.resolve import own_name
from runnel.report.tuning import TAG
from runnel.track.folder import Row, Settings
from runnel.track.history import tags_in

if TYPE_CHECKING:
    from runnel.board.library import RunView

PLUMBING = ("placement", "cluster")
"""Settings that distinguish groups only if those of the algorithm do not."""


def group_labels(runs: Sequence[RunView]) -> dict[str, str]:
    """A label for each group: recipe and task; if several groups share these, also the settings that distinguish it."""
    by_label: dict[tuple[str, bool], dict[str, Row]] = {}
    for run in runs:
        trial = TAG in tags_in(run.config)  # apart: the settings that a study varies are no difference between other runs
        groups = by_label.setdefault((run.label, trial), {})
        if run.group not in groups:
            groups[run.group] = flat(run.method)
    out: dict[str, str] = {}
    for (label, _), groups in by_label.items():
        out |= {group: f"{label} · {said}" if said else label for group, said in _distinguished(groups).items()}
    return out


def _distinguished(groups: Mapping[str, Settings]) -> dict[str, str]:
    """For each group the fewest settings whose values no other group has together."""
    names = list(dict.fromkeys(name for found in groups.values() for name in found))
    names = [n for n in names if len({repr(found.get(n)) for found in groups.values()}) > 1]
    names.sort(key=lambda n: n.partition(".")[0] in PLUMBING or "." not in n)
    short = [n.rpartition(".")[2] for n in names]
    title = {n: s if short.count(s) == 1 else n for n, s in zip(names, short, strict=True)}
    alike: dict[tuple[str, str], int] = {}
    for place, found in enumerate(groups.values()):
        for n in names:  # the groups that share a value, as bits of a number
            alike[n, repr(found.get(n))] = alike.get((n, repr(found.get(n))), 0) | 1 << place
    out = {}
    for place, (group, found) in enumerate(groups.items()):
        shared = {n: alike[n, repr(found.get(n))] for n in names}
        values = {n: found.get(n) for n in _fewest(shared, 1 << place)}
        shown = {n: f"{value:.4g}" if isinstance(value, float) else own_name(str(value)) for n, value in values.items()}
        out[group] = ", ".join(f"{title[n]} {text}" for n, text in shown.items())
    return out


def _fewest(shared: Mapping[str, int], own: int) -> list[str]:
    """The fewest names whose groups have only `own` in common. Up to two names are tried exhaustively, more are chosen
    greedily."""
    for number in (1, 2):
        for names in combinations(shared, number):
            if reduce(and_, (shared[n] for n in names)) == own:
                return list(names)
    said: list[str] = []
    left = reduce(or_, shared.values(), own)
    while left != own and (best := min(shared, key=lambda n: (left & shared[n]).bit_count())) not in said:
        said.append(best)
        left &= shared[best]
    return said
