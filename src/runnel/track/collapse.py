"""Watches every update for a collapse: since when, what it usually means, and which settings to change.

Pure: rows of metrics in, findings out. The table in `track/collapse_rules.py` says what a collapse looks like. This file counts
how long each rule holds, and distinguishes a run that has collapsed from one that has learned its task.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from runnel.track.collapse_rules import RULES, CollapseRule, World
from runnel.track.folder import Row, Settings

if TYPE_CHECKING:  # only the name: that module imports torch, which the board and reports start without
    from runnel.core.state import State

Level = Literal["collapse", "note", "over", "still"]
SHARED = (
    *("eval", "checkpoint", "record", "placement", "cluster", "staleness", "vector", "net", "replay"),
    *("data", "filter", "lm", "learner", "engine"),
)
"""Groups of settings that do not belong to an algorithm: `*` in a rule does not match them."""
FIRST_EPISODES = 20
"""With fewer episodes, their mean is too noisy to compare with."""
NEAR = 0.05
"""A run counts as having reached its goal from this share below it: training explores, evaluation does not."""
SAME = 1e-6
"""Numbers that differ by less than this share count as equal."""
SIGNAL = ("groups_zero_signal",)
OF_SELF_PLAY = "league/win_rate"
"""A metric of self-play, where returns are means over all seats: what one wins another loses."""
SIGNED = -1e-3
"""An entropy below this comes from a density (continuous actions). There, an entropy of 0 means nothing special."""


@dataclass(frozen=True)
class Finding:
    """A message about the run.

    Level `collapse` is a warning. `note` is the same state in a run that has learned its task. `over` is the end of a collapse.
    `still` says that a run which was resumed in a collapse, reported before, has not come out of it.
    """

    kind: str
    level: Level
    since: int
    text: str


@dataclass
class Hold:
    """How long a rule has held, how good the run was meanwhile, and which level was reported."""

    num: int = 0
    since: int = 0
    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0
    clear: int = 0
    told: str = ""


@dataclass
class Span:
    """How good the run has been: the lowest, the highest and the newest return or reward."""

    low: float = math.inf
    high: float = -math.inf
    now: float = math.nan

    def add(self, level: float) -> None:
        self.low, self.high, self.now = min(self.low, level), max(self.high, level), level

    @property
    def varies(self) -> bool:
        return self.high - self.low > SAME * max(1.0, abs(self.high))


class Watcher:
    """Applies the rules to one run. `settings` are those of its config by dotted name, without the unused ones."""

    def __init__(self, settings: Settings, *, world: World) -> None:
        self._settings, self._world = dict(settings), world
        self._rules = [rule for rule in RULES if rule.world == world]
        self._resumed: dict[str, int] = {}
        """Updates since a resume, for each collapse that was open at the resume."""
        self._restart()

    def _restart(self) -> None:
        self._holds = {rule.kind: Hold() for rule in self._rules}
        self._level = Span()
        self._had_signal = self._signed = False
        self._largest = 0.0
        """The largest absolute return or reward so far."""
        self._steady: tuple[float, float, int] = (math.nan, 0.0, 0)
        """The last return, and the number of episodes and the version since which it has not changed."""

    def see(self, version: int, metrics: Mapping[str, float]) -> list[Finding]:
        """Add the metrics of one update. Returns the findings; each state is reported once while it lasts."""
        self._note_levels(version, metrics)
        found: list[Finding] = []
        for rule in self._rules:
            holds = self._test(rule, metrics)
            if holds is None:
                continue
            hold = self._holds[rule.kind]
            finding = self._on_held(rule, hold, version) if holds else self._on_not_held(rule, hold)
            found += [] if finding is None else [finding]
        return found

    # -------------------------------------------------------------------------------------------------------------- the row
    def _note_levels(self, version: int, metrics: Mapping[str, float]) -> None:
        """Update the numbers that later rows are compared with."""
        episodes = metrics.get("episodes", 0.0)
        level = metrics.get("return")
        if self._world == "language":
            level = metrics.get("reward/mean", metrics.get("preference/accuracy"))
        if level is not None:
            self._largest = max(self._largest, abs(level))
            if self._world == "language" or episodes >= FIRST_EPISODES:
                self._level.add(level)
            # `not <=` and not `>`: the first comparison is with NaN, and must count as a change
            if not abs(level - self._steady[0]) <= SAME * max(1.0, abs(level)):
                self._steady = (level, episodes, version)
        self._signed = self._signed or metrics.get("entropy", 0.0) < SIGNED
        self._had_signal = self._had_signal or ("groups_zero_signal" in metrics and not _is_silent(metrics))

    def _test(self, rule: CollapseRule, metrics: Mapping[str, float]) -> bool | None:
        """Whether a rule holds for a row; None if the row lacks its metrics. This runs for every rule at every update."""
        test, limit = rule.sign.test, rule.sign.limit
        if test == "beyond_returns":  # without a first return there is nothing to compare with
            found = [] if math.isnan(self._steady[0]) else [name for name in rule.sign.metrics if name in metrics]
            return any(self._beyond(name, metrics[name], limit) for name in found) if found else None
        value = metrics.get(rule.sign.metrics[0])
        if value is None or (rule.beside and rule.beside not in metrics):
            return None
        if test == "at_most":  # groups without signal have no gradient: another rule reports that
            return value <= limit and not _is_silent(metrics)
        if test == "near_zero":
            return value <= limit and not self._signed
        if test == "constant":
            if OF_SELF_PLAY in metrics:
                return None
            return metrics.get("episodes", 0.0) - self._steady[1] >= limit
        if test == "clipped":
            return value >= limit * self._most_clipped(metrics)
        if value < limit or rule.sign.metrics != SIGNAL:
            return value >= limit
        return _is_silent(metrics) and self._had_signal == (rule.kind == "no signal")

    def _most_clipped(self, metrics: Mapping[str, float]) -> float:
        """The largest possible clip fraction: in the first optimiser step of an update all ratios are 1, so none is clipped."""
        of_tokens = self._number("learner.num_epochs") * self._number("learner.num_minibatches")
        steps = metrics.get("optimiser_steps", of_tokens)
        return 1.0 - 1.0 / steps if steps > 1 else 1.0

    def _beyond(self, name: str, value: float, limit: float) -> bool:
        """Whether a loss or a value is far beyond the returns. Losses are squares, so they are compared with squared
        returns."""
        scale = 1.0 + self._largest
        return abs(value) >= limit * (scale if name == "q" else scale * scale)

    # ------------------------------------------------------------------------------------------------------------- counting
    def _on_held(self, rule: CollapseRule, hold: Hold, version: int) -> Finding | None:
        hold.clear = 0
        if hold.num == 0:
            hold.since = self._steady[2] if rule.sign.test == "constant" else version
        hold.num += 1
        if not math.isnan(now := self._level.now):
            hold.low, hold.high, hold.total = min(hold.low, now), max(hold.high, now), hold.total + now
        if hold.told == "collapse":
            return self._still(rule, hold)
        if hold.num < rule.sign.updates:
            return None
        level, why = self._classify(rule, hold)
        if level == hold.told or not level:
            return None
        hold.told = level
        return Finding(rule.kind, level, hold.since, self._words(rule, hold, level, why))

    def _still(self, rule: CollapseRule, hold: Hold) -> Finding | None:
        """After a resume, a collapse is reported as `still` open after as many updates as it takes to report one."""
        if rule.kind not in self._resumed:
            return None
        self._resumed[rule.kind] += 1
        return Finding(rule.kind, "still", hold.since, "") if self._resumed[rule.kind] == rule.sign.updates else None

    def _on_not_held(self, rule: CollapseRule, hold: Hold) -> Finding | None:
        """A reported state is over when it has been away for as many updates as it takes to report it."""
        if hold.num == 0:
            return None
        hold.clear += 1
        if hold.told and hold.clear < rule.sign.updates:
            return None
        self._holds[rule.kind] = Hold()
        self._resumed.pop(rule.kind, None)
        if hold.told != "collapse":
            return None
        return Finding(rule.kind, "over", hold.since, f"the collapse since version {hold.since} ({rule.kind}) is over")

    # ------------------------------------------------------------------------------------------------------- learned or lost
    def _classify(self, rule: CollapseRule, hold: Hold) -> tuple[Level | Literal[""], str]:
        """`collapse`, or `note` for a run that has learned its task, with the reason. Empty if there is nothing to report."""
        if not rule.may_be_solved or not self._level.high > -math.inf:
            return "collapse", ""
        why = self._why_solved(hold) if self._world == "language" else self._why_kept()
        if rule.sign.test != "constant":
            return ("note", why) if why else ("collapse", self._lost())
        if not self._level.varies:
            return (
                "note",
                "no episode of this run has had another, so either all are as good as can be, or the reward was never found",
            )
        return ("", "") if why else ("collapse", self._lost())

    def _why_solved(self, hold: Hold) -> str:
        """Why a language model counts as having learned its task; empty if it does not."""
        mean = hold.total / max(hold.num, 1)
        for name in ("eval.pass_reward", "eval.stop_return"):
            goal = self._settings.get(name)
            if goal is not None and mean >= goal - NEAR * abs(goal):
                return f"the mean reward is {mean:.3g} ({name} is {goal:g}): the task is solved, or too easy"
        best = self._level
        if best.varies and hold.high - hold.low <= SAME and hold.low >= best.high - SAME:
            return f"each update has {mean:.3g}, the most that was seen: the task is solved, or too easy"
        return ""

    def _why_kept(self) -> str:
        """Why a policy counts as having learned its environment: it reached the goal, or it kept half of what it gained."""
        goal, level = self._settings.get("eval.stop_return"), self._level
        if goal is not None:
            near = level.now >= goal - NEAR * abs(goal)
            return f"the return is {level.now:.4g} (eval.stop_return is {goal:g}): it is solved" if near else ""
        if level.varies and level.now >= (level.low + level.high) / 2:
            return f"the return is {level.now:.4g}, up from {level.low:.4g}: if that is the best there is, it is solved"
        warm = self._settings.get("init_from") and not level.varies
        return f"the return is {level.now:.4g}, as it was at the start (init_from)" if warm else ""

    def _lost(self) -> str:
        level, name = self._level, "mean reward" if self._world == "language" else "return"
        if not level.varies:
            return f"the {name} has always been {level.now:.4g}"
        return f"the {name} is {level.now:.4g}, and was between {level.low:.4g} and {level.high:.4g}"

    # ---------------------------------------------------------------------------------------------------------------- words
    def _words(self, rule: CollapseRule, hold: Hold, level: Level, why: str) -> str:
        if level == "note":
            start = f"{rule.kind} since version {hold.since}: {rule.shows}; {why}."
            return f"{start} What to change if it is not so: {self._advice(rule)}."
        state = f" ({why})" if why else ""
        start = f"collapse since version {hold.since} ({rule.kind}): {rule.shows}{state}."
        return f"{start} Usually {rule.means}. What to change: {self._advice(rule)}."

    def _advice(self, rule: CollapseRule) -> str:
        parts = []
        for verb, patterns in rule.fixes:
            names = [name for pattern in patterns for name in self._named(pattern)]
            names = [n for n in names if verb != "set" or self._settings[n] in (None, False)]
            if names:
                parts.append(f"{verb} " + ", ".join(f"{n} (now {shown(self._settings[n])})" for n in names))
        return "; ".join(parts)

    def _named(self, pattern: str) -> list[str]:
        """The settings of this run that a pattern of a rule matches."""
        if not pattern.startswith("*."):
            return [pattern] if pattern in self._settings else []
        return [n for n in fnmatch.filter(self._settings, pattern) if n.partition(".")[0] not in SHARED and n.count(".") == 1]

    def _number(self, name: str) -> float:
        found = self._settings.get(name, 1)
        return float(found) if isinstance(found, int | float) else 1.0

    # ----------------------------------------------------------------------------------------------------------- checkpoint
    def snapshot(self) -> State:
        return {
            "holds": {kind: _finite(asdict(hold)) for kind, hold in self._holds.items()},
            "level": _finite(asdict(self._level)),
            "had_signal": self._had_signal,
            "signed": self._signed,
            "largest": self._largest,
            "steady": _finite(dict(zip(("return", "episodes", "version"), self._steady, strict=True))),
        }

    def restore(self, state: State) -> None:
        """Go on from a snapshot. With an empty one (of older checkpoints) the watch starts from the beginning."""
        self._restart()
        if not state:
            return
        self._holds |= {kind: Hold(**hold) for kind, hold in state["holds"].items() if kind in self._holds}
        self._resumed = {kind: 0 for kind, hold in self._holds.items() if hold.told == "collapse"}
        self._level = Span(**state["level"])
        self._had_signal, self._signed, self._largest = state["had_signal"], state["signed"], state["largest"]
        steady = state["steady"]
        self._steady = steady.get("return", math.nan), steady["episodes"], steady["version"]


def _is_silent(metrics: Mapping[str, float]) -> bool:
    """Whether a batch of groups gives no gradient: all rewards in each group are equal, and the loss is 0. Some algorithms also
    learn from differences between prompts; then the loss is not 0."""
    return metrics.get("groups_zero_signal", 0.0) >= 1.0 and metrics.get("loss/policy", 0.0) == 0.0


def _finite(values: Row) -> Row:
    """The values without infinities and NaN, which the strict JSON of a checkpoint cannot hold; they are the defaults
    anyway."""
    return {k: v for k, v in values.items() if not (isinstance(v, float) and not math.isfinite(v))}


def shown(value: object) -> str:
    """A setting as a user writes it.

    >>> shown(1e-4), shown("linear(1, 0)"), shown(None), shown("")
    ('0.0001', 'linear(1, 0)', 'none', 'none')
    """
    if value is None or value == "" or value == [] or value == ():
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def open_collapses(rows: Collection[Row]) -> list[Row]:
    """The events that report a collapse that is not over, in their order. `rows` are the events of a run."""
    found: dict[str, Row] = {}
    for row in rows:
        if row.get("what") != "collapse":
            continue
        kind = str(row.get("collapse", ""))
        found.pop(kind, None)  # so that it is behind those that were reported before it
        if not row.get("over"):
            found[kind] = row
    return list(found.values())
