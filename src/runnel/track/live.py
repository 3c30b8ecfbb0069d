"""The live view of a run: a picture that redraws itself in a terminal or a notebook, or a line every few seconds in a log.

All work is done on the caller's thread, and only when a redraw is due. So at hundreds of updates a second, an update costs one
reading of the clock and a few assignments.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Protocol

from runnel.core.clock import Clock, WallClock
from runnel.core.user_code import brief
from runnel.track.folder import Row
from runnel.track.frame import Line, Picture, clean, describe_eval, few_lines, frame, one_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

REDRAW_S = 0.125
"""Seconds between pictures in a terminal."""
PLAIN_S = 5.0
"""Seconds between lines in a log."""
NOTEBOOK_S = 0.5
"""Seconds between pictures in a notebook, where each is a message to the browser."""
MAX_COST = 0.01
"""The largest share of the run's time that drawing may take. A slow terminal is therefore redrawn less often."""
ASCII = str.maketrans("━▁▂▃▄▅▆▇█▏▎▍▌▋▊▉●–∞", "=.,:;-=+#|||||||*-8")
"""Replacements for terminals that show ASCII only."""


class _Display(Protocol):
    """Shows the picture: rich's `Live`, or the cell of a notebook."""

    def refresh(self) -> None: ...

    def stop(self) -> None: ...


def is_watched() -> bool:
    """Whether this process prints to a terminal or a notebook, and not to a file or a pipe."""
    from rich.console import Console as RichConsole

    console = RichConsole()
    return console.is_jupyter or (sys.stdout.isatty() and _is_screen(console))


def _is_screen(console: Console) -> bool:
    """Whether the terminal can redraw: no dumb terminal, and no log of a CI service."""
    return console.is_terminal and not console.is_dumb_terminal and not os.environ.get("CI")


class LiveView:
    """Shows rows as they arrive. `total` is in `unit` (steps, tokens, updates). `close` leaves the last picture on the
    screen."""

    def __init__(
        self,
        *,
        title: str,
        total: float,
        unit: str,
        console: Console | None = None,
        clock: Clock | None = None,
    ) -> None:
        from rich.console import Console as RichConsole

        self._console = console or RichConsole()
        self._clock = clock or WallClock()
        self._start = self._clock.now()
        self._due = self._start
        self.picture = Picture(title=title, total=total, unit=unit)
        self.animated = self._console.is_jupyter or _is_screen(self._console)
        self._redraw_s = NOTEBOOK_S if self._console.is_jupyter else REDRAW_S
        self._display: _Display | None = self._start_display() if self.animated else None
        self._closed = False

    def row(self, row: Row) -> None:
        """Add a row; redraw if it is due. An evaluation and the end are shown at once. A log shows messages at once, too."""
        self.picture.add(row)
        if self.animated and row.get("kind") in ("eval", "end"):
            self._due = self._clock.now()
        elif not self.animated:
            self._print_message(row)
        self._draw_if_due()

    def tick(self, text: str = "") -> None:
        """Show what happens between two rows, such as `evaluating 37/100`."""
        self.picture.note = text
        self._draw_if_due()

    def close(self) -> None:
        """Draw the last picture and stop."""
        if self._closed:
            return
        self._closed = True
        if self.animated or self.picture.update or self.picture.status:
            self._draw(self._clock.now())
        if self._display is not None:
            self._display.stop()

    def _draw_if_due(self) -> None:
        now = self._clock.now()
        if now < self._due or self._closed or not (self.animated or self.picture.update):
            return
        self._draw(now)
        cost = self._clock.now() - now
        self._due = now + (max(self._redraw_s, cost / MAX_COST) if self.animated else PLAIN_S)

    def _draw(self, now: float) -> None:
        self.picture.elapsed_s = now - self._start
        if self._display is not None:
            self._display.refresh()
        else:
            self._print(one_line(self.picture))

    def _start_display(self) -> _Display:
        if self._console.is_jupyter:
            return _Cell(self.picture)
        from rich.live import Live

        live = Live(_Drawing(self.picture), console=self._console, auto_refresh=False, vertical_overflow="crop")
        live.start()
        return live

    def _print_message(self, row: Row) -> None:
        """Print an evaluation or an event as a line of a log."""
        if row.get("kind") == "eval":
            at = row.get("steps") or row.get("version") or 0
            self._print(f"{self.picture.title}  evaluation at {at:,}: {describe_eval(row)}")
        elif row.get("kind") == "event":
            self._print(f"{self.picture.title}  {row.get('level', 'info')}: {clean(brief(str(row.get('text', ''))))}")

    def _print(self, text: str) -> None:
        shown = text.translate(ASCII) if self._console.options.ascii_only else text
        self._console.print(shown, markup=False, highlight=False, soft_wrap=True)


class _Cell:
    """The picture in the output of a notebook's cell: a few lines that replace the ones before. It is plain text, which every
    front end shows and a saved notebook keeps."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._output = importlib.import_module("IPython.display").display(self._data(), raw=True, display_id=True)

    def refresh(self) -> None:
        self._output.update(self._data(), raw=True)

    def stop(self) -> None:
        """No-op: the last picture stays in the cell."""

    def _data(self) -> dict[str, str]:
        return {"text/plain": "\n".join(few_lines(self._picture))}


class _Drawing:
    """Hands the picture to rich. Spans become segments directly; rich's layout would cost most of the time."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        lines: list[Line] = frame(self._picture, width=options.max_width, height=max(console.size.height - 1, 1))
        for line in lines:
            segments = [
                Segment(text.translate(ASCII) if options.ascii_only else text, console.get_style(style) if style else None)
                for text, style in line
            ]
            yield from Segment.adjust_line_length(segments, options.max_width, pad=False)
            yield Segment.line()
