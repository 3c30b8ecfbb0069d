"""Draws the live view for the terminal: pure functions from the state of a run to lines of styled text.

Lines are made by hand and not with rich's tables. So a frame costs a fraction of a millisecond, and each column can be placed.
"""

from __future__ import annotations

import textwrap
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from runnel.core.user_code import brief
from runnel.track.collapse import open_collapses
from runnel.track.folder import Row
from runnel.track.numbers import bar, seconds, short, sparkline

Span = tuple[str, str]
"""Text and a rich style."""
Line = list[Span]

RETURN_KEYS = ("return", "reward")
"""Metrics that say how well the agent does. The first one present is shown first."""
OF_THE_DATA = ("staleness/", "mismatch/", "ess", "version_span", "chat/")
"""Prefixes of metrics that are shown beside the streams, and not among the learning metrics."""
LABEL = 14
"""Columns of a label at the left."""
ROWS = 7
"""Most lines of the two columns in the middle."""
DIM, ACCENT = "bright_black", "cyan"
MOST_LINES = 5
"""Most lines that a message about a collapse may take. Other messages take one."""
LEVELS = {"info": "", "warning": "yellow", "error": "bold red"}
CONTROL = dict.fromkeys([*range(32), *range(127, 160)], " ")

Numbers = Mapping[str, float | None]
"""Metrics as a row has them; null stands for a number that was not finite."""


@dataclass
class Picture:
    """The state of the view: the last row of each kind and short histories. Its size does not grow."""

    title: str
    total: float
    unit: str
    update: Row = field(default_factory=dict)
    evaluation: Row = field(default_factory=dict)
    status: str = ""
    note: str = ""
    elapsed_s: float = 0.0
    left_s: float | None = None
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=400))
    best: float | None = None
    stages: dict[str, float] = field(default_factory=dict)
    mismatch: Row = field(default_factory=dict)
    """The last update that compares engine and learner. Few updates of an asynchronous run do."""
    messages: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=3))
    collapses: list[Row] = field(default_factory=list)
    """The events of collapses that are not over. Their messages stay on the screen."""

    def add(self, row: Row) -> None:
        """Update the state with a row. This runs for every update, so it is cheap."""
        kind = row.get("kind")
        if kind == "update":
            self.update = row
            self.left_s = row.get("time", {}).get("left_s")
            self.mismatch = row if "mismatch/kl" in row.get("metrics", {}) else self.mismatch
            value = leading(row.get("metrics", {}))[1]
            if value is not None and value == value:  # not NaN
                self.returns.append(value)
                self.best = value if self.best is None else max(self.best, value)
            for name, spent in row.get("time", {}).get("stages", {}).items():
                self.stages[name] = 0.98 * self.stages.get(name, 0.0) + spent  # the last 50 updates or so weigh most
        elif kind == "eval":
            self.evaluation, self.note = row, ""
        elif kind == "event" and row.get("what") == "collapse":
            self.collapses = open_collapses([*self.collapses, row])
        elif kind == "event":
            self.messages.append((str(row.get("level", "info")), brief(str(row.get("text", "")))))
        elif kind == "end":
            self.status, self.note = str(row.get("status", "")), ""

    @property
    def count(self) -> float:
        """How far the run is, in `unit`."""
        return float(self.update.get({"updates": "version"}.get(self.unit, self.unit)) or 0)

    @property
    def progress(self) -> float:
        """How far the run is, from 0 to 1."""
        known = self.update.get("progress")
        share = float(known) if known is not None else self.count / max(self.total, 1)
        return min(max(share, 0.0), 1.0)


def leading(metrics: Numbers) -> tuple[str, float | None]:
    """Name and value of the metric that says how well the agent does."""
    for name in RETURN_KEYS:
        if name in metrics:
            return name, metrics[name]
    return RETURN_KEYS[0], None


def clean(text: str) -> str:
    """The text in one line, without control characters (a message must not move the cursor) and without lone surrogates."""
    return text.translate(CONTROL).encode(errors="replace").decode()


def frame(picture: Picture, *, width: int, height: int) -> list[Line]:
    """The whole picture, at most `height` lines of at most `width` columns."""
    lines = [*_head(picture, width), [], *_score(picture, width), *_middle(picture, width), *_data(picture)]
    for row in picture.collapses:
        parts = textwrap.wrap(clean(str(row.get("text", ""))), max(width - 4, 8), max_lines=MOST_LINES, placeholder=" ...")
        lines += [[(" ● " if i == 0 else "   ", "bold red"), (part, "bold red")] for i, part in enumerate(parts)]
    for level, text in picture.messages:
        lines.append([(" ● ", LEVELS.get(level, "") or DIM), (clean(text)[: width - 4], LEVELS.get(level, ""))])
    return [_cut(line, width) for line in lines[:height]]


def one_line(picture: Picture) -> str:
    """The progress as one line of plain text, for a log."""
    metrics = picture.update.get("metrics", {})
    name, value = leading(metrics)
    parts = [
        f"{picture.title}  {picture.progress:4.0%}  {picture.count:,.0f} of {picture.total:,.0f} {picture.unit}",
        f"{short(rate(picture))} {rate_unit(picture)}",
        f"{name} {short(value)}",
        *(f"{key} {short(metrics[key])}" for key in ("kl", "entropy") if key in metrics),
        picture.status or f"{seconds(picture.left_s)} left",
    ]
    return "  ".join(parts) + (f"  ({clean(picture.note)})" if picture.note else "")


def few_lines(picture: Picture) -> list[str]:
    """The picture in a few plain lines, as a notebook shows it."""
    lines = [one_line(picture)]
    if picture.evaluation:
        row = picture.evaluation
        lines.append(f"evaluation at {row.get('steps') or row.get('version') or 0:,}: {describe_eval(row)}")
    lines += [f"warning: {clean(str(row.get('text', '')))}" for row in picture.collapses]
    return lines + [f"{level}: {clean(text)}" for level, text in picture.messages if level != "info"]


def describe_eval(row: Row) -> str:
    """An evaluation in one line.

    >>> describe_eval({"mean": 487.26, "low": 480, "high": 494.5, "num": 100})
    '487.3  95% interval 480 to 494.5  (100 episodes)'
    """
    text = short(row.get("mean"))
    if row.get("low") is not None and row.get("high") is not None:
        text += f"  95% interval {short(row['low'])} to {short(row['high'])}"
    lost = "".join(f", {row[name]:,} {name}" for name in ("cut", "crashed") if row.get(name))
    return text + (f"  ({row['num']:,} episodes{lost})" if row.get("num") else "")


def rate_unit(picture: Picture) -> str:
    """The unit of the run's speed."""
    return "tokens/s" if picture.unit == "tokens" or not picture.update.get("steps") else "steps/s"


def rate(picture: Picture) -> float | None:
    """The run's speed, in `rate_unit`."""
    key = "tokens_per_s" if rate_unit(picture) == "tokens/s" else "steps_per_s"
    value = picture.update.get("time", {}).get(key)
    return None if value is None else float(value)


def _head(p: Picture, width: int) -> list[Line]:
    version = f"version {p.update.get('version', 0):,} "
    title = clean(p.title)[: max(width - len(version) - 10, 8)]
    first: Line = [
        (" runnel ", f"bold {ACCENT}"),
        (title, "bold"),
        (" " * (width - len(version) - len(title) - 8), ""),
        (version, DIM),
    ]
    right = f" {p.progress:4.0%}   {p.status or seconds(p.left_s) + ' left'} "
    columns = max(width - len(right) - 1, 4)
    full = round(columns * p.progress)
    progress: Line = [(" ", ""), ("━" * full, ACCENT), ("━" * (columns - full), DIM), (right, "bold")]
    counts: Line = [
        (f" {p.count:,.0f}", "bold"),
        (f" of {p.total:,.0f} {p.unit}", DIM),
        (f"   {short(rate(p))}", "bold"),
        (f" {rate_unit(p)}", DIM),
        (f"   {seconds(p.elapsed_s)}", "bold"),
        (" so far", DIM),
    ]
    if p.note:
        counts.append((f"   {clean(p.note)}", "yellow"))
    return [first, progress, counts]


def _score(p: Picture, width: int) -> list[Line]:
    name, value = leading(p.update.get("metrics", {}))
    line: Line = [_label(name), (f"{short(value):>8}  ", "bold"), (sparkline(p.returns, max(width - 42, 8)), ACCENT)]
    if p.best is not None:
        line.append((f"  best {short(p.best)}", DIM))
    lines = [line]
    if p.evaluation:
        at = p.evaluation.get("steps") or p.evaluation.get("version") or 0
        main, _, rest = describe_eval(p.evaluation).partition("  ")
        lines.append([_label("evaluation"), (f"{main:>8}  ", "bold green"), (rest, ""), (f"  at {at:,}", DIM)])
    return lines


def _middle(p: Picture, width: int) -> list[Line]:
    """Two columns: metrics of learning, and the share of time of each stage."""
    half = width // 2 - 2
    left = [[("learning", DIM)], *_learning(p.update.get("metrics", {}), half)]
    right = [[("where the time goes", DIM)], *_stages(p, width - half - 5)]
    lines: list[Line] = [[]]
    for long, b in zip_longest(left, right, fillvalue=Line()):
        a = _cut(long, half)
        gap = half - sum(len(text) for text, _ in a) + 3
        lines.append([(" ", ""), *a, (" " * gap, ""), *b])
    return lines


def _learning(metrics: Numbers, width: int) -> list[Line]:
    shown = {k: v for k, v in metrics.items() if k not in RETURN_KEYS and not k.startswith(OF_THE_DATA)}
    order = sorted(shown, key=lambda k: (not k.startswith("loss"), k not in ("kl", "entropy"), k))
    lines: list[Line] = []
    for key in order[:ROWS]:
        name = clean(key)[: width - 11]
        lines.append([(name, ""), (f"{short(shown[key]):>{max(width - len(name), 1)}}", "bold")])
    return lines


def _stages(p: Picture, width: int) -> list[Line]:
    spent: dict[str, float] = {}
    for key, value in p.stages.items():
        spent[_kind(key)] = spent.get(_kind(key), 0.0) + value
    total = sum(spent.values()) or 1.0
    order = sorted(spent, key=lambda k: -spent[k])
    name_width = min(max((len(k) for k in order[:ROWS]), default=8), width - 14)
    columns = width - name_width - 7
    lines: list[Line] = []
    for key in order[:ROWS]:
        share = spent[key] / total
        drawn = bar(share, columns)
        pad = " " * (columns - len(drawn))
        lines.append([(f"{clean(key)[:name_width]:<{name_width}} ", ""), (drawn, ACCENT), (f"{pad} {share:4.0%}", "bold")])
    return lines


def _idle(p: Picture) -> str:
    """The mean share of time that workers wait, by kind of worker."""
    shares: dict[str, list[float]] = {}
    for worker, share in p.update.get("time", {}).get("idle", {}).items():
        shares.setdefault(_kind(worker), []).append(share)
    return "   ".join(f"{clean(kind)} {sum(values) / len(values):.0%}" for kind, values in sorted(shares.items()))


def _kind(name: str) -> str:
    """`actor-3/sample` becomes `actor/sample`: workers of one kind share a line."""
    worker, slash, stage = name.partition("/")
    kind, dash, number = worker.rpartition("-")
    return (kind if dash and number.isdigit() else worker) + slash + stage


def _data(p: Picture) -> list[Line]:
    metrics = p.update.get("metrics", {})
    lines: list[Line] = [[]]
    if "staleness/mean" in metrics or "staleness/max" in metrics:
        lines.append([_label("staleness"), *_staleness(metrics)])
    if "version_span" in metrics:
        lines.append([_label("samples"), (_samples(p), "bold")])
    if "mismatch/canary_kl" in metrics:
        kl, version = metrics["mismatch/canary_kl"], metrics["mismatch/canary_version"]
        lines.append([_label("canary"), (f"mismatch {short(kl)}", "bold"), (f"   checked at version {version:,.0f}", DIM)])
    if "chat/turns" in metrics:
        lines.append([_label("turns"), (_talks(p), "bold")])
    idle = _idle(p)
    if idle:
        lines.append([_label("idle"), (idle, "bold")])
    for stream, counts in p.update.get("streams", {}).items():
        rest = f" of {counts.get('dispatched', 0):,} consumed   {counts.get('in_flight', 0):,} in flight"
        rest += f" ({counts['queued']:,} in queue)" if counts.get("queued") else ""
        lines.append([_label(stream), (f"{counts.get('consumed', 0):,}", "bold"), (rest, DIM)])
        lost = _lost(counts)
        if lost:
            lines.append([_label(""), (lost, "yellow")])
    return lines


def _staleness(metrics: Numbers) -> Line:
    """The age of the training data in versions; if the learner reports it, also how much of it arose in flight and in the
    queue."""
    line: Line = [(f"mean {_age(metrics, 'mean')}   max {_age(metrics, 'max')}", "bold")]
    if "staleness/in_flight" not in metrics:
        return [*line, ("  versions", DIM)]
    for name, words in (("in_flight", "in flight"), ("in_queue", "in queue")):
        line += [(f"   {words} ", DIM), (_age(metrics, name), "bold"), (" max ", DIM), (_age(metrics, f"{name}_max"), "bold")]
    return line


def _age(metrics: Numbers, name: str) -> str:
    value = metrics.get(f"staleness/{name}")
    return short(None if value is None else round(value, 2))


def _samples(p: Picture) -> str:
    """The distance of a language model's samples from the learner's policy."""
    text = f"versions inside {short(p.update['metrics']['version_span'])}   ess {short(p.update['metrics'].get('ess'))}"
    if p.mismatch:
        at = "" if p.mismatch is p.update else f" at version {p.mismatch.get('version', 0):,}"
        text += f"   mismatch {short(p.mismatch['metrics']['mismatch/kl'])}{at}"
    return text


def _talks(p: Picture) -> str:
    """What conversations are like on average, and how much of their time passes outside of the engine."""
    metrics = p.update["metrics"]
    errors = sum(value or 0.0 for name, value in metrics.items() if name.startswith("chat/tool_errors/"))
    text = f"{short(metrics['chat/turns'])}   context {short(metrics.get('chat/context'))}"
    text += f"   tool calls {short(metrics.get('chat/tool_calls'))}, failed {short(errors)}"
    spent = p.update.get("time", {}).get("conversations", {})
    total = sum(spent.values())
    return text + (f"   environment {spent.get('env_s', 0.0) / total:.0%}" if total > 0 else "")


def _lost(counts: Row) -> str:
    """The number of rows that never reached an update, by reason."""
    reasons = [(kind, k, v) for kind in ("dropped", "cancelled") for k, v in sorted(counts.get(kind, {}).items())]
    return "   ".join(f"{kind} {clean(reason)} {number:,}" for kind, reason, number in reasons)


def _label(text: str) -> Span:
    return f" {clean(text)[: LABEL - 2]:<{LABEL - 1}}", DIM


def _cut(line: Line, width: int) -> Line:
    """The line, cut to `width` columns."""
    out: Line = []
    for text, style in line:
        room = width - sum(len(t) for t, _ in out)
        if room <= 0:
            break
        out.append((text[:room], style))
    return out
