"""A study on the terminal: a live table, or a line for each trial where there is no terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

from runnel.tune.folder import Book, Trial

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

ROWS = 12
REFRESH_S = 0.25


class View:
    """Shows the trials of a book. With `live`, and in a terminal, as a table; with `live` elsewhere, a line for each trial."""

    def __init__(self, title: str, total: int, *, live: bool = False, out: TextIO | None = None) -> None:
        self._title, self._total, self._out = title, total, out or sys.stdout
        self._start, self._last, self._said = time.monotonic(), 0.0, set[tuple[int, str]]()
        self._before: int | None = None
        self._live: Live | None = None
        self._quiet = not live
        if live and self._out.isatty():
            from rich.live import Live

            self._live = Live(auto_refresh=False, transient=True)
            self._live.start()

    def show(self, book: Book) -> None:
        """Show the present state of the study."""
        if self._before is None:
            self._before = _num_done(book.trials)
            self._said = {(t["number"], t["state"]) for t in book.trials}
        if self._live is not None and time.monotonic() - self._last >= REFRESH_S:
            self._last = time.monotonic()
            self._live.update(self._table(book), refresh=True)
        elif self._live is None and not self._quiet:
            self._lines(book)

    def note(self, text: str) -> None:
        """Print a line, above the table if there is one."""
        if not self._quiet:
            print(text, file=self._out) if self._live is None else self._live.console.print(text)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def eta_s(self, book: Book) -> float | None:
        """Estimated seconds until all trials are done, from the speed of this session."""
        done = _num_done(book.trials) - (self._before or 0)
        left = self._total - _num_done(book.trials)
        return (time.monotonic() - self._start) / done * left if done and left >= 0 else None

    def _lines(self, book: Book) -> None:
        for trial in book.trials:
            key = (trial["number"], trial["state"])
            if trial["state"] != "running" and key not in self._said:
                self._said.add(key)
                best = book.best()
                told = "" if best is None else f"  best {_number(best['value'])} (trial {best['number']})"
                print(
                    f"trial {trial['number']:3}  {trial['state']:8}  {_number(trial['value'])}{told}  {_params(trial)}",
                    file=self._out,
                )

    def _table(self, book: Book) -> Table:
        from rich.table import Table

        best, eta = book.best(), self.eta_s(book)
        told = "" if best is None else f", best {_number(best['value'])} (trial {best['number']})"
        left = "" if eta is None else f", about {_span(eta)} left"
        table = Table(title=f"{self._title}: {_num_done(book.trials)} of {self._total}{told}{left}", title_justify="left")
        for name, side in (("trial", "right"), ("state", "left"), ("value", "right"), ("at", "right"), ("settings", "left")):
            table.add_column(name, justify=side)  # type: ignore[arg-type]
        for trial in book.trials[-ROWS:]:
            at = str(trial["steps"][-1][0]) if trial["steps"] else ""
            style = "bold green" if best is not None and trial["number"] == best["number"] else ""
            table.add_row(str(trial["number"]), trial["state"], _number(trial["value"]), at, _params(trial), style=style)
        return table


def _num_done(trials: list[Trial]) -> int:
    return sum(t["state"] != "running" for t in trials)


def _params(trial: Trial) -> str:
    return trial["error"] or " ".join(f"{k}={_number(v)}" for k, v in trial["params"].items())


def _number(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _span(seconds: float) -> str:
    """
    >>> _span(42), _span(600), _span(9000)
    ('42 s', '10 min', '2.5 h')
    """
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
