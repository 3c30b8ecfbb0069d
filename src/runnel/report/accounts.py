"""Sample accounting in a report: dispatched = consumed + dropped + cancelled + in flight, for every stream of every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runnel.core.accounting import Accounting
from runnel.report.page import table, text
from runnel.report.tables import Cell, Table
from runnel.track.history import History, is_number


def accounting(runs: Sequence[History]) -> str:
    """The table of what became of the rows of every stream, and whether they add up."""
    rows = []
    for run in runs:
        where = [] if len(runs) == 1 else [text(run.name)]
        rows += [[*where, text(name), *_accounting_cells(counts)] for name, counts in accounts_in(run.streams()).items()]
    if not rows:
        return ""
    first = ["stream"] if len(runs) == 1 else ["run", "stream"]
    head = [*first, "dispatched", "= consumed", "+ dropped", "+ cancelled", "+ in flight", "steps or tokens", "adds up"]
    return table(head, rows, numbers=range(len(first), len(head) - 1))


def accounts_in(streams: Mapping[str, object]) -> dict[str, Accounting]:
    """The account of each stream in a row of metrics.jsonl."""
    return {str(name): _read_account(found) for name, found in streams.items() if isinstance(found, Mapping)}


def _read_account(found: Mapping[str, object]) -> Accounting:
    """One account. Anything that is not a number counts as 0."""

    def number(key: str) -> int:
        value = found.get(key)
        return int(value) if is_number(value) else 0

    return Accounting(
        dispatched=number("dispatched"),
        consumed=number("consumed"),
        in_flight=number("in_flight"),
        queued=number("queued"),
        steps=number("steps"),
        dropped=_reasons(found.get("dropped")),
        cancelled=_reasons(found.get("cancelled")),
    )


def imbalances(run: History) -> list[str]:
    """A sentence for each stream whose rows do not add up."""
    return [
        f"stream {name} does not add up: {counts.balance:,} rows are unaccounted for"
        for name, counts in accounts_in(run.streams()).items()
        if counts.balance != 0
    ]


def _accounting_cells(known: Accounting) -> list[str]:
    if known.balance == 0:
        verdict = '<span class="good">✓ yes</span>'
    else:
        verdict = f'<span class="bad">✗ {known.balance:,} rows unaccounted for</span>'
    lost = [_reason_cell(known.dropped), _reason_cell(known.cancelled)]
    queued = f'<br><span class="soft small">in queue {known.queued:,}</span>' if known.queued else ""
    flying = f"{known.in_flight:,}{queued}"
    return [f"{known.dispatched:,}", f"{known.consumed:,}", *lost, flying, f"{known.steps:,}", verdict]


def _reasons(found: object) -> dict[str, int]:
    return {str(k): int(v) for k, v in found.items() if is_number(v)} if isinstance(found, Mapping) else {}


def _reason_cell(reasons: Mapping[str, int]) -> str:
    detail = "".join(f'<br><span class="soft small">{text(k)} {v:,}</span>' for k, v in sorted(reasons.items()))
    return f"{sum(reasons.values()):,}{detail}"


def accounting_table(runs: Sequence[History]) -> Table:
    """The same table as numbers, for a CSV file."""
    rows: list[list[Cell]] = []
    for run in runs:
        for name, c in accounts_in(run.streams()).items():
            lost = [sum(c.dropped.values()), sum(c.cancelled.values())]
            rows.append([run.name, name, c.dispatched, c.consumed, *lost, c.in_flight, c.steps, c.balance])
    counts = ["dispatched", "consumed", "dropped", "cancelled", "in flight", "steps or tokens", "unaccounted for"]
    return Table("accounting", "Sample accounting", ["run", "stream", *counts], rows)
