"""Where the time of hide-and-seek goes: what counts as an operation, and that the parts make the whole."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.teams import hide_and_seek_costs as costs


def test_views_start_no_kernel() -> None:
    x = torch.ones(4, 6)
    with costs.Launches() as launched:
        y = x.view(6, 4).T[1:].unsqueeze(0)
        (y + 1.0).sum()
    assert launched.count == 2


def test_parts_make_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Milliseconds are made up, one for each part but 3 for a whole step; so are the rates that follow from them."""
    monkeypatch.setattr(costs, "_clock", lambda call, device, seconds: 1.0)
    real = costs.timed

    def timed(part, device, seconds):  # type: ignore[no-untyped-def]
        ms, launches = real(part, device, seconds)
        return (3.0 if "_stepped" in part.__code__.co_names else ms), launches

    monkeypatch.setattr(costs, "timed", timed)
    row = costs.measure(costs._sized(agents=4), 2, torch.device("cpu"), steps=2, seconds=0.0, compiled=False)
    assert row["ms"] == {"physics": 1, "sight": 1, "views": 1, "lidar": 1, "rules": 1, "policy": 1, "update": 0.5}
    assert (row["simulated_per_s"], row["observed_per_s"], row["trained_per_s"]) == (667, 400, round(2000 / 6.5))
    ops = row["ops"]
    assert ops["physics"] > 10 * ops["sight"] > 100
    assert ops["rules"] > 0


def test_figures_have_a_panel_for_each_question(tmp_path: Path) -> None:
    ms = dict.fromkeys(costs.PARTS, 1.0)
    rows = [{"by": by, "worlds": 4, "agents": 2, "things": 3, "ms": ms} for by in ("worlds", "agents", "things")]
    costs.draw(rows, tmp_path / "costs.svg")
    text = (tmp_path / "costs.svg").read_text()
    assert text.count('id="axes_') == 3
