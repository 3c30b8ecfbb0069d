"""Settings that change while a run goes on: what the learner does from then on is what a run that was stopped and resumed with
the new value does, a killed run makes the change again at the same version, and a refused one changes nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live_orders import command, play
from tiny_slices import content, settings

import runnel as rl
from runnel.cli.main import main
from runnel.run import registry
from runnel.track.folder import RunFolder

CASES: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {
    "ppo": (
        {"checkpoint": {"every": 4}},
        6,
        {"ppo.lr": 0.01, "ppo.entropy_coef": 0.1, "ppo.clip_range": 0.01, "ppo.num_epochs": 3},
    ),
    "dqn": ({"checkpoint": {"every": 10}}, 13, {"dqn.lr": 1e-2, "dqn.epsilon": 0.5, "dqn.target_every": 2, "dqn.huber": None}),
    "grpo": (
        # the weight of entropy has moved when the run is stopped, and moves on
        {"checkpoint": {"every": 4}, "grpo": {"entropy_target": 100.0, "entropy_step": 0.01, "max_entropy_coef": 0.5}},
        6,
        {"learner.lr": 1e-2, "grpo.entropy_coef": 0.2, "learner.max_grad_norm": 0.1},
    ),
    "grpo in parts": ({"checkpoint": {"every": 4}}, 6, {"learner.lr": 1e-2, "grpo.entropy_coef": 0.2}),
    "guided": ({"checkpoint": {"every": 4}}, 6, {"ppo.lr": 0.01, "ppo.value_coef": 0.1}),
}
"""By slice: settings of the run, the version at which something changes (behind a checkpoint), and what."""


def order_for(name: str, out: Path, **more: Any) -> dict[str, Any]:
    extra, version, changes = CASES[name]
    return {"slice": name, "out": str(out), "settings": extra, "set": {str(version): changes}, **more}


def told(run: Path) -> list[tuple[int, str, Any]]:
    rows = RunFolder(run).read_rows()[0]
    return [(r["version"], r["name"], r["value"]) for r in rows if r["kind"] == "event" and r["what"] == "setting"]


def without_change(name: str, out: Path) -> list[dict[str, Any]]:
    play({**order_for(name, out), "set": {}})
    return content(out / "run")[0]


@pytest.mark.parametrize("name", list(CASES))
def test_a_change_is_that_of_a_run_stopped_and_resumed_with_it(name: str, tmp_path: Path) -> None:
    """Bit for bit, in every number and in the parameters; and without the change they are others."""
    _, version, changes = CASES[name]
    play(order_for(name, tmp_path / "live"))
    run = tmp_path / "stopped" / "run"
    play({**order_for(name, tmp_path / "stopped", stop=version), "set": {}})
    play({"resume": str(run), "settings": changes})
    (live, params), (stopped, wanted) = content(tmp_path / "live" / "run"), content(run)
    updates = [[r for r in rows if r["kind"] == "update"] for rows in (live, stopped)]
    assert updates[0] == updates[1]
    assert params == wanted
    assert [v for v, *_ in told(tmp_path / "live" / "run")] == [version] * len(changes)
    plain = [r for r in without_change(name, tmp_path / "plain") if r["kind"] == "update"]
    assert plain[:version] == updates[0][:version]
    assert plain[version]["metrics"] != updates[0][version]["metrics"]


@pytest.mark.parametrize("name", list(CASES))
def test_a_killed_run_makes_the_change_again(name: str, tmp_path: Path) -> None:
    """It is cut off behind the change, goes on from the checkpoint before it, and needs nobody to change anything again."""
    whole, broken = tmp_path / "whole" / "run", tmp_path / "broken" / "run"
    version = CASES[name][1]
    play(order_for(name, whole.parent))
    play(order_for(name, broken.parent, kill=version + 1))
    newest = max(int(path.name) for path in (broken / "checkpoints").glob("0*"))
    assert 0 < newest < version, "the change lies behind the checkpoint"
    rl.resume(broken)
    assert content(broken) == content(whole)
    assert told(broken) == told(whole)
    rows = [[r for r in RunFolder(run).read_rows()[0] if r.get("what") == "setting"] for run in (whole, broken)]
    assert len(rows[0]) == len(rows[1]) > 0


def test_killed_by_a_signal_and_resumed_is_bit_identical(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole" / "run", tmp_path / "broken" / "run"
    play(order_for("ppo", whole.parent))
    process = subprocess.Popen(command(order_for("ppo", broken.parent)))
    deadline = time.monotonic() + 90
    while process.poll() is None and not (broken.is_dir() and RunFolder(broken).read_changes()):
        assert time.monotonic() < deadline, "the run does not get on"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    if process.wait() == -signal.SIGKILL:
        rl.resume(broken)
    assert content(broken) == content(whole)
    assert told(broken) == told(whole)


def test_a_change_behind_the_one_that_is_replayed_wins(tmp_path: Path) -> None:
    """A resumed run replays the change at version 6 and at 9; a change at 8 takes the place of the one at 9."""
    run = tmp_path / "run"
    first = {"6": {"ppo.lr": 0.01}, "9": {"ppo.lr": 0.02}}
    play({**order_for("ppo", tmp_path, kill=10), "settings": {"checkpoint": {"every": 5}}, "set": first})
    play({"resume": str(run), "set": {"8": {"ppo.lr": 0.03}}})
    lrs = {r["version"]: r["metrics"]["lr"] for r in RunFolder(run).read_rows()[0] if r["kind"] == "update"}
    assert [lrs[v] for v in (7, 8, 9, 10, 14)] == [0.01, 0.01, 0.03, 0.03, 0.03]
    assert lrs[6] == pytest.approx(1e-3 - 9e-4 * 5 / 14), "before, the schedule of the recipe counts: linear(1e-3, 1e-4)"
    config = json.loads((run / "config.json").read_text())
    assert config["ppo"]["lr"] == 0.03, "the config is that of the newest change"
    assert [(c["version"], c["value"]) for c in RunFolder(run).read_changes()] == [(6, 0.01), (8, 0.03)]


def test_a_value_given_on_resume_ends_what_was_changed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    play(order_for("ppo", tmp_path, kill=8))
    play({"resume": str(run), "settings": {"ppo.lr": 5e-4}})
    rows = [r for r in RunFolder(run).read_rows()[0] if r["kind"] == "update"]
    assert {r["metrics"]["lr"] for r in rows if r["version"] > 4} == {5e-4}
    assert "ppo.lr" not in [c["name"] for c in RunFolder(run).read_changes()]
    assert "ppo.clip_range" in [c["name"] for c in RunFolder(run).read_changes()], "the others are made again"


REFUSED = {
    "ppo.gamma": (0.5, "may not change while a run goes on; live settings here: ppo.lr, "),
    "num_envs": (8, "may not change while a run goes on; live settings here: ppo.lr, "),
    "ppo.nonsense": (1, "may not change while a run goes on; live settings here: ppo.lr, "),
    "ppo.clip_range": (-1, "must be above 0"),
    "ppo.lr": ("often", "write a number, linear"),
    "ppo.num_epochs": (1.5, "expected a whole number"),
    "red/ppo.lr": (0.1, "there is no such member"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_a_refused_change_changes_nothing(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not the run, which tells of it; and not by the command, which names the field. What came with it is refused too."""
    value, why = REFUSED[name]
    plain = without_change("ppo", tmp_path / "plain")
    play({**order_for("ppo", tmp_path / "asked"), "set": {"6": {"ppo.entropy_coef": 0.5, name: value}}})
    run = RunFolder(tmp_path / "asked" / "run")
    assert content(run.path)[0] == plain
    events = [r for r in run.read_rows()[0] if r["kind"] == "event" and "refused" in r["text"]]
    assert len(events) == 1
    assert f"{name} = {value!r}: {why}" in events[0]["text"]
    assert (run.read_changes(), told(run.path)) == ([], [])
    with pytest.raises(rl.ConfigError, match="live settings") if "live settings" in why else pytest.raises(rl.ConfigError):
        rl.change_settings(run.path, {name: value})
    assert main(["set", str(run.path), f"{name}={value}"]) == 2
    assert name in capsys.readouterr().err
    assert sum("set" in line for line in run.orders.read_text().splitlines()) == 1, "no order was given"


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_across_processes_the_same_history_gives_the_same_run(name: str, tmp_path: Path) -> None:
    """On the local launcher a change takes effect at a version that timing decides; from there on the run is the one that makes
    the changes of this history in a single process, bit for bit."""
    extra, version, changes = CASES[name]
    local = {**extra, "launcher": "local", "total_updates": 20}
    play({"slice": name, "out": str(tmp_path / "local"), "settings": local, "set": {str(version): changes}})
    history = RunFolder(tmp_path / "local" / "run").read_changes()
    assert {change["name"] for change in history} == set(changes)
    assert version <= history[0]["version"] < 20
    recipe, tiny = settings(name, **{**extra, "total_updates": 20, "out": str(tmp_path / "here")})
    module = registry.load_recipe(recipe)
    again = rl.train_config(recipe, registry.configure(module, tiny), changes=history, progress=False)
    assert content(again.path, by_arrival=False) == content(tmp_path / "local" / "run", by_arrival=False)
    assert told(again.path) == told(tmp_path / "local" / "run")
    assert RunFolder(again.path).read_changes() == history


def test_all_ranks_of_a_trainer_change_at_the_same_version(tmp_path: Path) -> None:
    """They compare their parameters at versions 8, 16 and 32, which differ if one of them used a value that others did not."""
    two = {"launcher": "local", "placement": {"trainers": 2}, "total_updates": 33, "eval": {"episodes": 0}}
    changes = {"6": {"ppo.lr": 0.01, "ppo.num_epochs": 3, "ppo.entropy_coef": 0.1}, "18": {"ppo.lr": 1e-3}}
    play({"slice": "ppo", "out": str(tmp_path), "settings": two, "set": changes})
    rows = [r for r in RunFolder(tmp_path / "run").read_rows()[0] if r["kind"] == "update"]
    history = RunFolder(tmp_path / "run").read_changes()
    rates = [c["version"] for c in history if c["name"] == "ppo.lr"]
    assert len(rows) == 33
    assert [r["version"] for r in rows if r["metrics"]["lr"] == 0.01] == list(range(rates[0] + 1, rates[1] + 1))
    steps = {r["version"]: r["metrics"]["optimiser_steps"] for r in rows}
    assert (steps[rates[0]], steps[rates[0] + 1]) == (4, 6), "2 and then 3 passes over 2 minibatches"


def test_a_person_sets_a_run_that_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    endless = {"total_updates": 1_000_000, "eval": {"episodes": 0}, "checkpoint": {"every": 0}}
    process = subprocess.Popen(command({"slice": "ppo", "out": str(tmp_path), "settings": endless}))

    def wait(done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 90
        while not done():
            assert process.poll() is None, "the run has ended"
            assert time.monotonic() < deadline, "the run does not get on"
            time.sleep(0.01)

    try:
        wait(lambda: RunFolder(run).metrics.is_file() and '"update"' in RunFolder(run).metrics.read_text())
        assert main(["set", str(run), "ppo.lr=5e-4", "ppo.value-clip=none", "ppo.entropy_coef=0.03"]) == 0
        assert "asked for ppo.lr=5e-4" in capsys.readouterr().out
        wait(lambda: len(told(run)) == 3)
        assert main(["set", str(run), "num_envs=3"]) == 2
        assert "num_envs = 3: may not change while a run goes on; live settings here: ppo.lr" in capsys.readouterr().err
        assert main(["stop", str(run), "--wait"]) == 0
    finally:
        process.terminate()
        process.wait()
    assert [(name, value) for _, name, value in told(run)] == [
        ("ppo.lr", 5e-4),
        ("ppo.value_clip", None),
        ("ppo.entropy_coef", 0.03),
    ]
    resumed = rl.resume(run, on_update=lambda row: False)
    assert resumed.rows()[-1]["metrics"]["lr"] == 5e-4, "it goes on with what was set"


def test_a_run_that_has_ended_takes_no_change(tmp_path: Path) -> None:
    play({**order_for("ppo", tmp_path), "set": {}})
    with pytest.raises(rl.ConfigError, match="no process is training it; resume it with the new settings"):
        rl.change_settings(tmp_path / "run", {"ppo.lr": 0.1})
