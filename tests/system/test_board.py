"""The board as a person meets it, in headless Chromium: over real runs, live, damaged, hostile; by keyboard and on a phone."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

import runnel as rl
from runnel.board.library import Library
from runnel.board.server import make_app

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
expect.set_options(timeout=30_000)  # a page's own limit does not count for it, and a loaded machine is slow
CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (make browser)")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update"]
WORDS = {
    "num_prompts": 2,
    "group_size": 3,
    "max_tokens": 3,
    "lm": {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "inner": 32, "max_positions": 64},
    "eval.episodes": 2,
    "total_updates": 6,
    "warmup_updates": 2,
    "record.groups_every": 1,
    "track": (),
}
CARTPOLE = {"total_steps": 3000, "track": (), "eval.episodes": 5, "eval.every": 4}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of one setting, one of another; one has videos, one is of a language model."""
    root = tmp_path_factory.mktemp("board") / "runs"
    settings = {**CARTPOLE, "out": str(root)}
    rl.train("cartpole", name="one", seed=1, tags=("first",), **{"record.videos": 1}, **settings)
    rl.train("cartpole", name="two", seed=2, **settings)
    rl.train("cartpole", name="other", seed=1, **{"ppo.lr": 5e-4}, **settings)
    rl.train("reverse", name="words", out=str(root), **WORDS)
    return root


@pytest.fixture(scope="module")
def board(runs, tmp_path_factory):
    yield from serve(runs, tmp_path_factory.mktemp("cache"))


def serve(folder: Path, cache: Path):
    command = [sys.executable, "-m", "runnel", "board", str(folder), "--port", "0"]
    env = os.environ | {"XDG_CACHE_HOME": str(cache)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    try:
        yield next(line for line in process.stdout if line.startswith("open ")).split()[1]
    finally:
        process.terminate()
        process.wait(timeout=20)


@contextmanager
def serving(folder: Path):
    """The same in this process, which starts sooner."""
    library = Library(folder, cache=folder.parent / "cache")
    library.refresh()
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(make_app(library), log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(timeout=20)


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium):
    """A page that fails the test for any error on it, and for any request that leaves the board."""
    context = chromium.new_context(viewport={"width": 1360, "height": 900})
    context.set_default_timeout(30_000)
    found = context.new_page()
    wrong: list[str] = []
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on(
        "console", lambda m: wrong.append(m.text) if m.type == "error" and "Failed to load resource" not in m.text else None
    )
    found.on(
        "request",
        lambda r: None if r.url.startswith(("http://127.0.0.1", "data:")) else wrong.append(f"left the board: {r.url}"),
    )
    yield found
    context.close()
    assert wrong == []


def row(page, name):
    return page.locator(f'tr[data-run="{name}"]')


def curves(wanted):
    """Whether a request asks for curves as `wanted`; others may be on their way."""
    return lambda request: "/api/curves" in request.url and wanted(request.post_data_json)


def test_it_opens_with_runs_and_curves(page, board):
    page.goto(board)
    expect(page.locator("#runs tbody tr")).to_have_count(4)
    expect(row(page, "one")).to_contain_text("finished")
    expect(row(page, "one")).to_contain_text("#first")
    expect(page.locator(".live")).to_have_text("live")
    score = page.locator("figure", has_text="return").first
    expect(score).to_have_attribute("data-lines", "2")  # the mean of two seeds, the other setting; the words count tokens
    expect(score.locator("canvas")).to_be_visible()
    expect(page.locator(".legend")).to_contain_text("(2 seeds)")
    page.get_by_role("button", name="each run").click()
    expect(score).to_have_attribute("data-lines", "3")
    page.locator("#search").fill("tag:first")
    expect(page.locator("#runs tbody tr")).to_have_count(1)
    page.locator("#search").fill("nothing like it")
    expect(page.locator("#runs")).to_contain_text("No run matches")


def test_axis_smoothing_log_and_zoom_ask_the_server(page, board):
    page.goto(board)
    score = page.locator("figure", has_text="return").first
    expect(score).to_have_attribute("data-lines", re.compile("."))
    with page.expect_request(curves(lambda asked: asked["axis"] == "wall_s")):
        page.locator("#axis").select_option("wall_s")
    with page.expect_request(curves(lambda asked: asked["smoothing"] == 0.5)):
        page.locator("#smoothing").fill("0.5")
    page.locator("#log").check()
    low, high = drag(page, score)
    assert 0 < low < high
    score.get_by_role("button", name="whole").click()
    expect(score.get_by_role("button", name="whole")).to_be_hidden()


def test_a_redraw_in_the_middle_of_a_drag_waits_for_its_end(page, board):
    page.goto(board)
    score = page.locator("figure", has_text="return").first
    expect(score).to_have_attribute("data-lines", re.compile("."))
    page.evaluate("() => { document.querySelector('figure canvas').dataset.old = 'yes'; }")
    low, high = drag(page, score, meanwhile=lambda: page.evaluate("() => { dispatchEvent(new Event('themechange')); }"))
    assert 0 < low < high
    expect(page.locator("figure canvas[data-old]")).to_have_count(0)  # it was drawn anew afterwards


def drag(page, chart, meanwhile=lambda: None):
    """Zoom into a chart by the mouse; the span that it asks the server for."""
    box = chart.locator(".plot").bounding_box()  # the canvas in it is another one after each redraw
    x, y = box["x"] + 100, box["y"] + 50
    with page.expect_request(curves(lambda asked: asked["span"] is not None)) as found:
        page.mouse.move(x, y)
        page.mouse.down()
        meanwhile()
        page.mouse.move(x + 100, y, steps=4)
        page.mouse.up()
    return found.value.post_data_json["span"]


def test_two_runs_are_compared(page, board):
    page.goto(board)
    row(page, "one").get_by_role("checkbox").check()
    row(page, "other").get_by_role("checkbox").check()
    page.get_by_role("button", name="Difference").click()
    difference = page.locator("#difference")
    expect(difference).to_contain_text("ppo.lr")
    expect(difference.locator("tr", has_text="ppo.lr")).to_contain_text("0.0005")
    page.get_by_role("button", name="Settings").click()
    settings = page.locator("#settings")
    expect(settings.locator("thead")).to_contain_text("ppo.lr")
    expect(settings.locator("tbody tr")).to_have_count(2)


def test_a_live_run_moves_without_a_reload(page, chromium, tmp_path):
    root = tmp_path / "runs"
    folder = root / "growing"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(
        json.dumps({"recipe": "ppo", "subject": "Toy", "seed": 1, "created": "2030-01-01T00:00:00"})
    )
    (folder / "config.json").write_text("{}")

    def write(versions):
        with (folder / "metrics.jsonl").open("a") as file:
            for v in versions:
                line = {
                    "kind": "update",
                    "version": v,
                    "steps": 100 * v,
                    "progress": v / 100,
                    "metrics": {"return": v},
                    "time": {"wall_s": v},
                }
                file.write(json.dumps(line) + "\n")

    write(range(1, 6))
    with serving(root) as address:
        page.goto(address)
        expect(row(page, "growing")).to_contain_text("running")
        expect(row(page, "growing")).to_contain_text("500")
        write(range(6, 51))
        expect(row(page, "growing")).to_contain_text("5k")
        shutil.copytree(folder, root / "second")
        expect(page.locator("#runs tbody tr")).to_have_count(2)
        page.goto(f"{address}#/run/growing")
        expect(page.locator(".facts")).to_contain_text("50")
        write(range(51, 61))
        expect(page.locator(".facts")).to_contain_text("60updates")


def test_one_run_shows_time_streams_settings_and_events(page, board):
    page.goto(f"{board}#/run/one")
    expect(page.locator("h1")).to_contain_text("one")
    expect(page.locator("figure", has_text="loss/policy")).to_have_attribute("data-lines", "1")
    page.keyboard.press("2")
    expect(page.locator(".worker", has_text="trainer")).to_contain_text("update")
    page.keyboard.press("3")
    expect(page.locator(".dataflow .node")).to_have_count(3)
    expect(page.locator(".dataflow")).to_contain_text("trajectories")
    expect(page.locator("td", has_text="✓ yes")).to_be_visible()
    expect(page.locator("figure", has_text="Staleness")).to_be_visible()
    page.keyboard.press("6")
    expect(page.locator(".runbody")).to_contain_text("total_steps")
    page.keyboard.press("7")
    expect(page.locator("#events")).to_contain_text("checkpoint")
    page.keyboard.press("Escape")
    expect(page.locator("#runs")).to_be_visible()


def test_a_recorded_episode_plays(page, board):
    page.goto(f"{board}#/run/one/episodes")
    video = page.locator("video")
    expect(video).to_be_visible()
    page.wait_for_function("() => document.querySelector('video').readyState >= 2")
    assert video.evaluate("v => v.videoWidth") > 100
    films = page.locator(".film")
    films.last.click()
    expect(films.last).to_have_attribute("aria-pressed", "true")
    video.evaluate("v => v.play()")
    page.wait_for_function("() => document.querySelector('video').currentTime > 0")
    expect(page.locator(".hist").first).to_be_visible()


def test_a_run_without_videos_says_how_to_get_them(page, board):
    page.goto(f"{board}#/run/two/episodes")
    expect(page.locator("main")).to_contain_text("--record.videos")
    page.goto(f"{board}#/run/two/conversations")
    expect(page.locator("main")).to_contain_text("No groups of completions")


def test_a_conversation_opens_with_its_tokens(page, board):
    page.goto(f"{board}#/run/words/conversations")
    expect(page.locator(".talk").first).to_contain_text("version")
    completions = page.locator(".completion")
    expect(completions.first).to_contain_text("reward")
    assert completions.count() > 1  # side by side
    page.get_by_role("button", name="log-probability").click()
    assert page.locator(".tok").first.evaluate("e => getComputedStyle(e).backgroundColor") is not None
    painted = page.locator(".tok").evaluate_all("all => new Set(all.map(e => e.style.background)).size")
    assert painted > 2
    assert "log-probability -" in page.locator(".tok").first.get_attribute("title")
    page.locator(".talk").last.click()
    expect(page.locator(".talk").last).to_have_attribute("aria-selected", "true")


def test_everything_by_keyboard(page, board):
    page.goto(board)
    expect(page.locator("#runs tbody tr")).to_have_count(4)
    theme = page.locator("html").get_attribute("data-theme")
    page.keyboard.press("t")
    assert page.locator("html").get_attribute("data-theme") != theme
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("o")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("tr.chosen")).to_have_count(2)
    page.keyboard.press("d")
    expect(page.locator("#difference")).to_be_visible()
    page.locator("tbody tr").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".runhead h1")).to_be_visible()
    plot = page.locator("figure .plot").first
    expect(plot.locator("canvas")).to_be_visible()
    plot.focus()
    page.keyboard.press("End")
    expect(page.locator("figure").first.locator(".tip")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_sideways_scrolling(chromium, board, scheme):
    context = chromium.new_context(viewport={"width": 390, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    for part in ("", "#/run/one", "#/run/one/streams", "#/run/one/episodes", "#/run/words/conversations", "#/run/one/settings"):
        page.goto(board + part)
        page.locator("figure, .worker, .completion, dl").first.wait_for()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390, part
    paper = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    context.close()


def test_damaged_files_are_named_and_the_rest_is_shown(page, runs, tmp_path):
    root = tmp_path / "runs"
    shutil.copytree(runs / "two", root / "hurt")
    shutil.copytree(runs / "one", root / "worse")
    path = root / "hurt" / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], b"\xff\x00 not json\n", *lines[4:], b'{"kind": "upd']))
    (root / "worse" / "run.json").write_text("{")
    (root / "empty").mkdir()
    with serving(root) as address:
        page.goto(address)
        expect(page.locator(".notice")).to_contain_text("2 runs have damaged files")
        page.goto(f"{address}#/run/hurt")
        expect(page.locator(".notice")).to_contain_text("line 5 is not readable; skipped")
        expect(page.locator("figure", has_text="return").first).to_have_attribute("data-lines", "1")
        page.goto(f"{address}#/run/worse/settings")
        expect(page.locator(".notice")).to_contain_text("this file is damaged")
        page.goto(f"{address}#/run/gone")
        expect(page.locator(".notice")).to_contain_text("no such run")


def test_an_empty_folder_says_what_to_do(page, tmp_path):
    (tmp_path / "runs").mkdir()
    with serving(tmp_path / "runs") as address:
        page.goto(address)
        expect(page.locator("#runs")).to_contain_text("runnel train cartpole")


def test_hostile_text_is_only_text(page, tmp_path):
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    folder = tmp_path / "runs" / "evil"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(
        json.dumps({"recipe": evil, "subject": evil, "seed": evil, "command": evil, "created": evil})
    )
    (folder / "config.json").write_text(json.dumps({"tags": [evil], evil: evil}))
    update = {
        "kind": "update",
        "version": 1,
        "steps": 1,
        "metrics": {evil: 1.0, "return": 1.0},
        "streams": {evil: {"dropped": {evil: 1}}},
    }
    event = {"kind": "event", "level": evil, "text": evil}
    (folder / "metrics.jsonl").write_text(json.dumps(update) + "\n" + json.dumps(event) + "\n")
    tokens = {"completion": evil, "reward": 1.0, "tokens": [evil], "rewards": {evil: 1.0}}
    (folder / "groups.jsonl").write_text(json.dumps({"version": 1, "prompt": evil, "source": evil, "rows": [tokens]}) + "\n")
    with serving(tmp_path / "runs") as address:
        for part in ("", *(f"#/run/evil/{tab}" for tab in ("curves", "streams", "conversations", "settings", "events"))):
            page.goto(address + part)
            expect(page.locator("main")).to_contain_text("<img src=x")
            assert page.title() != "owned"
        assert page.locator("main img").count() == 0


def test_a_run_that_allows_it_is_saved_and_stopped_with_its_token(page, tmp_path):
    command = [
        sys.executable,
        "-m",
        "runnel",
        "train",
        "cartpole",
        "--total-steps",
        "100000000",
        "--control",
        "--out",
        str(tmp_path / "runs"),
    ]
    command += ["--name", "long", "--eval.stop-return", "None", "--checkpoint.every", "0"]
    training = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert training.stdout is not None
        said = next(line for line in training.stdout if "control token" in line)
        token = re.search(r"control token: ([\w-]+)", said).group(1)
        with serving(tmp_path / "runs") as address:
            page.goto(f"{address}#/run/long")
            page.get_by_label("control token").fill("a guess")
            page.get_by_role("button", name="stop").click()
            expect(page.locator(".control")).to_contain_text("not the token")
            page.get_by_label("control token").fill(token)
            page.get_by_role("button", name="checkpoint now").click()
            expect(page.locator(".control")).to_contain_text("saves at its next version")
            page.get_by_role("button", name="stop").click()
            expect(page.locator("h1")).to_contain_text("stopped")
            expect(page.locator(".control")).to_have_count(0)
        training.stdout.read()
        assert training.wait(timeout=60) in (0, 130)
    finally:
        training.kill()


def test_a_study_shows_its_trials(page, tmp_path):
    trials = [
        {
            "number": i,
            "state": "complete",
            "value": float(i),
            "params": {"ppo.lr": 10.0**-i, "ppo.clip_range": "wide"},
            "run": f"trials/{i}",
            "seconds": 2.0,
        }
        for i in range(1, 5)
    ]
    trials.append({"number": 9, "state": "failed", "value": None, "params": {"ppo.lr": 1.0}, "error": "it broke"})
    study = {
        "kind": "study",
        "name": "tuned",
        "recipe": "ppo",
        "direction": "maximize",
        "metric": "eval/mean",
        "algorithm": "tpe",
    }
    params = {"ppo.lr": {"kind": "float", "log": True}, "ppo.clip_range": {"kind": "choice"}}
    study |= {"params": params, "trials": trials, "best": 4}
    study |= {"importance": {"ppo.lr": 0.9, "ppo.clip_range": 0.1}, "status": "finished", "lineage": []}
    (tmp_path / "runs" / "tuned").mkdir(parents=True)
    (tmp_path / "runs" / "tuned" / "study.json").write_text(json.dumps(study))
    with serving(tmp_path / "runs") as address:
        page.goto(address)
        page.get_by_role("link", name="study tuned").click()
        expect(page.locator("#parallel polyline")).to_have_count(4)
        expect(page.locator("#importance")).to_contain_text("90 %")
        expect(page.locator("#trials tbody tr").first).to_contain_text("4")
        expect(page.locator("#trials")).to_contain_text("it broke")
