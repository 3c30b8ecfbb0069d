"""Conversations of several turns as tables: success by their number of turns, ends, tools and their errors, lengths, time.

The numbers are sums over the rows of metrics.jsonl, so they count every conversation of the run. Beside them stands the last
quarter of the updates: what the policy does now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runnel.eval.aggregates import over_seeds
from runnel.report.tables import Cell, Table
from runnel.track.conversations import Counts, counts_in
from runnel.track.history import History

LAST = 4
"""The last of so many parts of a run is shown beside the whole run."""
WHERE = {"env_s": "tools and environment", "engine_s": "engine"}
ENDS = {
    "terminated": "ended by itself",
    "turns": "no more turns",
    "context": "no more room for tokens",
    "time": "no more time",
    "environment": "cut by its environment",
}
"""What the reasons of ends mean."""
GROUP_NOTE = "Last quarter of the updates of each run; in brackets the 95 % interval of the mean over runs (Student's t)."


def counts_of(run: History) -> tuple[Counts, Counts | None]:
    """The conversations of a run, and those of its last quarter; None where it has less than four updates."""
    num = len(run.updates)
    return counts_in(run.updates), counts_in(run.updates[num - num // LAST :]) if num >= LAST else None


def conversation_tables(run: History) -> list[Table]:
    """The tables of a run; none if it had no conversations."""
    whole, last = counts_of(run)
    if not whole.num:
        return []
    both = [whole, *([last] if last is not None and last.num else [])]
    return [
        table
        for table in (_summary(both), _by_turns(both), _errors(both), _ends(both), _lengths(both), _time(both))
        if table.rows
    ]


def _heads(*names: str, both: Sequence[Counts]) -> list[str]:
    """The names of columns for the whole run, and again for its last quarter."""
    return [f"{name}{part}" for part in ("", ", last quarter")[: len(both)] for name in names]


def _summary(both: Sequence[Counts]) -> Table:
    lines = [summary(found) for found in both]
    rows: list[list[Cell]] = [[name, *(line[name] for line in lines)] for name in lines[0] if lines[0][name] is not None]
    note = "All that were played to their end, also those that were not trained on. Numbers are means over conversations."
    return Table("conversations", "On average", ["", "whole run", "last quarter"][: 1 + len(both)], rows, note)


def summary(found: Counts) -> dict[str, float | int | None]:
    """What a conversation is like on average; None for what the run does not say."""
    passed = sum(turns.passed or 0 for turns in found.by_turns.values())
    judged = sum(turns.num for turns in found.by_turns.values() if turns.passed is not None)
    num, seconds = max(found.num, 1), sum(found.seconds.values())
    return {
        "conversations": found.num,
        "success": passed / judged if judged else None,
        "mean return": sum(turns.total_return for turns in found.by_turns.values()) / num,
        "turns": found.turns / num,
        "longest row in tokens": found.context_tokens / num if found.context else None,
        "tokens prefilled": None if found.prefilled is None else found.prefilled / num,
        "tool calls": found.tool_calls / num,
        "tool errors": sum(found.tool_errors.values()) / num,
        "share of time in tools and environment": found.seconds.get("env_s", 0.0) / seconds if seconds else None,
    }


def _by_turns(both: Sequence[Counts]) -> Table:
    knows = any(turns.passed is not None for found in both for turns in found.by_turns.values())
    names = ["conversations", *(["success"] if knows else []), "mean return"]
    rows: list[list[Cell]] = []
    for label in sorted(both[0].by_turns, key=_first):
        cells: list[Cell] = [label]
        for found in both:
            turns = found.by_turns.get(label)
            if turns is None:
                cells += [0, *[None] * (len(names) - 1)]
                continue
            success = [None if turns.passed is None else turns.passed / turns.num] if knows else []
            cells += [turns.num, *success, turns.total_return / turns.num]
        rows.append(cells)
    note = "Success: the share whose reward in sum was at least eval.pass_reward." if knows else ""
    return Table("conversations-turns", "Success by number of turns", ["turns", *_heads(*names, both=both)], rows, note)


def _first(label: str) -> tuple[int, str]:
    """The order of labels that begin with a number."""
    number = label.partition("-")[0]
    return (int(number) if number.isdecimal() else 0, label)


def _errors(both: Sequence[Counts]) -> Table:
    kinds = sorted(both[0].tool_errors, key=lambda kind: (-both[0].tool_errors[kind], kind))
    rows: list[list[Cell]] = []
    for kind in kinds:
        cells: list[Cell] = [kind]
        for found in both:
            cells += [found.tool_errors.get(kind, 0), found.tool_errors.get(kind, 0) / found.num]
        rows.append(cells)
    head = ["kind", *_heads("errors", "per conversation", both=both)]
    return Table("conversations-tool-errors", "Tool errors by kind", head, rows)


def _ends(both: Sequence[Counts]) -> Table:
    order = [*ENDS, *(reason for reason in both[0].ended if reason not in ENDS)]
    names = {reason: f"{reason} ({ENDS[reason]})" if reason in ENDS else reason for reason in order}
    rows = _shares([found.ended for found in both], [reason for reason in order if reason in both[0].ended], names)
    return Table("conversations-ends", "How conversations end", ["end", *_heads("conversations", "share", both=both)], rows)


def _lengths(both: Sequence[Counts]) -> Table:
    labels = sorted(both[0].context, key=_first)
    rows = _shares([found.context for found in both], labels, {label: f"up to {_spaced(label)}" for label in labels})
    head = ["longest row in tokens", *_heads("conversations", "share", both=both)]
    return Table("conversations-context", "Context lengths", head, rows)


def _spaced(label: str) -> str:
    return f"{int(label):,}" if label.isdecimal() else label


def _shares(counts: Sequence[Mapping[str, int]], labels: Sequence[str], names: Mapping[str, str]) -> list[list[Cell]]:
    """For each label its number and its share, for each of the counts."""
    rows: list[list[Cell]] = []
    for label in labels:
        cells: list[Cell] = [names[label]]
        for found in counts:
            cells += [found.get(label, 0), found.get(label, 0) / max(sum(found.values()), 1)]
        rows.append(cells)
    return rows


def _time(both: Sequence[Counts]) -> Table:
    rows: list[list[Cell]] = []
    for key, name in WHERE.items():
        if key in both[0].seconds:
            cells: list[Cell] = [name]
            for found in both:
                spent = found.seconds.get(key, 0.0)
                cells += [spent, spent / found.num, spent / max(sum(found.seconds.values()), 1e-12)]
            rows.append(cells)
    head = ["", *_heads("seconds", "per conversation", "share", both=both)]
    note = "Summed over conversations. They run side by side, so this may be more than the wall time of the run."
    return Table("conversations-time", "Time in environment and engine", head, rows, note)


# ------------------------------------------------------------------------------------------------------- several runs
def run_table(runs: Sequence[History]) -> Table:
    """A line for each run that had conversations, over the whole run."""
    found = [(run.name, summary(counts_of(run)[0])) for run in runs]
    rows: list[list[Cell]] = [[name, *line.values()] for name, line in found if line["conversations"]]
    return Table("conversations-runs", "Conversations", ["run", *summary(Counts())], rows)


def group_table(groups: Mapping[str, Sequence[History]]) -> Table:
    """A line for each group of runs: means over its runs, each over its last quarter."""
    names = [name for name in summary(Counts()) if name != "conversations"]
    rows: list[list[Cell]] = []
    for group, runs in groups.items():
        found = [last if last is not None else whole for whole, last in map(counts_of, runs)]
        lines = [summary(counts) for counts in found if counts.num]
        if lines:
            rows.append([group, len(lines), *(_mean([line[name] for line in lines]) for name in names)])
    return Table("conversations", "Conversations", ["group", "runs", *names], rows, GROUP_NOTE)


def _mean(values: Sequence[float | None]) -> Cell:
    known = [float(value) for value in values if value is not None]
    if len(known) < len(values):
        return None
    return over_seeds(known) if len(known) > 1 else known[0]
