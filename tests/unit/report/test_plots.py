import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from runnel.core.errors import DataError
from runnel.report.plots import Series, curve_svg, decimate, line_chart, nice_ticks, smoothed

SVG = "{http://www.w3.org/2000/svg}"


def paths(svg: str, kind: str) -> list[str]:
    return [p.get("d") or "" for p in ET.fromstring(svg).iter(f"{SVG}path") if kind in (p.get("class") or "").split()]


def points(d: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", d)]


def test_smoothing_by_hand():
    # span 3: each new value weighs one half; the first mean is the first value (no bias towards zero).
    # then (0.25 * 2 + 0.5 * 4) / 0.75 and (0.125 * 2 + 0.25 * 4 + 0.5 * 8) / 0.875
    assert smoothed([2.0, 4.0, 8.0], span=3).tolist() == pytest.approx([2.0, 2.5 / 0.75, 5.25 / 0.875])
    with_gap = smoothed([2.0, math.nan, 4.0], span=3)
    assert math.isnan(with_gap[1])
    assert with_gap[2] == pytest.approx(2.5 / 0.75)


def test_decimation_keeps_spikes_and_ends():
    y = np.zeros(100_000)
    y[54_321], y[77_777] = 9.0, -9.0
    kept = decimate(y, 600)
    assert len(kept) <= 600
    assert {0, 54_321, 77_777, 99_999} <= set(kept.tolist())
    assert decimate(np.zeros(5)).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3.7, 12.2), (1e-6, 3e-6), (0, 204_800), (475, 500)])
def test_ticks_are_inside_and_evenly_spaced(low, high):
    ticks = nice_ticks(low, high)
    assert 3 <= len(ticks) <= 9
    assert min(ticks) >= low - 1e-12
    assert max(ticks) <= high + 1e-12
    gaps = np.diff(ticks)
    assert np.allclose(gaps, gaps[0])


def test_a_line_maps_data_to_pixels_in_order():
    (d,) = paths(line_chart([Series("a", [0, 1, 2], [0.0, 1.0, 0.5])]), "line")
    (x0, y0), (x1, y1), (x2, y2) = points(d)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert y1 < y2 < y0
    assert y2 == pytest.approx((y0 + y1) / 2, abs=0.11)


def test_a_gap_lifts_the_pen():
    (d,) = paths(line_chart([Series("a", [0, 1, 2, 3], [1.0, math.nan, 2.0, 3.0])]), "line")
    assert d.count("M") == 2
    assert len(points(d)) == 3


def test_raw_smooth_band_and_legend():
    x = list(range(50))
    noisy = Series("noisy", x, [float(i % 7) for i in x], smooth=True)
    banded = Series("banded", x, [3.0] * 50, low=[2.0] * 50, high=[4.0] * 50, marks=True)
    svg = line_chart([noisy, banded], title="T")
    assert len(paths(svg, "raw")) == 1
    assert len(paths(svg, "band")) == 1
    assert len(paths(svg, "line")) == 2 + 2, "two lines and two legend keys"
    texts = [t.text for t in ET.fromstring(svg).iter(f"{SVG}text")]
    assert {"T", "noisy", "banded"} <= set(texts)
    assert len(list(ET.fromstring(svg).iter(f"{SVG}circle"))) == 50


def test_a_long_legend_takes_more_lines():
    svg = line_chart([Series(f"a rather long name {i}", [0, 1], [0, i]) for i in range(6)], width=300)
    keys = [t for t in ET.fromstring(svg).iter(f"{SVG}text") if (t.text or "").startswith("a rather")]
    assert len({t.get("y") for t in keys}) > 2
    assert all(float(t.get("x") or 0) + 6 * len(t.text or "") < 300 for t in keys)


def test_hover_titles_hold_the_values():
    svg = line_chart([Series("a", [0, 10], [1.0, 5.0]), Series("b", [0, 10], [2.0, 6.0])], x_label="steps")
    titles = [t.text or "" for t in ET.fromstring(svg).iter(f"{SVG}title")]
    assert titles[0] == "0 steps\na: 1\nb: 2"
    assert titles[-1].endswith("a: 5\nb: 6")


def test_long_series_stay_small():
    y = np.sin(np.arange(200_000) / 1000.0)
    svg = line_chart([Series("a", np.arange(200_000), y, smooth=True, low=y - 1, high=y + 1)])
    assert max(len(points(d)) for d in paths(svg, "raw") + paths(svg, "line")) <= 600
    assert len(svg) < 60_000


@pytest.mark.parametrize("y", [[], [math.nan, math.nan], [0.0, 0.0], [5.0, 5.0], [math.inf, 1.0], [1e300, -1e300]])
def test_odd_data_still_gives_a_chart(y):
    svg = line_chart([Series("a", list(range(len(y))), y, smooth=True)])
    assert "nan" not in svg
    assert "inf" not in svg
    ET.fromstring(svg)


def test_text_is_escaped():
    svg = line_chart([Series("<b>&", [0, 1], [0, 1]), Series("x", [0, 1], [0, 1])], title='"><script>', x_label="<i>")
    root = ET.fromstring(svg)
    assert {child.tag for child in root.iter()}.isdisjoint({f"{SVG}script", f"{SVG}b", f"{SVG}i"})


def test_a_file_stands_alone_in_light_and_dark(tmp_path):
    path = curve_svg([Series("a", [0, 1], [0, 1])], tmp_path / "curve.svg", title="Return")
    text = path.read_text()
    assert ET.fromstring(text).tag == f"{SVG}svg"
    assert "prefers-color-scheme:dark" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_lengths_must_agree():
    with pytest.raises(DataError, match="'a'"):
        Series("a", [0, 1], [0])


def test_ticks_that_lie_close_have_labels_that_differ():
    chart = line_chart([Series("a", [0, 1, 2], [0.999995, 1.0, 1.000005])])
    found = re.findall(r'text-anchor="end">([^<]+)</text>', chart)
    assert len(found) > 2
    assert len(set(found)) == len(found)


def test_a_wide_band_does_not_stretch_the_axis_and_is_cut_to_it():
    """Two seeds of a task whose return is never negative and at most 500: their t-interval is thirteen times as wide."""
    chart = line_chart([Series("a", [0, 1], [400.0, 480.0], low=[-900.0, -900.0], high=[1900.0, 1900.0])])
    found = [float(label) for label in re.findall(r'text-anchor="end">([^<]+)</text>', chart)]
    assert 390 < min(found) <= max(found) < 500
    heights = [float(y) for y in re.findall(r"[ML][\d.]+ (-?[\d.]+)", re.search(r'class="band[^>]* d="([^"]+)"', chart)[1])]
    assert all(0 <= y <= 260 for y in heights)


def test_names_of_a_legend_are_cut_in_the_middle():
    names = [f"ppo CartPole-v1 with a very long name and {'x' * 80} lr {lr}" for lr in (0.1, 0.2)]
    chart = line_chart([Series(name, [0, 1], [1.0, 2.0]) for name in names])
    assert "lr 0.1</text>" in chart
    assert "lr 0.2</text>" in chart
