"""Studies from end to end: what is found, what is told, and what a kill, a crash or Ctrl-C costs (nothing that was done)."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from thread_host import on_threads

import runnel as rl
from runnel import tune
from runnel.cli.main import main
from runnel.track.folder import RunFolder

TOY = str(Path(__file__).with_name("toy_schedule.py"))
BOWL = {"metric": "bowl", "direction": "minimize"}
FAST: dict[str, Any] = {"vector.backend": "serial"}


def study_of(folder: Path) -> dict[str, Any]:
    path = folder / "study.json"
    return json.loads(path.read_text()) if path.is_file() else {"trials": [], "status": ""}


def runnel(*words: str) -> subprocess.Popen[str]:
    """The command, at the head of a process group of its own."""
    command = [sys.executable, "-m", "runnel", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, start_new_session=True, text=True, **pipes)  # type: ignore[call-overload, no-any-return]


def signal_when(process: subprocess.Popen[str], number: int, ready: Callable[[], bool]) -> str:
    """Send a signal to the whole group once `ready`; returns what was printed."""
    deadline = time.monotonic() + 60
    while not ready():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the study does not get on"
        time.sleep(0.005)
    os.killpg(process.pid, number)
    return process.communicate(timeout=60)[0]


def under_way(folder: Path, done: int) -> bool:
    """Whether so many trials are over, and another has a checkpoint."""
    trials = study_of(folder)["trials"]
    running = [t for t in trials if t["state"] == "running" and list((folder / t["run"] / "checkpoints").glob("0*"))]
    return len(trials) - len(running) >= done and bool(running)


def told(study: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(t["number"], t["state"], t["value"], t["params"], t["steps"]) for t in study["trials"]]


SLOW = {"total_updates": 300, "checkpoint.every": 50, **FAST}
OPTIONS = {**BOWL, "trials": 7, "pruner": "median"}


def test_interrupted_killed_and_resumed_is_the_study_that_nobody_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle of one trial, SIGKILL of the whole group in another; then every trial is as it would have been:
    the same proposals, the same values to the last bit, the same trials pruned at the same step."""
    on_threads(monkeypatch)
    space = {"rate": "log(1e-3, 1)"}
    whole = tune.search(TOY, space=space, out=tmp_path / "whole", options=OPTIONS, **SLOW)
    expected = told(whole.read())
    assert {state for _, state, *_ in expected} == {"complete", "pruned"}
    broken = tmp_path / "broken"
    flags = "--total-updates 300 --checkpoint.every 50 --vector.backend serial --trials 7 --metric bowl --direction minimize"
    words = ["tune", TOY, "--search", "rate=log(1e-3, 1)", *flags.split(), "--out", str(broken)]
    said = signal_when(runnel(*words), signal.SIGINT, lambda: under_way(broken, 1))
    assert f"go on with: runnel tune --resume {broken}" in said
    assert study_of(broken)["status"] == "stopped"
    done = len([t for t in study_of(broken)["trials"] if t["state"] != "running"])
    signal_when(runnel("tune", "--resume", str(broken)), signal.SIGKILL, lambda: under_way(broken, done + 1))
    assert study_of(broken)["status"] == "running", "nobody was left to say otherwise"
    with pytest.raises(rl.ConfigError, match=r"total_updates = 301: .* was made with 300"):
        tune.search(TOY, space=space, out=broken, options=OPTIONS, **{**SLOW, "total_updates": 301})
    again = tune.resume(broken)
    assert again.status == "finished"
    assert told(again.read()) == expected
    assert again.best is not None
    assert whole.best is not None
    assert again.best["command"] == whole.best["command"]
    assert len(list((broken / "trials").iterdir())) == len(expected), "nothing was begun twice"
    pruned = next(t for t in whole.trials if t["state"] == "pruned")
    updates = [r for r in RunFolder(whole.path / pruned["run"]).read_rows()[0] if r["kind"] == "update"]
    assert len(updates) == pruned["steps"][-1][0] < 300, "a pruned run ends at the point that pruned it"


def test_a_trial_that_is_killed_fails_alone(tmp_path: Path) -> None:
    """As by the kernel when memory runs out: the study goes on, with two workers."""
    options = {**BOWL, "sampler": "grid", "grid_points": 4, "pruner": "none", "workers": 2}
    study = tune.search(TOY, space={"rate": "0.1..0.4"}, out=tmp_path / "study", options=options, trouble="die", **FAST)
    states = [t["state"] for t in study.trials]
    assert sorted(states) == ["complete", "complete", "complete", "failed"]
    (failed,) = [t for t in study.trials if t["state"] == "failed"]
    assert "SIGKILL" in failed["error"]
    assert [t["params"]["rate"] for t in study.trials] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert study.best is not None
    assert study.best["value"] == min(t["value"] for t in study.trials if t["state"] == "complete")


def test_a_recipe_that_always_fails_ends_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_threads(monkeypatch)
    with pytest.raises(rl.RunnelError, match="5 trials failed and none worked; the first: ValueError: the toy is broken"):
        tune.search(TOY, space={"rate": "0.1..0.4"}, out=tmp_path / "study", options=BOWL, trouble="fail", **FAST)
    study = study_of(tmp_path / "study")
    assert (study["status"], study["best"], study["trials"][0]["value"]) == ("failed", None, None)


def test_tuning_and_test_seeds_are_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials are trained on tuning seeds and say so; the winner is trained on fresh ones; the command gives the winner."""
    on_threads(monkeypatch)
    out = tmp_path / "study"
    flags = "--total-steps 512 --num-envs 4 --num-steps 16 --vector.backend serial --eval.episodes 3 --pruner none --trials 2"
    words = ["tune", "ppo", "--search", "ppo.lr=log(1e-4,1e-2)", *flags.split(), "--seeds-per-trial", "2", "--out", str(out)]
    assert main([*words, "--test-seeds", "2"]) == 0
    said = capsys.readouterr().out
    assert "on tuning seeds 10000 to 10001" in said
    assert "fresh seeds 1 to 2: the honest number" in said
    study = study_of(out)
    for folder, seeds, tag in ((out / "trials", [10_000, 10_001] * 2, "tuning"), (out / "test", [1, 2], "test")):
        configs = [RunFolder(path).read_config() for path in sorted(folder.iterdir())]
        assert [c["seed"] for c in configs] == seeds
        assert {tuple(c["tags"]) for c in configs} == {(tag,)}
    assert study["seeds"] == [10_000, 10_001]
    for trial in study["trials"]:
        evals = [[r["mean"] for r in RunFolder(out / run).read_rows()[0] if r["kind"] == "eval"][-1] for run in trial["runs"]]
        assert trial["value"] == pytest.approx(sum(evals) / 2)
    best = json.loads((out / "best.json").read_text())
    command = shlex.split(best["command"])[1:]
    assert command[command.index("--seed") + 1] == "3", "a seed that had no part in choosing or judging the winner"
    assert main([*command, "--out", str(tmp_path), "--name", "fresh"]) == 0
    assert main(["report", str(tmp_path / "fresh"), "--over", "seeds"]) == 0, "reports take the run that it tells to make"
    assert main([*command, "--seed", "10000", "--out", str(tmp_path), "--name", "again"]) == 0
    again = [r for r in RunFolder(tmp_path / "again").read_rows()[0] if r["kind"] == "eval"][-1]
    first = [r for r in RunFolder(out / best["runs"][0]).read_rows()[0] if r["kind"] == "eval"][-1]
    assert again["returns"] == first["returns"]
    capsys.readouterr()
    assert main(["tune", "--resume", str(out), "--test-seeds", "2"]) == 0
    assert study_of(out)["trials"] == study["trials"], "a finished study has nothing left to do"
    assert study_of(out)["test"] == study["test"]
    assert {Path(run).name for run in study["test"]["runs"]} == {f"{study['best']:04}-seed-{seed}" for seed in (1, 2)}


def test_another_winner_is_tested_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More trials find a better one: the test runs of the one before say nothing of it."""
    on_threads(monkeypatch)
    options = {**BOWL, "sampler": "grid", "pruner": "none", "trials": 1, "test_seeds": 1}
    first = tune.search(TOY, space={"rate": "{0.1, 0.3}"}, out=tmp_path / "study", options=options, **FAST)
    second = tune.resume(tmp_path / "study", trials=2)
    assert first.best is not None
    assert second.best is not None
    assert (first.best["number"], second.best["number"]) == (0, 1)
    assert second.best["test"]["mean"] < first.best["test"]["mean"] / 100
    assert (second.best["test"]["number"], second.best["test"]["seeds"]) == (1, [1])


def test_a_metric_that_no_run_has_ends_the_study_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_threads(monkeypatch)
    with pytest.raises(rl.RunnelError, match=r"1 trials failed .* the run has no 'bowel'; use eval or one of bowl"):
        tune.search(TOY, space={"rate": "0.1..0.4"}, out=tmp_path / "study", options={"metric": "bowel"}, **FAST)
