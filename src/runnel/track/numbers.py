"""Formats numbers for people: in the live view, the plots and the report."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from runnel.eval.aggregates import over_seeds
from runnel.eval.statistics import few_seeds

BLOCKS = "▁▂▃▄▅▆▇█"
EIGHTHS = "▏▎▍▌▋▊▉"


def short(value: float | None) -> str:
    """A number with four significant digits.

    >>> short(487.26), short(-0.01234), short(12345678), short(0.0000123), short(3), short(0.95), short(None)
    ('487.3', '-0.01234', '12.35M', '1.23e-05', '3', '0.95', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if abs(value) >= 1e6:
        return compact(value)
    if value == int(value):
        return f"{int(value):,}"
    if abs(value) < 1e-3:
        return f"{value:.2e}"
    digits = f"{value:,.{max(0, 3 - math.floor(math.log10(abs(value))))}f}"
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def seeds_words(scores: Sequence[float]) -> tuple[str, str]:
    """The mean of scores (one for each seed), and a remark about its interval. The terminal, reports and studies all use this.

    >>> seeds_words([481.0, 482.0, 483.0])
    ('482', 'mean over 3 seeds, 95 % interval 479.5 to 484.5 (fewer than 5: a rough guess)')
    >>> seeds_words([481.0])
    ('481', 'one seed, so no interval')
    """
    found, num = over_seeds(scores), len(scores)
    if num == 1:
        return short(found.value), "one seed, so no interval"
    caution = f" ({words})" if (words := few_seeds(num)) else ""
    return short(found.value), f"mean over {num} seeds, 95 % interval {short(found.low)} to {short(found.high)}{caution}"


def compact(value: float, digits: int = 4) -> str:
    """A number for an axis.

    >>> compact(250000), compact(1500000), compact(0.25), compact(0), compact(-2000), compact(0.00002)
    ('250k', '1.5M', '0.25', '0', '-2k', '2e-05')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.{digits}g}{letter}"
    return f"{value:.{digits}g}"


def seconds(value: float | None) -> str:
    """A span of time.

    >>> seconds(7.4), seconds(83), seconds(3723), seconds(200000), seconds(None)
    ('7 s', '1:23', '1:02:03', '2 d 7 h', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    if whole < 86400:
        return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def labels(ticks: Sequence[float]) -> list[str]:
    """The labels of an axis, with enough digits to tell them apart.

    >>> labels([0.0, 250000.0, 500000.0]), labels([0.99998, 0.99999, 1.0, 1.00001])
    (['0', '250k', '500k'], ['0.99998', '0.99999', '1', '1.00001'])
    """
    for digits in range(4, 17):
        found = [compact(tick, digits) for tick in ticks]
        if len(set(found)) == len(set(ticks)):
            break
    return found if ticks else []


def middle(text: str, most: int) -> str:
    """At most `most` characters. The cut is in the middle: names that begin alike differ at their ends.

    >>> middle("ppo CartPole-v1 lr 0.001", 16), middle("short", 16)
    ('ppo Cart…r 0.001', 'short')
    """
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[: most - 1 - head]}…{text[len(text) - head :]}"


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as `width` small columns, each the mean of one of `width` equal ranges.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8), sparkline([0, 0, 7, 7], 2), sparkline([5, 5], 2)
    ('▁▂▃▄▅▆▇█', '▁█', '▄▄')
    """
    finite = [v for v in values if math.isfinite(v)]
    if not finite or width <= 0:
        return ""
    columns = min(width, len(finite))
    edges = [round(i * len(finite) / columns) for i in range(columns + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    if high == low:
        return "▄" * columns
    return "".join(BLOCKS[min(7, int(8 * (v - low) / (high - low)))] for v in means)


def bar(share: float, width: int) -> str:
    """A horizontal bar that fills `share` of `width`, exact to an eighth of a column.

    >>> bar(0.5, 4), bar(0.28125, 4), bar(2.0, 2)
    ('██', '█▏', '██')
    """
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    return "█" * (eighths // 8) + (EIGHTHS[eighths % 8 - 1] if eighths % 8 else "")
