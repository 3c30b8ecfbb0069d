"""Population based training: it finds a schedule, every exchange is on record, and a kill changes nothing."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from test_tune import BOWL, FAST, TOY, runnel, signal_when, study_of
from thread_host import on_threads

import runnel as rl
from runnel import tune
from runnel.track.folder import RunFolder
from runnel.tune.settings import TuneConfig, make_setup

OPTIONS = {**BOWL, "scheduler": "pbt", "members": 4, "interval": 8}
SPACE = {"rate": "log(1e-3, 1)"}


def told(study: dict[str, Any]) -> tuple[Any, ...]:
    return study["lineage"], [(t["value"], t["params"], t["steps"], t["parent"]) for t in study["trials"]]


def test_a_schedule_beats_every_constant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bowl wants large steps first and small ones later. The winner is better than every constant rate of a grid, and so
    are its settings on seeds that had no part in finding them."""
    on_threads(monkeypatch)
    constants = [1e-3, 0.1, 0.3, 0.5, 1.0]
    runs = [rl.train(TOY, rate=r, out=str(tmp_path), name=f"c{r}", track=(), **FAST) for r in constants]
    fixed = [run.rows()[-1]["metrics"]["bowl"] for run in runs]
    options = {**OPTIONS, "members": 8, "interval": 4, "test_seeds": 2}
    study = tune.search(TOY, space=SPACE, out=tmp_path / "study", options=options, **FAST)
    best = study.best
    assert best is not None
    assert best["value"] < min(fixed) < max(fixed) / 1e6
    assert best["test"]["mean"] < min(fixed)
    assert best["test"]["seeds"] == [1, 2]
    _check_lineage(study)
    rates = {change["version"]: change["settings"]["rate"] for change in best["schedule"]}
    assert max(rates) > 0
    assert rates[max(rates)] < rates[0] / 2, "large steps first, small ones later"
    tested = RunFolder(study.path / best["test"]["runs"][0]).read_rows()[0]
    used = {r["version"]: r["metrics"]["rate"] for r in tested if r["kind"] == "update"}
    expected = [rates[max(v for v in rates if v < version)] for version in range(1, 41)]
    assert [used[version] for version in range(1, 41)] == pytest.approx(expected), "the whole schedule is replayed"


def _check_lineage(study: tune.Study, every: int = 4) -> None:
    """Each copy says who, from whom, when, and what changed; the newest of each member shows in its own rows and settings."""
    data = study.read()
    assert data["lineage"]
    for copy in {copy["member"]: copy for copy in data["lineage"]}.values():
        child = data["trials"][copy["member"]]
        folder = RunFolder(study.path / child["run"])
        rows = folder.read_rows()[0]
        assert any(f"took over from member {copy['parent']}" in r["text"] for r in rows if r["kind"] == "event")
        used = {r["version"]: r["metrics"]["rate"] for r in rows if r["kind"] == "update"}
        assert used[copy["step"] + 1] == pytest.approx(copy["after"]["rate"])
        newest = folder.read_changes()[-1]
        assert (newest["version"], newest["value"]) == (copy["step"], copy["after"]["rate"])
        assert list(used) == list(range(1, 41)), "no version is there twice, and none is missing"
        assert (child["parent"], child["copied_at"]) == (copy["parent"], copy["step"])
    assert all([step for step, _ in t["steps"]] == list(range(every, 41, every)) for t in data["trials"])


def test_killed_and_resumed_is_the_same_population(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL of the whole group in an interval, after the first exchange. With one worker timing changes nothing."""
    on_threads(monkeypatch)
    whole = tune.search(TOY, space=SPACE, out=tmp_path / "whole", options=OPTIONS, **FAST)
    broken = tmp_path / "broken"
    flags = "--scheduler pbt --members 4 --interval 8 --metric bowl --direction minimize --vector.backend serial"
    words = ["tune", TOY, "--search", "rate=log(1e-3, 1)", *flags.split(), "--out", str(broken)]

    def exchanged() -> bool:
        reached = [len(t["steps"]) for t in study_of(broken)["trials"]]
        return bool(study_of(broken).get("lineage")) and min(reached) < max(reached)

    signal_when(runnel(*words), signal.SIGKILL, exchanged)
    again = tune.resume(broken)
    assert again.status == "finished"
    assert told(again.read()) == told(whole.read())


def test_no_member_waits_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One member stands still before its first point: the others spend their whole budget meanwhile, and exchange. When it goes
    on, it is judged at its own points, and takes over from those who have passed them long ago."""
    on_threads(monkeypatch)
    out, found = tmp_path / "study", list[tune.Study]()
    options = {**OPTIONS, "workers": 4}

    def search() -> None:
        found.append(tune.search(TOY, space=SPACE, out=out, options=options, trouble="wait", **FAST))

    thread = threading.Thread(target=search, daemon=True)
    thread.start()
    deadline = time.monotonic() + 90
    while [t["state"] for t in study_of(out)["trials"]] != ["running", "complete", "complete", "complete"]:
        assert thread.is_alive(), "the study has ended"
        assert time.monotonic() < deadline, "the others wait"
        time.sleep(0.01)
    before = study_of(out)
    assert before["trials"][0]["steps"] == []
    assert {copy["member"] for copy in before["lineage"]} <= {1, 2, 3}
    assert all([step for step, _ in t["steps"]] == [8, 16, 24, 32, 40] for t in before["trials"][1:])
    (out / "trials" / "released").touch()
    thread.join(90)
    (study,) = found
    assert [t["state"] for t in study.trials] == ["complete"] * 4
    assert [step for step, _ in study.trials[0]["steps"]] == [8, 16, 24, 32, 40]
    for copy in study.read()["lineage"]:
        if copy["member"] == 0:
            assert copy["step"] in (8, 16, 24, 32), "the state of the same point"
    _check_lineage(study, every=8)


def test_members_come_to_the_end_where_scores_fall_as_they_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in self-play, where all get better against each other. With one worker, whoever comes first to a point is worse than
    all that are behind it; it goes back to one of them once, and not for ever."""
    on_threads(monkeypatch)
    options = {**OPTIONS, "direction": "maximize", "interval": 10}
    space = {"rate": "0.05..0.06"}
    study = tune.search(TOY, space=space, out=tmp_path / "study", options=options, **{**FAST, "total_updates": 30})
    data = study.read()
    assert data["status"] == "finished"
    assert [[step for step, _ in t["steps"]] for t in data["trials"]] == [[10, 20, 30]] * 4
    assert data["lineage"], "somebody went back"


def test_settings_that_stay_are_refused_before_anything_starts(tmp_path: Path) -> None:
    """A population changes settings of runs on the way, so it can search live ones only; the others are named with the fix."""
    cases = {"num_steps": ("{2, 4}", "live settings here: rate, ill"), "seed": ("int(1, 4)", "seed")}
    for name, (text, why) in cases.items():
        with pytest.raises(rl.ConfigError, match=why):
            tune.search(TOY, space={name: text}, out=tmp_path / "study", options=OPTIONS, **FAST)
    ppo = {"total_updates": 4, "eval.episodes": 2}
    why = "ppo.gamma.*members of a population change it on the way, and it may not change while a run goes on; live settings"
    with pytest.raises(rl.ConfigError, match=why):
        tune.search("ppo", space={"ppo.gamma": "{0.9, 0.99}"}, out=tmp_path / "study", options={"scheduler": "pbt"}, **ppo)
    often = {"scheduler": "pbt", "interval": 127}
    with pytest.raises(rl.ConfigError, match=r"interval = 127: counts steps.* make 128 of them at a time"):
        tune.search("ppo", out=tmp_path / "study", options=often, total_steps=1024, num_envs=8, num_steps=16, env="CartPole-v1")
    space = {"grpo.kl_coef": "{0, 0.1}"}
    with pytest.raises(rl.ConfigError, match=r"grpo.kl_coef.*switching it on or off"):
        tune.search("grpo", space=space, out=tmp_path / "study", options={"scheduler": "pbt"}, total_updates=4)
    assert not (tmp_path / "study").exists()
    assert set(make_setup("ppo", ppo, TuneConfig(scheduler="pbt")).space) == {
        "ppo.lr",
        "ppo.gae_lambda",
        "ppo.clip_range",
        "ppo.num_epochs",
        "ppo.entropy_coef",
    }, "a default space keeps what is live"


def test_a_member_that_fails_takes_over_from_a_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange that is planned with a lost member copies into it whatever its rank; if all are lost, the study ends."""
    on_threads(monkeypatch)
    with pytest.raises(rl.RunnelError, match="every member failed; the first: ValueError: the toy is broken"):
        tune.search(TOY, space=SPACE, out=tmp_path / "study", options=OPTIONS, trouble="fail", **FAST)
    assert study_of(tmp_path / "study")["status"] == "failed"
    ill = {**OPTIONS, "interval": 20, "search_seed": 3}  # draws members 0 and 3 ill
    study = tune.search(TOY, space={"rate": "0.2..0.4", "ill": "{true, false}"}, out=tmp_path / "ill", options=ill, **FAST)
    copies = study.read()["lineage"]
    assert [c["member"] for c in copies if c["before"]["ill"]] == [0, 3]
    assert {c["parent"] for c in copies} <= {1, 2}
    assert [t["state"] for t in study.trials] == ["complete"] * 4
    assert [[step for step, _ in t["steps"]] for t in study.trials] == [[40], [20, 40], [20, 40], [40]]
