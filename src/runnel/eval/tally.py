"""Which episodes of an evaluation count, and what is said of those that did not come to their end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runnel.core.contracts.evaluation import EvalResult
from runnel.core.errors import DataError
from runnel.envs.vector import VectorEnv


@dataclass(frozen=True)
class EpisodeOutcome:
    """How an episode went: `cut` at a limit of the evaluation's own, or `crashed`, and then without a return."""

    total: float
    length: int
    cut: bool = False
    crashed: bool = False


class Tally:
    """The first episodes of each environment, up to its quota, in the order in which they were played."""

    def __init__(self, episodes: int, num_envs: int) -> None:
        base, more = divmod(episodes, num_envs)
        self._quota = [base + (row < more) for row in range(num_envs)]
        self._found: list[list[EpisodeOutcome]] = [[] for _ in range(num_envs)]
        self._before, self._max_steps = [0] * num_envs, 0
        self._stuck: set[int] = set()
        self._faults: list[dict[str, Any]] = []

    def begin(self, max_steps: int) -> None:
        """All environments were reset: their episodes are counted from 0 again."""
        self._before, self._max_steps = [len(found) for found in self._found], max_steps
        self._stuck.clear()

    def _missing(self, row: int) -> int:
        return max(0, self._quota[row] - len(self._found[row]))

    @property
    def missing(self) -> int:
        """Episodes still to play."""
        return sum(self._missing(row) for row in range(len(self._quota)))

    @property
    def settled(self) -> bool:
        """Whether nothing more can be had without a reset: who misses an episode is in one that was cut."""
        return all(row in self._stuck or not self._missing(row) for row in range(len(self._quota)))

    def add(self, vector: VectorEnv) -> None:
        """Take in what ended, and what broke. One that was cut already has its place; here it merely comes to its end."""
        for episode in vector.episodes():
            row = episode.env - vector.index0
            if episode.length <= self._max_steps:
                self._found[row].append(EpisodeOutcome(episode.total, episode.length))
            self._stuck.discard(row)
        for fault in vector.faults():
            row = fault["env"] - vector.index0
            self._faults.append(fault)
            if fault["step"] <= self._max_steps:
                self._found[row].insert(self._before[row] + fault["episode"], EpisodeOutcome(0.0, fault["step"], crashed=True))
            self._stuck.discard(row)

    def cut(self, row: int, total: float) -> None:
        """The episode of `row` reached the limit with a return of `total`, and goes on."""
        self._found[row].append(EpisodeOutcome(total, self._max_steps, cut=True))
        self._stuck.add(row)

    def result(self) -> EvalResult:
        """By environment, then in the order they were played."""
        counted = [outcome for found, quota in zip(self._found, self._quota, strict=True) for outcome in found[:quota]]
        return result_of(counted, self._faults)


def result_of(outcomes: Sequence[EpisodeOutcome], faults: Sequence[dict[str, Any]] = ()) -> EvalResult:
    """Returns of the episodes that have one, and flags for what else happened."""
    whole = [o for o in outcomes if not o.crashed]
    if not whole:
        raise DataError(f"all {len(outcomes)} episodes of an evaluation crashed; the first: {faults[0]['error']}")
    extra = {"length": [float(o.length) for o in whole]}
    if any(o.cut for o in whole):
        extra["cut"] = [float(o.cut) for o in whole]
    if len(whole) < len(outcomes):
        extra["crashed"] = [float(o.crashed) for o in outcomes]
    return EvalResult([o.total for o in whole], extra, faults=list(faults))


def incomplete(extra: Mapping[str, Sequence[float]]) -> list[str]:
    """What a reader of the mean has to know of episodes that did not come to their end, a sentence each."""
    told = []
    if num := int(sum(extra.get("cut", ()))):
        steps = max(n for n, cut in zip(extra["length"], extra["cut"], strict=True) if cut)
        told.append(
            f"{num} of {len(extra['cut'])} evaluated episodes were cut after {int(steps):,} steps (eval.max_steps); their "
            "returns are those until then"
        )
    if num := int(sum(extra.get("crashed", ()))):
        all_of = len(extra["crashed"])
        told.append(
            f"{num} of {all_of} evaluated episodes crashed and have no return; the mean is that of the other {all_of - num}, "
            "which may be the easier ones"
        )
    return told
