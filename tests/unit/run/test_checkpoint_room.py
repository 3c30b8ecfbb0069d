"""Checkpoints and the disk: runs without any, disks that are too small, and disks that become full on the way."""

from __future__ import annotations

import errno
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes_run import experiment
from safetensors import SafetensorError
from test_recovery_from_checkpoint import session_of, told

import runnel as rl
from runnel.core.errors import CheckpointError, ConfigError, DiskFullError
from runnel.graphs.experiment import copies_at_once
from runnel.run import checkpoint as files
from runnel.run.api import evaluate_run
from runnel.run.checkpoint import Checkpoints, write_parts
from runnel.run.launchers import inproc
from runnel.run.registry import build, configure, load_recipe
from runnel.run.room import check_disk
from runnel.run.session import Session

Usage = namedtuple("Usage", "total used free")
TINY: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 8,
    "total_updates": 3,
    "track": (),
    "ppo": {"num_minibatches": 1, "num_epochs": 1, "normalise_obs": False},
    "eval": {"episodes": 1},
}


# ------------------------------------------------------------------------------------------------------------------ never
def test_a_run_that_never_saves_leaves_parameters_that_can_be_used_and_nothing_to_resume(tmp_path: Path) -> None:
    run = rl.train("ppo", out=str(tmp_path), **TINY, **{"checkpoint.every": "never"})
    (only,) = Checkpoints(run.path / "checkpoints").finished()
    assert sorted(p.name for p in only.iterdir()) == ["manifest.json", "params.safetensors"]
    assert rl.load(run.path).act([0.0] * 4) in (0, 1)
    assert len(evaluate_run(run.path, episodes=2).returns) == 2
    with pytest.raises(CheckpointError, match="holds parameters alone; start a new run from them with init_from"):
        rl.resume(run.path, total_updates=6)
    after = rl.train(
        "ppo",
        out=str(tmp_path),
        init_from=str(run.path),
        **{**TINY, "total_updates": 1, "ppo": {"lr": 0.0, "normalise_obs": False}},
    )
    kept = Checkpoints(run.path / "checkpoints").newest_params().params
    assert all(torch.equal(v, kept[k]) for k, v in Checkpoints(after.path / "checkpoints").newest_params().params.items())


def test_never_is_a_flag_and_a_number_is_too() -> None:
    recipe = load_recipe("ppo")
    assert configure(recipe, {"checkpoint.every": "never"}).checkpoint.whole is False
    assert configure(recipe, {"checkpoint.every": 0}).checkpoint.whole is True
    with pytest.raises(ConfigError, match=r"checkpoint.every = 'often'"):
        configure(recipe, {"checkpoint.every": "often"})


# ------------------------------------------------------------------------------------------------------------- full disks
def session(path: Path, every: int) -> Session:
    e = experiment()
    return session_of(replace(e, config=replace(e.config, checkpoint=replace(e.config.checkpoint, every=every))), path)


def break_disk(monkeypatch: pytest.MonkeyPatch, full: Any) -> None:
    """`full(path)` says which files find no room."""
    inner = files._write

    def write(path: Path, data: bytes) -> str:
        if full(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return inner(path, data)

    monkeypatch.setattr(files, "_write", write)


def test_a_full_disk_on_the_way_is_told_and_costs_one_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_disk(monkeypatch, lambda path: "000000016" in path.parent.name)
    s = session(tmp_path, 8)
    assert inproc.launch(s) == "finished"
    assert [p.name for p in s.checkpoints.finished()] == ["000000008", "000000020"]
    assert [p.name for p in s.checkpoints.folder.glob(".writing-*")] == []
    assert any("no checkpoint was written" in text and "GiB are left" in text for text in told(s))


def test_at_the_end_the_parameters_are_kept_where_the_whole_run_finds_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_disk(monkeypatch, lambda path: "000000020" in path.parent.name and path.name == "worker-trainer.json")
    s = session(tmp_path, 16)
    assert inproc.launch(s) == "finished"
    assert s.checkpoints.newest_params().version == 20
    assert any("has the parameters alone" in text for text in told(s))
    path, manifest, problems = s.checkpoints.newest()
    assert (path.name, manifest["whole"], len(problems)) == ("000000016", True, 1), "what can be resumed is still there"
    assert "holds parameters alone" in problems[0]


def test_a_disk_without_room_for_anything_ends_the_run_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_disk(monkeypatch, lambda path: "000000020" in path.parent.name)
    s = session(tmp_path, 16)
    with pytest.raises(DiskFullError, match=r"disk full at .* lower --checkpoint.keep, or use --checkpoint.every never"):
        inproc.launch(s)
    assert s.checkpoints.newest()[0].name == "000000016"


def test_what_safetensors_says_of_a_full_disk_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words on a file system of 1 MiB; other trouble stays what it is."""
    words = ["Error while serializing: I/O error: No space left on device (os error 28)", "Error while serializing: other"]

    def fail(tensors: Any, path: Path) -> None:
        raise SafetensorError(words.pop(0))

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    for kind in (DiskFullError, SafetensorError):
        with pytest.raises(kind):
            write_parts(tmp_path, {"params": {"w": torch.zeros(4)}})


# ------------------------------------------------------------------------------------------------------- before the start
LM = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "inner": 128, "max_positions": 64}
NUM = 262 * 64 + 64 + 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64)


@pytest.mark.parametrize(
    ("recipe", "settings", "each", "params"),
    [
        ("sft", {}, 16, 4),
        ("grpo", {"grpo.kl_coef": 0.1}, 20, 4),
        ("token_ppo", {"ppo.kl_coef": 0.0}, 28, 4),
        ("sft", {"learner.precision": "bfloat16"}, 14, 2),
    ],
)
def test_what_a_language_model_writes_is_counted_by_its_parameters(
    recipe: str, settings: dict[str, Any], each: int, params: int
) -> None:
    e = build(recipe, configure(load_recipe(recipe), {"lm": LM, **settings}))
    assert e.disk is not None
    need = e.disk()
    assert (need.each, need.params, need.once) == (each * NUM, params * NUM, 4 * NUM)


def test_a_disk_that_is_too_small_is_refused_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 30 * NUM
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 50, 0, free))
    out = tmp_path / "not" / "yet"
    settings = {"lm": LM, "total_updates": 100, "track": (), "eval.episodes": 0, "demo_rows": 2, "out": str(out)}
    reason = (
        r"out = .*: a checkpoint takes about 0.00 GiB, and up to 2 lie there at once, beside 0.00 GiB for .* are free there"
    )
    with pytest.raises(ConfigError, match=reason + "; use another --out, --checkpoint.every 0"):
        rl.train("sft", **settings)
    with pytest.raises(ConfigError, match=r"up to 4 lie there at once.* --checkpoint.keep 1, --checkpoint.every 0"):
        rl.train("sft", **settings, **{"checkpoint.every": 10})
    assert not out.exists()
    assert not out.parent.exists()
    recipe = load_recipe("sft")
    for enough in ({"checkpoint.every": 0}, {"checkpoint.every": "never"}, {"checkpoint.every": 100}):
        check_disk(build("sft", configure(recipe, {**settings, **enough})))
    check_disk(build("sft", configure(recipe, settings)), held=1 << 30)
    free = 7 * NUM
    with pytest.raises(ConfigError, match=r"the parameters and what is exported take about .* free some, or use another --out"):
        check_disk(build("sft", configure(recipe, {**settings, "checkpoint.every": "never"})))


def test_how_many_checkpoints_lie_side_by_side() -> None:
    def copies(**settings: Any) -> int:
        return copies_at_once(configure(load_recipe("ppo"), settings))

    assert copies(total_updates=100, checkpoint={"every": 50, "keep": 3}) == 2
    assert copies(total_updates=101, checkpoint={"every": 50, "keep": 3}) == 3
    assert copies(total_updates=1000, checkpoint={"every": 50, "keep": 3}) == 4
    assert copies(total_steps=1000, checkpoint={"every": 50, "keep": 1}) == 2
    assert copies(total_steps=1000, checkpoint={"every": 0}) == 1


@pytest.mark.parametrize(("keep", "copies"), [(1, 1), (3, 2)])
def test_replay_counts_as_often_as_there_are_copies(keep: int, copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each checkpoint: they share it."""
    settings = {"env": "CartPole-v1", "replay.capacity": 4096, "total_steps": 1 << 20, "checkpoint.keep": keep}
    e = build("dqn", configure(load_recipe("dqn"), settings))
    assert e.disk is not None
    assert 4096 * 16 <= e.disk().once / copies <= 2 * 4096 * 16
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 50, 0, 4096))
    with pytest.raises(ConfigError, match="for replay or the exported model"):
        check_disk(e)
