"""The view of a running run: a picture that redraws itself in a terminal, a line every few seconds in a log.

All work is done on the caller's thread, and only when a redraw is due: at hundreds of updates a second, each pays a clock
read and a few assignments.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any

from runnel.core.clock import Clock, WallClock
from runnel.track.folder import Row
from runnel.track.frame import Line, Picture, clean, describe_eval, frame, one_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

REDRAW_S = 0.125
PLAIN_S = 5.0
SHARE = 0.01
"""The view may cost this share of the run's time: a slow terminal is drawn to less often."""
ASCII = str.maketrans("━▁▂▃▄▅▆▇█▏▎▍▌▋▊▉●–∞", "=.,:;-=+#|||||||*-8")


class LiveView:
    """Shows rows as they come. `total` is in `unit` (steps, tokens, updates); `close` leaves the last picture on the screen."""

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
        self._past: deque[tuple[float, float]] = deque(maxlen=120)
        self.picture = Picture(title=title, total=total, unit=unit)
        self.animated = self._console.is_terminal and not self._console.is_dumb_terminal and not os.environ.get("CI")
        self._live: Any = self._start_live() if self.animated else None
        self._closed = False

    def row(self, row: Row) -> None:
        """Take a row; redraw if it is time. An evaluation and the end are shown at once; a log shows messages at once too."""
        self.picture.take(row)
        if self.animated and row.get("kind") in ("eval", "end"):
            self._due = self._clock.now()
        elif not self.animated:
            self._say(row)
        self._draw_if_due()

    def tick(self, text: str = "") -> None:
        """Say what is happening between two rows, such as `evaluating 37/100`."""
        self.picture.note = text
        self._draw_if_due()

    def close(self) -> None:
        """Draw once more and give the terminal back."""
        if self._closed:
            return
        self._closed = True
        if self.animated:
            self._draw(self._clock.now())
            self._live.stop()
        elif self.picture.update or self.picture.status:
            self._measure(self._clock.now())
            self._print(one_line(self.picture))

    def _draw_if_due(self) -> None:
        now = self._clock.now()
        if now < self._due or self._closed:
            return
        if self.animated:
            self._draw(now)
            cost = self._clock.now() - now
            self._due = now + max(REDRAW_S, cost / SHARE)
        elif self.picture.update:
            self._measure(now)
            self._print(one_line(self.picture))
            self._due = now + PLAIN_S

    def _draw(self, now: float) -> None:
        self._measure(now)
        self._live.refresh()

    def _measure(self, now: float) -> None:
        """Time so far, and time left at the pace of the last redraws."""
        self.picture.elapsed_s = now - self._start
        if not self.picture.update:
            return
        progress = self.picture.progress
        if not self._past or progress > self._past[-1][1]:
            self._past.append((now, progress))
        then, before = self._past[0]
        pace = (progress - before) / (now - then) if now > then else 0.0
        self.picture.left_s = (1.0 - progress) / pace if pace > 0 else None

    def _start_live(self) -> Any:
        from rich.live import Live

        live = Live(_Drawing(self.picture), console=self._console, auto_refresh=False, vertical_overflow="crop")
        live.start()
        return live

    def _say(self, row: Row) -> None:
        if row.get("kind") == "eval":
            at = row.get("steps") or row.get("version") or 0
            self._print(f"{self.picture.title}  evaluation at {at:,}: {describe_eval(row)}")
        elif row.get("kind") == "event":
            self._print(f"{self.picture.title}  {row.get('level', 'info')}: {clean(str(row.get('text', '')))}")

    def _print(self, text: str) -> None:
        shown = text.translate(ASCII) if self._console.options.ascii_only else text
        self._console.print(shown, markup=False, highlight=False, soft_wrap=True)


class _Drawing:
    """The picture as rich draws it: spans become segments directly, without layout."""

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
