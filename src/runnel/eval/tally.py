"""Counts the episodes of an evaluation, and reports those that did not finish."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from runnel.core.contracts.evaluation import EvalResult, ResultTable
from runnel.core.errors import DataError
from runnel.core.trajectories import channel_metric, episode_metric
from runnel.envs.team.contract import TeamVector
from runnel.envs.vector import Fault, VectorEnv
from runnel.eval.statistics import summarise

OF_CHANNELS = "Sums of an episode"
"""The title of the table of costs and further rewards; low and high are a 95 % interval of the mean."""


@dataclass(frozen=True)
class EpisodeOutcome:
    """The result of an episode. `cut`: at the step limit of the evaluation. `crashed`: it has no return. `by_policy`: the
    return of each policy of a team. `channels`: the sums of further rewards and of costs. `statistics`: what a world says of
    the episode, but of one that was cut."""

    total: float
    length: int
    cut: bool = False
    crashed: bool = False
    by_policy: Mapping[str, float] = field(default_factory=dict)
    channels: Mapping[str, float] = field(default_factory=dict)
    statistics: Mapping[str, float] = field(default_factory=dict)


class Tally:
    """Keeps the first episodes of each environment, up to its quota, in the order of play."""

    def __init__(self, episodes: int, num_envs: int) -> None:
        base, more = divmod(episodes, num_envs)
        self._quota = [base + (row < more) for row in range(num_envs)]
        self._found: list[list[EpisodeOutcome]] = [[] for _ in range(num_envs)]
        self._before, self._max_steps = [0] * num_envs, 0
        self._stuck: set[int] = set()
        self._faults: list[Fault] = []

    def begin(self, max_steps: int) -> None:
        """Note that all environments were reset: the vector counts its episodes from 0 again."""
        self._before, self._max_steps = [len(found) for found in self._found], max_steps
        self._stuck.clear()

    def _missing(self, row: int) -> int:
        return max(0, self._quota[row] - len(self._found[row]))

    @property
    def episodes(self) -> int:
        """Episodes in all."""
        return sum(self._quota)

    @property
    def missing(self) -> int:
        """Episodes still to play."""
        return sum(self._missing(row) for row in range(len(self._quota)))

    @property
    def settled(self) -> bool:
        """Whether only a reset can bring more episodes: every environment with a quota left is in a cut episode."""
        return all(row in self._stuck or not self._missing(row) for row in range(len(self._quota)))

    def add(self, vector: VectorEnv | TeamVector, *, after: Callable[[int], None] | None = None) -> None:
        """Count the episodes that ended or crashed. A cut episode is counted already, so its end is skipped.

        `after` is called with the number of each environment whose episode ended or crashed.
        """
        for episode in vector.episodes():
            row = episode.env - vector.index0
            if after is not None:
                after(row)
            if episode.length <= self._max_steps:
                outcome = EpisodeOutcome(
                    episode.total,
                    episode.length,
                    by_policy=episode.by_policy,
                    channels=episode.channels,
                    statistics=episode.statistics,
                )
                self._found[row].append(outcome)
            self._stuck.discard(row)
        for fault in vector.faults():
            row = fault["env"] - vector.index0
            if after is not None:
                after(row)
            self._faults.append(fault)
            if fault["step"] <= self._max_steps:
                # at its place in the order of play: later episodes of this environment may be counted already
                self._found[row].insert(self._before[row] + fault["episode"], EpisodeOutcome(0.0, fault["step"], crashed=True))
            self._stuck.discard(row)

    def cut(
        self,
        row: int,
        total: float,
        by_policy: Mapping[str, float] | None = None,
        channels: Mapping[str, float] | None = None,
    ) -> None:
        """Count the episode of `row` as cut at the limit with a return of `total`. The environment goes on."""
        outcome = EpisodeOutcome(total, self._max_steps, cut=True, by_policy=by_policy or {}, channels=channels or {})
        self._found[row].append(outcome)
        self._stuck.add(row)

    def result(self) -> EvalResult:
        """The counted episodes by environment, then by order of play."""
        counted = [outcome for found, quota in zip(self._found, self._quota, strict=True) for outcome in found[:quota]]
        return result_of(counted, self._faults)


def result_of(outcomes: Sequence[EpisodeOutcome], faults: Sequence[Fault] = ()) -> EvalResult:
    """Returns of the episodes that did not crash, with flags for cuts and crashes."""
    whole = [o for o in outcomes if not o.crashed]
    if not whole:
        raise DataError(f"all {len(outcomes)} episodes of an evaluation crashed; the first: {faults[0]['error']}")
    extra = {"length": [float(o.length) for o in whole]}
    extra |= {f"return/{policy}": [o.by_policy[policy] for o in whole] for policy in whole[0].by_policy}
    extra |= {channel_metric(name): [o.channels[name] for o in whole] for name in whole[0].channels}
    told = [o.statistics for o in whole if not o.cut]
    extra |= {episode_metric(name): [numbers[name] for numbers in told] for name in (told[0] if told else ())}
    sums = {name: extra[name] for name in map(channel_metric, whole[0].channels)}
    if len(whole[0].by_policy) > 1:
        extra |= {f"win_rate/{policy}": [_won(o.by_policy, policy) for o in whole] for policy in whole[0].by_policy}
    if any(o.cut for o in whole):
        extra["cut"] = [float(o.cut) for o in whole]
    if len(whole) < len(outcomes):
        extra["crashed"] = [float(o.crashed) for o in outcomes]
    tables = {OF_CHANNELS: _table_of(sums)} if sums else {}
    return EvalResult([o.total for o in whole], extra, faults=list(faults), tables=tables)


def _table_of(sums: Mapping[str, Sequence[float]]) -> ResultTable:
    rows = []
    for values in sums.values():
        s = summarise(values)
        rows.append([s.mean, s.low, s.high, max(values)])
    return ResultTable(tuple(sums), ("mean", "low", "high", "most"), rows)


def _won(by_policy: Mapping[str, float], policy: str) -> float:
    """1 for the policy that got more than every other in an episode; those who got most together share it."""
    most = max(by_policy.values())
    winners = [name for name, total in by_policy.items() if total == most]
    return 1.0 / len(winners) if policy in winners else 0.0


def incomplete(extra: Mapping[str, Sequence[float]]) -> list[str]:
    """Sentences about episodes that did not finish, to be shown beside the mean."""
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
