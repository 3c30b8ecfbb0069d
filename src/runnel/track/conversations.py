"""What conversations of several turns were like: counted for the rows of metrics.jsonl, and summed up again for reports.

Each update has means over the last conversations (`chat/...`), and what was counted since the row before (`conversations`), so
that the rows of a run add up to all of it. Seconds are under `time`, as all that depends on wall time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runnel.core.state import State
from runnel.track.folder import Row
from runnel.track.groups import GroupFile
from runnel.track.history import as_table, is_number

RECENT = 100
"""Conversations whose means an update shows."""
MOST_KINDS = 20
"""Most kinds of tool errors that have a name. Tools may make up any number of them; the others are counted as `OTHER`."""
OTHER = "other"
SINGLE_TURNS = 8
"""Up to so many turns, each number is counted alone; above it, numbers are counted together up to each power of two."""
COUNTED = ("turns", "context", "reason", "tool_calls", "prefilled", "passed")
"""What an event of an episode says of a conversation, beside the tool errors."""
SECONDS = ("env_s", "engine_s")
"""Seconds of a conversation in its tools and environment, and in the engine."""


def turns_label(num: int) -> str:
    """The numbers of turns that are counted together with `num`.

    >>> [turns_label(n) for n in (1, 8, 9, 16, 17, 500)]
    ['1', '8', '9-16', '9-16', '17-32', '257-512']
    """
    if num <= SINGLE_TURNS:
        return str(num)
    low = 1 << (num - 1).bit_length() - 1
    return f"{low + 1}-{2 * low}"


def context_label(tokens: int) -> str:
    """The power of two that a length in tokens reaches at most.

    >>> context_label(1), context_label(512), context_label(513)
    ('1', '512', '1024')
    """
    return str(1 << max(tokens - 1, 0).bit_length())


class ConversationLog:
    """Counts the conversations of a run, and keeps some of them whole in a file."""

    def __init__(self, path: Path) -> None:
        self._file = GroupFile(path)
        self._num_kept = 0
        """Conversations that were written to the file, also those that were removed again to keep it small."""
        self._recent: deque[Row] = deque(maxlen=RECENT)
        self._since: Row = {}
        """What was counted since the last row."""
        self._seconds: dict[str, float] = {}
        self._kinds: list[str] = []
        """Kinds of tool errors that have a name, in order of appearance."""
        self._reasons: list[str] = []
        """Why conversations have ended so far."""

    # -------------------------------------------------------------------------------------------------------- intake
    def add(self, event: Row) -> None:
        """Count an episode, if it was a conversation."""
        if "turns" not in event:
            return
        told: Row = {k: event[k] for k in COUNTED if k in event}
        told["tool_errors"] = self._named(event.get("tool_errors", {}))
        if "reason" in told and told["reason"] not in self._reasons:
            self._reasons.append(told["reason"])
        self._recent.append(told)
        self._since = added(self._since, _one(told, float(event["return"])))
        for name in SECONDS:
            self._seconds[name] = self._seconds.get(name, 0.0) + float(event.get(name, 0.0))

    def keep(self, event: Row, at: Row) -> None:
        """Write a whole conversation to the file. `at` says how far the run is."""
        self._num_kept += 1
        told = {k: v for k, v in event.items() if k not in ("kind", "worker")}
        self._file.add({"number": self._num_kept, **at, **told})

    def _error_names(self) -> list[str]:
        """All kinds that were seen: a curve falls to 0 and does not stop."""
        rest = any(OTHER in told["tool_errors"] for told in self._recent)
        return [*self._kinds, *([OTHER] if rest and OTHER not in self._kinds else [])]

    def _named(self, errors: Mapping[str, int]) -> dict[str, int]:
        out: dict[str, int] = {}
        for kind, num in errors.items():
            if kind not in self._kinds and len(self._kinds) < MOST_KINDS:
                self._kinds.append(kind)
            name = kind if kind in self._kinds else OTHER
            out[name] = out.get(name, 0) + int(num)
        return out

    # -------------------------------------------------------------------------------------------------------- output
    def metrics(self) -> dict[str, float]:
        """Means over the last conversations. Kinds and reasons that were seen before stay, so that a curve falls to 0."""
        recent = self._recent
        if not recent:
            return {}
        out: dict[str, float] = {}
        for name in ("turns", "context", "prefilled", "tool_calls"):
            if known := [float(told[name]) for told in recent if name in told]:
                out[f"chat/{name}"] = sum(known) / len(known)
        errors = [(kind, [told["tool_errors"].get(kind, 0) for told in recent]) for kind in self._error_names()]
        out |= {f"chat/tool_errors/{kind}": sum(numbers) / len(numbers) for kind, numbers in errors}
        out |= {f"chat/ended/{why}": sum(told.get("reason") == why for told in recent) / len(recent) for why in self._reasons}
        return out | self._successes()

    def _successes(self) -> dict[str, float]:
        """The share of conversations that passed, of all and by their number of turns."""
        found: dict[str, list[bool]] = {}
        for told in self._recent:
            if "passed" in told:
                for name in ("chat/success", f"chat/success_by_turns/{turns_label(told['turns'])}"):
                    found.setdefault(name, []).append(told["passed"])
        return {name: sum(passed) / len(passed) for name, passed in sorted(found.items())}

    def take(self) -> Row:
        """What was counted since the last call, as a part of a row; empty if nothing was."""
        found, self._since = self._since, {}
        return {"conversations": found} if found else {}

    def take_seconds(self) -> Row:
        """Seconds since the last call, as a part of `time`; empty if no conversation ended."""
        found, self._seconds = self._seconds, {}
        return {"conversations": found} if found else {}

    # ---------------------------------------------------------------------------------------------------- checkpoint
    def snapshot(self) -> State:
        names = {"kinds": list(self._kinds), "reasons": list(self._reasons)}
        return {"recent": list(self._recent), "since": self._since, "num_kept": self._num_kept, **names}

    def restore(self, state: State) -> None:
        """Go on from a checkpoint. One that was made before there were conversations has an empty state."""
        self._recent.clear()
        self._recent.extend(state.get("recent", []))
        self._since, self._seconds = dict(state.get("since", {})), {}
        self._kinds, self._reasons = list(state.get("kinds", [])), list(state.get("reasons", []))
        self._num_kept = state.get("num_kept", 0)

    def cut(self) -> None:
        """Remove conversations from the file that are newer than the checkpoint that was restored."""
        self._file.cut(self._num_kept, by="number")


def _one(told: Row, value: float) -> Row:
    """The counts of a single conversation."""
    group: Row = {"num": 1, "return": value}
    if "passed" in told:
        group["passed"] = int(told["passed"])
    out: Row = {"num": 1, "turns": told["turns"], "by_turns": {turns_label(told["turns"]): group}}
    if "context" in told:
        out |= {"context": {context_label(told["context"]): 1}, "context_tokens": told["context"]}
    if "prefilled" in told:
        out["prefilled"] = told["prefilled"]
    if "reason" in told:
        out["ended"] = {told["reason"]: 1}
    if "tool_calls" in told:
        out |= {"tool_calls": told["tool_calls"], "tool_errors": told["tool_errors"]}
    return out


def added(one: Row, other: Row) -> Row:
    """Two tables of counts as one: numbers of one name are summed, at any depth.

    >>> added({"num": 1, "ended": {"turns": 1}}, {"num": 2, "ended": {"time": 2}})
    {'num': 3, 'ended': {'turns': 1, 'time': 2}}
    """
    out = dict(one)
    for name, value in other.items():
        if isinstance(value, Mapping):
            out[name] = added(as_row(out.get(name)), as_row(value))
        elif is_number(value):
            before = out.get(name, 0)
            out[name] = (before if is_number(before) else 0) + value
    return out


def as_row(value: object) -> Row:
    """A table of a file as a dict; empty if it is none."""
    return {str(k): v for k, v in as_table(value).items()}


@dataclass(frozen=True)
class TurnCounts:
    """Conversations with one number of turns."""

    num: int
    total_return: float
    passed: int | None
    """How many passed; None if the run does not say."""


@dataclass(frozen=True)
class Counts:
    """What the rows of a run say of its conversations. The rows may come from anybody: what is no number is left out."""

    num: int = 0
    turns: int = 0
    by_turns: Mapping[str, TurnCounts] = field(default_factory=dict)
    context: Mapping[str, int] = field(default_factory=dict)
    """By the power of two that their longest row reaches at most."""
    context_tokens: int = 0
    """The lengths of their longest rows, summed."""
    prefilled: int | None = None
    """Tokens that the engine computed before it could speak, summed; None if the run does not say."""
    ended: Mapping[str, int] = field(default_factory=dict)
    tool_calls: int = 0
    tool_errors: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


def counts_in(rows: Iterable[Row]) -> Counts:
    """The sum over rows of updates."""
    total, seconds = Row(), Row()
    for row in rows:
        total = added(total, as_row(row.get("conversations")))
        seconds = added(seconds, as_row(as_table(row.get("time")).get("conversations")))
    by_turns = {name: _turn_counts(as_row(found)) for name, found in as_row(total.get("by_turns")).items()}
    return Counts(
        num=_whole(total.get("num")),
        turns=_whole(total.get("turns")),
        by_turns={name: found for name, found in by_turns.items() if found.num},
        context=_wholes(total.get("context")),
        context_tokens=_whole(total.get("context_tokens")),
        prefilled=_whole(total["prefilled"]) if "prefilled" in total else None,
        ended=_wholes(total.get("ended")),
        tool_calls=_whole(total.get("tool_calls")),
        tool_errors=_wholes(total.get("tool_errors")),
        seconds={name: float(seconds[name]) for name in SECONDS if is_number(seconds.get(name))},
    )


def _turn_counts(found: Row) -> TurnCounts:
    value = found.get("return")
    passed = _whole(found["passed"]) if "passed" in found else None
    return TurnCounts(_whole(found.get("num")), float(value) if is_number(value) else 0.0, passed)


def _whole(value: object) -> int:
    return int(value) if is_number(value) else 0


def _wholes(value: object) -> dict[str, int]:
    return {name: int(num) for name, num in as_row(value).items() if is_number(num)}
