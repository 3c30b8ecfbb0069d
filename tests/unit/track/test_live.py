import io
import re
import sys
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from rich.console import Console

from runnel.core.clock import ManualClock
from runnel.track.frame import Picture, frame, one_line
from runnel.track.live import LiveView
from runnel.track.pace import Pace


@pytest.fixture(autouse=True)
def _not_in_ci(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def terminal(width: int = 80, height: int = 24) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None, legacy_windows=False)


def log() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=80)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def update(version: int = 10, **changes) -> dict:
    row = {
        "kind": "update",
        "version": version,
        "steps": version * 100,
        "metrics": {
            "loss/policy": -0.0125,
            "loss/value": 3.5,
            "kl": 0.0041,
            "entropy": 0.61,
            "return": 20.0 * version,
            "staleness/mean": 0.5,
            "staleness/max": 2,
        },
        "streams": {
            "trajectories": {"dispatched": 90, "consumed": 80, "dropped": {"stale": 7}, "cancelled": {}, "in_flight": 3}
        },
        "time": {
            "wall_s": 1.0,
            "steps_per_s": 24512.0,
            "stages": {"trainer/update": 0.3, "actor-0/env": 0.05, "actor-1/env": 0.05},
            "idle": {"trainer": 0.1, "actor-0": 0.2, "actor-1": 0.4},
        },
        "progress": version / 20,
    }
    return {**row, **changes}


def drawn(picture: Picture, width: int = 80, height: int = 24) -> list[str]:
    return ["".join(text for text, _ in line) for line in frame(picture, width=width, height=height)]


def full_picture() -> Picture:
    picture = Picture(title="ppo CartPole-v1 seed 1", total=2000, unit="steps")
    for version in range(1, 11):
        picture.add(update(version))
    picture.add({"kind": "eval", "steps": 1000, "mean": 487.26, "low": 480.0, "high": 494.5, "num": 100})
    picture.add({"kind": "event", "level": "warning", "text": "something\x1b[2J odd"})
    picture.note, picture.left_s = "evaluating 37/100", 83.0
    return picture


def test_the_picture_shows_everything_that_was_asked_for():
    text = "\n".join(drawn(full_picture()))
    for part in (
        "50%",
        "1:23 left",
        "1,000 of 2,000 steps",
        "24,512 steps/s",
        "evaluating 37/100",
        "▁▁▂▃▄▅▆▇██",
        "-0.0125",
        "loss/value",
        "0.0041",
        "0.61",
        "487.3  95% interval 480 to 494.5  (100 episodes)  at 1,000",
        "mean 0.5   max 2",
        "actor 30%   trainer 10%",
        "80 of 90 consumed   3 in flight",
        "dropped stale 7",
        "something",
    ):
        assert part in text, part
    assert "\x1b" not in text


def test_a_collapse_stays_on_the_screen_until_it_is_over():
    picture = full_picture()
    event = {"kind": "event", "level": "warning", "what": "collapse", "collapse": "no entropy", "since": 4}
    text = "collapse since version 4 (no entropy): " + "words " * 20 + "lower ppo.lr (now 10)"
    picture.add({**event, "text": text})
    for number in range(5):
        picture.add({"kind": "event", "level": "info", "text": f"message {number}"})
    shown = [line.strip(" ●") for line in drawn(picture, height=40)]
    assert text in " ".join(shown), "none of it is cut off"
    assert all(len(line) <= 80 for line in drawn(picture, height=40))
    picture.add({**event, "text": "over", "over": True})
    assert "collapse since" not in "\n".join(drawn(picture, height=40))


def language_update(version: int, **metrics: float) -> dict:
    ages = {"mean": 1.25, "max": 3, "in_flight": 0.9813, "in_flight_max": 2, "in_queue": 0.2687, "in_queue_max": 1}
    shown = {f"staleness/{k}": v for k, v in ages.items()} | {"loss/policy": 0.1, "version_span": 3.0, "ess": 0.998}
    counts = {
        "dispatched": 90,
        "consumed": 60,
        "dropped": {"stale": 8},
        "cancelled": {"no_signal": 4},
        "in_flight": 18,
        "queued": 6,
    }
    return update(version, metrics=shown | metrics, streams={"rollouts": counts})


def test_the_picture_of_a_language_model_says_how_old_and_how_far_off_its_samples_are():
    picture = Picture(title="grpo reverse", total=20, unit="updates")
    picture.add(language_update(9, **{"mismatch/kl": 2.5e-6, "mismatch/max_ratio": 1.01}))
    assert "versions inside 3   ess 0.998   mismatch 2.50e-06" in "\n".join(drawn(picture))
    assert "at version" not in "\n".join(drawn(picture))
    picture.add(language_update(10))
    lines = drawn(picture)
    text = "\n".join(lines)
    for part in (
        "mean 1.25   max 3   in flight 0.98 max 2   in queue 0.27 max 1",
        "versions inside 3   ess 0.998   mismatch 2.50e-06 at version 9",
        "60 of 90 consumed   18 in flight (6 in queue)",
        "dropped stale 8   cancelled no_signal 4",
        "actor 30%   trainer 10%",
    ):
        assert part in text, part
    assert "canary" not in text
    picture.add(language_update(11, **{"mismatch/canary_kl": 1.5e-13, "mismatch/canary_version": 10.0}))
    assert "canary       mismatch 1.50e-13   checked at version 10" in "\n".join(drawn(picture))
    assert max(map(len, lines)) <= 80
    talks = {"chat/turns": 3.25, "chat/context": 812.0, "chat/tool_calls": 2.5}
    row = language_update(12, **talks, **{"chat/tool_errors/raised": 0.25, "chat/tool_errors/timeout": 0.5})
    row["time"]["conversations"] = {"env_s": 3.0, "engine_s": 1.0}
    picture.add(row)
    assert "turns        3.25   context 812   tool calls 2.5, failed 0.75   environment 75%" in "\n".join(drawn(picture))
    assert sum("ess" in line.split() for line in lines) == 1, "shown once, not among what is learned too"


def test_stages_of_one_kind_share_a_bar():
    lines = drawn(full_picture())
    assert any("trainer/update" in line and "75%" in line for line in lines)
    assert any("actor/env" in line and "25%" in line for line in lines)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 20), (120, 40), (40, 10)])
def test_the_picture_fits(width, height):
    lines = drawn(full_picture(), width, height)
    assert len(lines) <= height
    assert max(cell_len(line) for line in lines) <= width


def test_wide_characters_do_not_break_the_frame():
    console = terminal(width=40)
    view = LiveView(title="x", total=10, unit="steps", console=console, clock=ManualClock())
    view.row({"kind": "event", "level": "info", "text": "警告" * 40})
    shown = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", text_of(console))
    assert "警告" in shown
    assert max(cell_len(line) for line in shown.splitlines()) <= 40
    view.close()


def test_a_picture_without_any_row_can_be_drawn():
    assert "0%" in "\n".join(drawn(Picture(title="x", total=0, unit="updates")))


def test_tokens_and_updates_count_in_their_own_unit():
    picture = Picture(title="grpo", total=50, unit="updates")
    picture.add({"kind": "update", "version": 20, "tokens": 9, "metrics": {"reward": 0.5}, "time": {"tokens_per_s": 4000.0}})
    assert picture.progress == 0.4
    assert "20 of 50 updates" in one_line(picture)
    assert "4,000 tokens/s  reward 0.5" in one_line(picture)


def test_redraws_are_throttled_on_the_callers_clock():
    clock, console = ManualClock(), terminal()
    view = LiveView(title="x", total=2000, unit="steps", console=console, clock=clock)
    view.row(update(1))
    before = len(text_of(console))
    for version in range(2, 12):
        clock.advance(0.01)
        view.row(update(version))
        view.tick("busy")
    assert len(text_of(console)) == before
    clock.advance(0.1)
    view.row(update(12))
    assert len(text_of(console)) > before
    assert "version 12" in text_of(console)
    view.close()


class CostlyClock(ManualClock):
    """Every reading takes 10 ms, so a redraw costs at least that."""

    def now(self) -> float:
        self.advance(0.01)
        return super().now()


def test_a_slow_terminal_is_drawn_to_less_often():
    clock, console = CostlyClock(), terminal()
    view = LiveView(title="x", total=2000, unit="steps", console=console, clock=clock)
    for _ in range(100):
        view.row(update(1))
    assert text_of(console).count("version 1") <= 2
    view.close()


def test_an_evaluation_is_shown_at_once():
    clock, console = ManualClock(), terminal()
    view = LiveView(title="x", total=2000, unit="steps", console=console, clock=clock)
    view.row(update(1))
    view.row({"kind": "eval", "steps": 100, "mean": 321.0})
    assert "321" in text_of(console)
    view.close()
    view.close()


def test_a_log_gets_a_line_every_five_seconds():
    clock, console = ManualClock(), log()
    view = LiveView(title="ppo", total=2000, unit="steps", console=console, clock=clock)
    pace = Pace()
    for version in range(1, 13):
        time = {"left_s": pace.left_s(clock.now(), version / 20)}
        view.row(update(version, time=time))
        clock.advance(1.0)
    lines = text_of(console).splitlines()
    assert [line.split()[1] for line in lines] == ["5%", "30%", "55%"]
    assert lines[2].endswith("9 s left")
    view.row({"kind": "event", "level": "warning", "text": "careful [red]"})
    view.row({"kind": "end", "status": "finished"})
    view.close()
    lines = text_of(console).splitlines()
    assert lines[3] == "ppo  warning: careful [red]"
    assert lines[-1].endswith("finished")
    assert "\x1b" not in text_of(console)


def test_ci_gets_plain_lines_even_on_a_terminal(monkeypatch):
    monkeypatch.setenv("CI", "true")
    assert not LiveView(title="x", total=1, unit="steps", console=terminal()).animated


class Cell:
    """What IPython gives for an output that can be written anew."""

    def __init__(self, data, *, raw, display_id):
        assert (raw, display_id) == (True, True)
        self.shown = [data]

    def update(self, data, *, raw):
        assert raw
        self.shown.append(data)


def test_a_notebook_shows_one_output_that_is_written_anew(monkeypatch):
    made: list[Cell] = []

    def display(data, **how):
        made.append(Cell(data, **how))
        return made[-1]

    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    clock, console = ManualClock(), Console(file=io.StringIO(), force_jupyter=True)
    view = LiveView(title="ppo", total=2000, unit="steps", console=console, clock=clock)
    for version in range(1, 21):
        clock.advance(0.1)
        view.row(update(version))
    view.row({"kind": "eval", "steps": 1000, "mean": 487.26, "low": 480.0, "high": 494.5, "num": 100})
    view.row({"kind": "event", "level": "warning", "text": "something odd"})
    view.close()
    (cell,) = made
    assert 5 <= len(cell.shown) <= 8, "not one message to the browser for each update"
    assert {tuple(data) for data in cell.shown} == {("text/plain",)}
    last = cell.shown[-1]["text/plain"]
    assert last.startswith("ppo  100%  2,000 of 2,000 steps")
    assert "evaluation at 1,000: 487.3  95% interval 480 to 494.5  (100 episodes)" in last
    assert last.endswith("warning: something odd")
    assert text_of(console) == ""
