"""What the board draws is so, in headless Chromium: scales, colours, zoom, names, phones. Over runs that were never trained."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from test_board import CHROMIUM, FLAGS, serving

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
expect.set_options(timeout=30_000)  # a page's own limit does not count for it, and a loaded machine is slow
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (make browser)")
DEMOS = {  # the graph of `runnel train reverse`
    "workers": [
        *({"name": name, "kind": "actor", "process": "main"} for name in ("demos-0", "actor-0")),
        *({"name": name, "kind": name, "process": "main"} for name in ("trainer", "evaluator")),
    ],
    "streams": [
        {"name": "rollouts", "kind": "samples", "from": ["actor-0"], "to": ["trainer"]},
        {"name": "demos", "kind": "samples", "from": ["demos-0"], "to": ["trainer"]},
        {"name": "answers", "kind": "samples", "from": ["actor-0"], "to": ["trainer"]},
        {"name": "versions", "kind": "params", "from": ["trainer"], "to": ["demos-0", "actor-0", "evaluator"]},
    ],
}
COUNTS = {"dispatched": 9, "consumed": 9, "dropped": {}, "cancelled": {}, "in_flight": 0, "queued": 0}


def make(root: Path, name: str, values: list[float], *, end: str = "finished", steps: int = 10, **given: Any) -> Path:
    """A run with these returns; `info`, `config`, `events`."""
    folder = root / name
    folder.mkdir(parents=True)
    seed = given.get("seed", 1)
    info = {"recipe": "ppo", "subject": "Toy", "seed": seed, "created": f"2030-01-{len(list(root.iterdir())):02}T00:00:00"}
    (folder / "run.json").write_text(json.dumps(info | given.get("info", {})))
    (folder / "config.json").write_text(json.dumps({"seed": seed, "num_actors": 1} | given.get("config", {})))
    rows: list[dict[str, Any]] = []
    for i, value in enumerate(values, start=1):
        at = {"version": i, "steps": steps * i, "tokens": 0 if steps else 7 * i, "progress": i / len(values)}
        time = {
            "wall_s": float(i),
            "stages": {"trainer/update": 0.5},
            "idle": {"trainer": 0.5},
            "system": {"cores": 1, "num_cores": 2},
        }
        metrics = {"return": value, "loss/total": 1.0 + 1e-6 * i, "loss/none": -1.0}
        rows.append(
            {"kind": "update", **at, "metrics": metrics, "streams": {"rollouts": COUNTS, "demos": COUNTS}, "time": time}
        )
    rows += given.get("events", [])
    rows += [{"kind": "end", "status": end, "interrupted": False}] if end else []
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as found:
        browser = found.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    root = tmp_path_factory.mktemp("shown") / "runs"
    for number in range(12):  # trials of a study, which the board hides
        make(root, f"trial{number}", [1.0], config={"tags": ["tuning"], "ppo": {"lr": number}})
    for seed in (1, 2):
        make(root, f"pair-{seed}", [400.0 * seed / 2, 480.0 * seed / 2, 400.0], seed=seed, config={"ppo": {"lr": 0.1}})
    make(root, "pair-1-again", [390.0, 400.0, 390.0], seed=1, config={"ppo": {"lr": 0.1}})
    make(root, "short", [10.0, 20.0], config={"ppo": {"lr": 0.2}})
    graph = {"dataflow": DEMOS, "recipe": "reverse", "subject": "reverse"}
    words = make(root, "words", [0.1, 0.9], steps=0, info=graph)
    long = "W" * 400
    row = {
        "completion": long,
        "reward": 1.0,
        "tokens": [long, " and ", long],
        "rewards": {f"a_long_name_{long}": 1.0},
        "advantage": 0.5,
    }
    (words / "groups.jsonl").write_text(json.dumps({"version": 1, "prompt": long, "source": long, "rows": [row, row]}) + "\n")
    error = {"kind": "event", "level": "error", "text": "ValueError: the reward is nan"}
    make(root, "broken", [1.0], end="failed", events=[error])
    trials = [
        {"number": i, "state": "complete", "value": v, "params": {"net": net}}
        for i, (v, net) in enumerate([(9.0, "large"), (5.0, "small")])
    ]
    space = {"net": {"kind": "choice", "choices": ["small", "medium", "large"]}}
    test = {"number": 0, "seeds": [1, 2, 3], "values": [1.0, 2.0, 3.0], "mean": 2.0, "low": -0.5, "high": 4.5}
    study = {
        "kind": "study",
        "name": "tuned",
        "direction": "maximize",
        "metric": "eval",
        "params": space,
        "trials": trials,
        "best": 0,
        "test": test,
    }
    (root / "tuned").mkdir()
    (root / "tuned" / "study.json").write_text(json.dumps(study))
    with serving(root) as address:
        yield address


@pytest.fixture
def page(chromium):
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    found = context.new_page()
    found.set_default_timeout(15_000)
    wrong: list[str] = []
    found.on("pageerror", lambda error: wrong.append(str(error)))
    yield found
    context.close()
    assert wrong == []


def figure(page, title):
    found = page.locator("figure", has=page.locator("figcaption b", has_text=re.compile(f"^{title}$")))
    expect(found).to_have_attribute("data-low", re.compile("."))
    return found


def test_lines_have_the_scale_two_seeds_are_lines_and_a_seed_counts_once(page, board):
    page.goto(board)
    page.locator("#search").fill("pair")
    score = figure(page, "return")
    expect(score).to_have_attribute("data-lines", "1")
    assert float(score.get_attribute("data-low")) > 100, "a t-interval of two seeds would reach far below 0"
    assert float(score.get_attribute("data-high")) < 600
    expect(page.locator(".legend")).to_contain_text("(2 seeds, 1 older of the same)")
    expect(page.locator(".legend")).to_contain_text("95 % interval of the mean over seeds (Student's t)")


def test_groups_that_are_shown_have_colours_of_their_own(page, board):
    page.goto(board)
    expect(page.locator(".legend .swatch")).to_have_count(4)
    # read in one go, inside the page: while runs arrive the legend is drawn anew, and an element that left has no colour
    read = "all => all.map(e => [getComputedStyle(e).backgroundColor, e.style.background])"
    found = page.evaluate(f"() => ({read})([...document.querySelectorAll('.legend .swatch')])")
    assert len({color for color, _ in found}) == len(found) == 4
    assert found[0][1] == "var(--c0)", "twelve hidden trials take no colour"


def test_lines_follow_the_theme(page, board):
    page.goto(board)
    score = figure(page, "return")
    light = score.get_attribute("data-ink")
    page.keyboard.press("t")
    expect(score).not_to_have_attribute("data-ink", light)


def test_a_zoom_reaches_all_charts_by_value_and_whole_resets_them(page, board):
    page.goto(board)
    first, second = figure(page, "return"), figure(page, "loss/total")
    asked: list[tuple[str, Any]] = []
    page.on(
        "request", lambda r: "/api/curves" in r.url and asked.append((r.post_data_json["metrics"][0], r.post_data_json["span"]))
    )
    first.locator(".u-over").hover()  # waits until it is drawn and stands still
    box = first.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 60, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 220, box["y"] + 40, steps=4)
    page.mouse.up()
    for chart in (first, second):
        expect(chart.get_by_role("button", name="whole")).to_be_visible()
    page.wait_for_function("() => true")
    spans = {json.dumps(span) for name, span in asked if name in ("return", "loss/total") and span}
    assert len(spans) == 1, "one span, in values"
    second.get_by_role("button", name="whole").click()
    for chart in (first, second):
        expect(chart.get_by_role("button", name="whole")).to_be_hidden()


def test_ticks_can_be_told_apart_and_a_logarithm_of_nothing_is_drawn(page, board):
    page.goto(board)
    figure(page, "return")
    page.locator("#log").check()
    expect(figure(page, "loss/none")).to_have_attribute("data-low", "0.1")
    found = page.evaluate(
        "import('/static/js/dom.js').then(m => [m.labels([0.999998, 0.999999, 1, 1.000001]), m.labels([0, 500, 1000])])"
    )
    assert found == [["0.999998", "0.999999", "1", "1.000001"], ["0", "500", "1k"]]


def test_names_of_streams_do_not_lie_on_each_other(page, board):
    page.goto(f"{board}#/run/words/streams")
    expect(page.locator(".dataflow .node")).to_have_count(4)
    expect(page.locator(".dataflow")).to_contain_text("demos-0")
    lies = """all => { const r = all.map(e => e.getBoundingClientRect()); const on = [];
      r.forEach((a, i) => r.forEach((b, j) => { if (i < j && a.left < b.right && b.left < a.right
        && a.top < b.bottom && b.top < a.bottom) on.push(all[i].textContent + ' on ' + all[j].textContent); })); return on; }"""
    assert page.locator(".dataflow .edge text").evaluate_all(lies) == []
    told = page.locator(".dataflow .edge text").all_text_contents()
    assert sum("rollouts" in text and "answers" in text for text in told) == 1, (
        "two streams of one arrow are lines of one label"
    )
    expect(page.locator("main")).to_contain_text("When it was last looked at:")
    expect(page.locator("main")).not_to_contain_text("Now:")


def test_a_failed_run_says_why_first(page, board):
    page.goto(f"{board}#/run/broken")
    expect(page.locator(".notice.bad").first).to_have_text("It failed: ValueError: the reward is nan")


def test_a_study_shows_its_test_score_and_choices_in_the_order_of_the_space(page, board):
    page.goto(f"{board}#/study/tuned")
    expect(page.locator("#winner")).to_contain_text("selected 9 → test 2 (3 seeds, 95 % interval -0.5 to 4.5)")
    ends = page.locator("#parallel .axis").first.locator("text").all_text_contents()
    assert ends == ["net", "small", "to large"]
    at = page.locator("#parallel polyline").evaluate_all(
        "all => all.map(e => Number(e.getAttribute('points').split(/[ ,]/)[1]))"
    )
    assert at[0] > at[1], "small is at the foot, large at the top; the best is drawn last"


def test_what_a_run_counts_is_named_and_small_curves_share_a_scale(page, board):
    page.goto(board)
    expect(page.locator('tr[data-run="words"] td.steps')).to_have_text("14 tokens")
    expect(page.locator('tr[data-run="short"] td.steps')).to_have_text("20 steps")
    heights = "e => e.getAttribute('points').split(' ').map(p => Number(p.split(',')[1]))"
    small = page.locator('tr[data-run="short"] .spark polyline').evaluate(heights)
    assert max(small) - min(small) < 2, "10 to 20 beside runs that reach 480"


def test_on_a_phone_nothing_is_cut(chromium, board):
    context = chromium.new_context(viewport={"width": 390, "height": 800})
    phone = context.new_page()
    outside = """() => [...document.querySelectorAll('main *')].filter(e => !e.closest('svg') && e.getBoundingClientRect().width
      && e.getBoundingClientRect().right > 391).map(e => e.tagName + '.' + e.className)"""
    for part, ready in (
        ("", "#runs tr"),
        ("#/run/words/streams", ".accounts td"),
        ("#/run/words/conversations", ".completion"),
    ):
        phone.goto(board + part)
        phone.locator(ready).first.wait_for()
        assert phone.evaluate(outside) == [], part
    context.close()
