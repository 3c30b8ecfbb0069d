"""Checks whether compared groups had the same budget: otherwise the method that trained longer has an advantage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runnel.track.history import History, is_number

UNITS = {"total_steps": "steps", "total_updates": "updates", "total_tokens": "tokens"}
COUNTS = (("steps", "environment steps"), ("tokens", "tokens"), ("version", "updates"))
"""What the rows of a run count, with words for it."""
NEAR = 1.05
"""Budgets whose ratio is below this count as the same: a run rounds its budget up to whole updates."""
Budget = tuple[float, str]
"""Amount and unit."""
Runs = Mapping[str, Sequence[History]]
"""Runs by task."""


def budget_of(run: History) -> Budget:
    """The budget of a run. If its settings are lost: what it has spent."""
    for name, unit in UNITS.items():
        if is_number(run.config.get(name)) and run.config[name]:
            return float(run.config[name]), unit
    return float(run.last.get(run.axis) or 0), "steps" if run.axis == "steps" else "updates"


def unequal(first: str, second: str, runs: tuple[Runs, Runs]) -> str:
    """A sentence about two groups with different budgets; empty if their budgets are the same on every task of both."""
    for task in [task for task in runs[0] if task in runs[1]]:
        mine, yours = ([budget_of(run) for run in group[task]] for group in runs)
        if any(not _same(a, b) for a in mine for b in yours):
            where = f" on {task}" if len(runs[0]) > 1 else ""
            return f"Their budgets differ{where}: {first} was given {_amount(mine)}, {second} {_amount(yours)}."
    return ""


def short_of(runs: Sequence[History]) -> list[str]:
    """Runs that ended before their budget was spent, and not because they had solved their task or had collapsed."""
    found = []
    for run in runs:
        known = run.last.get("progress")
        progress = float(known) if is_number(known) else 1.0
        if run.status not in ("solved", "collapsed") and progress * NEAR < 1.0:
            found.append(f"{run.name} ({run.status} at {progress:.0%})")
    return found


def _same(a: Budget, b: Budget) -> bool:
    low, high = sorted((a[0], b[0]))
    return a[1] == b[1] and high <= NEAR * low


def _amount(budgets: Sequence[Budget]) -> str:
    """The budgets as text.

    >>> _amount([(1000.0, "steps"), (1000.0, "steps")]), _amount([(10.0, "updates"), (20.0, "updates")])
    ('1,000 steps', '10 to 20 updates')
    """
    low, high = min(budgets), max(budgets)
    if low == high:
        return f"{low[0]:,.0f} {low[1]}"
    between = "to" if low[1] == high[1] else f"{low[1]} or"
    return f"{low[0]:,.0f} {between} {high[0]:,.0f} {high[1]}"
