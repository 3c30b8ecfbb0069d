"""The page of a league: a heat map whose numbers can be read in both themes, in each seat, and the lineage of its members."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from test_board import CHROMIUM, FLAGS, serving

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (make browser)")
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (color) => {
    canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    const shares = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v / 255);
    const linear = shares.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  return [...document.querySelectorAll("#payoffs td.heat:not(.none)")].map((cell) => {
    const style = getComputedStyle(cell), pair = [light(style.color), light(style.backgroundColor)].sort((a, b) => b - a);
    return { text: cell.textContent, background: style.backgroundColor, contrast: (pair[0] + 0.05) / (pair[1] + 0.05) };
  });
}"""


def write(root: Path) -> None:
    """A run of self-play that nobody trained: main wins every game against its first version, and none against the newest."""
    folder = root / "league"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"recipe": "selfplay", "subject": "Toy", "seed": 1}))
    (folder / "config.json").write_text("{}")
    (folder / "metrics.jsonl").write_text(json.dumps({"kind": "update", "version": 1, "steps": 1, "metrics": {}}) + "\n")
    main = {"name": "main", "role": "main", "live": True}
    first, gone, last = (
        {"name": f"main@{v}", "role": "main", "live": False, "version": v, "parent": "main", "checksum": "a"}
        for v in (0, 20, 60)
    )
    lines = []
    for version, members in ((1, [main, first]), (20, [main, first, gone]), (60, [main, first, last])):
        results = {"main@0": [50, 0, 0], "main@20": [5, 0, 5], "main@60": [0, 0, 50]}
        there = {m["name"]: results[m["name"]] for m in members[1:]}
        lines.append(
            {
                "version": version,
                "members": members,
                "games": {"main": {name: [*x, sum(x)] for name, x in there.items()}},
                "by_seat": {"main": {name: [[x[0], 0, 0], [0, 0, x[2]]] for name, x in there.items()}},
                "elo": {m["name"]: 1000.0 + 5 * version * (m is not first) for m in members},
                "picked": {m["name"]: 1 / len(members) for m in members},
            }
        )
    (folder / "league.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines) + "{half")


def test_a_league_is_shown_with_numbers_that_can_be_read(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    write(root)
    with serving(root) as board, playwright.sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"{board}#/run/league/curves")
        page.locator("nav.tabs a", has_text="League").click()
        expect(page.locator("#payoffs tbody tr")).to_have_count(1)
        expect(page.locator("#payoffs td.heat:not(.none)")).to_have_text(["1.00", "0.00"])
        for _ in ("light", "dark"):
            cells = page.evaluate(CONTRAST)
            assert all(cell["contrast"] >= 4.5 for cell in cells), cells
            assert len({cell["background"] for cell in cells}) == 2
            page.locator("#theme").click()
        expect(page.locator(".notice")).to_contain_text("line 4 is not readable")
        page.locator(".choice button", has_text="seat 1").click()
        expect(page.locator("#payoffs td.heat:not(.none)")).to_have_text(["0.00"])
        expect(page.locator("#lineage .copy")).to_have_count(3)
        expect(page.locator("#lineage .copy.gone title")).to_have_text("main@20 from main: 1,100, dropped at 60")
        expect(page.locator("#lineage polyline.live")).to_have_count(1)
        expect(page.locator("#members tbody tr")).to_have_count(4)
        expect(page.locator("#members tbody tr", has_text=re.compile("^main@0"))).to_contain_text("1,000 (held)")
        browser.close()
        assert wrong == []
