"""A command that is refused changes nothing: not the run that it names, and nothing beside it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import runnel as rl
from runnel.cli.main import main
from runnel.track.folder import check_run_name

TINY: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 4,
    "vector.backend": "serial",
    "net.hidden": (4,),
    "total_updates": 3,
    "eval.episodes": 1,
    "track": (),
    "name": "run",
    "ppo.num_minibatches": 1,
}
TRAIN = "train ppo --out {out} --num-envs 2 --num-steps 4 --total-updates 2 --eval.episodes 0 --track --vector.backend serial"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "runs"
    rl.train("ppo", out=str(out), **TINY)
    return out


def contents(out: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(out.parent)): p.read_bytes() if p.is_file() else None for p in out.parent.rglob("*")}


@pytest.mark.parametrize(
    "line",
    [
        "resume {run}",
        "resume {run} --total-updates 9 --env Acrobot-v1",
        "resume {run} --total-updates 9 --name other",
        "resume {run} --total-updates 9 --track nosuch",
        "resume {run} --total-updates 9 --placement.trainers 2",
        "eval {run} --samples 4",
        "eval {run} --episodes 0",
        "eval {out}/nosuch",
        "record {run} --episodes 0",
        "export {run} {out}/exported --format hf",
        "scale {run} --actors 2",
        "stop {run}",
        TRAIN + " --name run --seeds 0",
        TRAIN + " --name ../x",
        TRAIN + " --name run --env Nope-v0",
        TRAIN + " --name run --track nosuch",
        TRAIN + " --name run --init-from {out}/nosuch",
        TRAIN + " --name run --init-from {run} --net.hidden 7",
        "tune ppo --out {out}/study --search nonsense",
        "tune ppo --out {out} --name ../x --search ppo.clip_range=0.1..0.3",
        "tune ppo --out {out} --search ppo.clip_range=0.1..0.3",
        "pipeline rlhf --out {out}/stages --total-updates 0",
    ],
)
def test_a_refused_command_changes_nothing(line: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(out)
    words = [word.format(out=out, run=out / "run") for word in line.split()]
    try:
        code = main(words)
    except SystemExit as error:  # the parser's own refusal
        code = int(error.code or 0)
    assert code != 0
    assert "Traceback" not in capsys.readouterr().err
    assert contents(out) == before


@pytest.mark.parametrize(
    "line",
    [
        "resume {run} --total-updates 9 --launcher ray",
        TRAIN + " --name run --launcher ray",
        TRAIN + " --name run --launcher ray --dry-run",
        "tune ppo --out {out} --name study --on ray --search ppo.clip_range=0.1..0.3 --total-updates 2",
    ],
)
def test_without_ray_nothing_is_made(
    line: str, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("runnel.run.launchers.ray", "runnel.tune.ray"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    before = contents(out)
    assert main([word.format(out=out, run=out / "run") for word in line.split()]) == 2
    assert "needs Ray: pip install 'runnel[ray]'" in capsys.readouterr().err
    assert contents(out) == before


@pytest.mark.parametrize("name", ["../x", "a/b", "a\\b", "/tmp/x", ".", "..", ".x", " ", " a", "a\n", "a\x00b", "x" * 201])
def test_a_name_is_that_of_one_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(rl.ConfigError, match="name = "):
        check_run_name(name)
    with pytest.raises(rl.ConfigError, match="name = "):
        rl.train("ppo", out=str(tmp_path / "runs"), **{**TINY, "name": name})
    assert list(tmp_path.iterdir()) == []


def test_seeds_keep_the_name_that_is_given(tmp_path: Path) -> None:
    line = TRAIN.format(out=tmp_path) + " --name mine --seed 4 --seeds 2 --ppo.num-minibatches 1 --net.hidden 4"
    assert main(line.split()) == 0
    assert {p.name for p in tmp_path.iterdir() if p.is_dir()} >= {"mine-4", "mine-5"}


def test_a_budget_that_is_rounded_up_much_is_warned_of(tmp_path: Path) -> None:
    settings = {k: v for k, v in TINY.items() if k != "total_updates"}
    with pytest.warns(UserWarning, match=r"total_steps = 5 comes to 8: an update takes 8, 1 x 2 x 4 \(segments, env"):
        run = rl.train("ppo", out=str(tmp_path), **settings, total_steps=5)
    assert run.steps == 8
    assert [e["level"] for e in run.rows("event") if "comes to 8" in e["text"]] == ["warning"]


@pytest.mark.parametrize(("asked", "level"), [(23, "info"), (24, None)])
def test_a_budget_that_is_rounded_up_a_little_is_told(asked: int, level: str | None, tmp_path: Path, recwarn: Any) -> None:
    settings = {k: v for k, v in TINY.items() if k != "total_updates"}
    run = rl.train("ppo", out=str(tmp_path), **settings, total_steps=asked)
    assert run.steps == 24
    assert [e["level"] for e in run.rows("event") if "comes to" in e["text"]] == ([level] if level else [])
    assert not [w for w in recwarn if "comes to" in str(w.message)]


def test_a_replay_run_comes_to_what_was_told(tmp_path: Path) -> None:
    tiny = {k: v for k, v in TINY.items() if k not in ("total_updates", "ppo.num_minibatches")}
    own = {"min_fill": 16, "update_ratio": 0.05, "dqn.batch_size": 8, "total_steps": 50}
    with pytest.warns(UserWarning, match="total_steps = 50 comes to 56") as told:
        run = rl.train("dqn", out=str(tmp_path), **tiny, **own)
    assert len([w for w in told if "comes to" in str(w.message)]) == 1
    assert run.steps == 56
