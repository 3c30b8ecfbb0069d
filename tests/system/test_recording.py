"""Videos of a run: recorded beside evaluations, on every launcher, and without any trace in what is learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_slices import content, settings

import runnel as rl
from runnel.cli.main import main

pytest.importorskip("av")


def index(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "episodes" / "index.jsonl").read_text().splitlines()]


def trained(out: Path, **extra: Any) -> Path:
    recipe, tiny = settings("ppo", **extra)
    return rl.train(recipe, out=str(out), **tiny).path


def test_a_run_learns_the_same_with_and_without_videos(tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain")
    recorded = trained(tmp_path / "recorded", record={"videos": 2, "max_steps": 12})
    assert content(recorded) == content(plain)
    rows = index(recorded)
    assert [(r["version"], r["episode"]) for r in rows] == [(v, i) for v in (4, 8, 12, 14) for i in (0, 1)]
    assert len({r["seed"] for r in rows}) == 8
    for row in rows:
        assert row["length"] == len(row["rewards"]) <= 12
        assert row["return"] == sum(row["rewards"])
        assert row["truncated"] == (row["length"] == 12)
        assert (row["fps"], row["seconds"]) == (50.0, pytest.approx((row["length"] + 1) / 50))
        assert (recorded / "episodes" / row["file"]).stat().st_size > 500


def test_children_send_their_videos_home_and_a_resume_records_on(tmp_path: Path) -> None:
    extra = {"launcher": "local", "record": {"videos": 1, "max_steps": 8, "every": 2}, "total_updates": 8}
    run = trained(tmp_path, **extra)
    assert [r["version"] for r in index(run)] == [4], "every second evaluation: of those at 4 and 8 the first"
    rl.resume(run, total_updates=13)
    assert [r["version"] for r in index(run)] == [4, 12]


@pytest.mark.parametrize(
    "settings_", [{"env": "runnel.envs.toy:Recall", "net": {"core": "gru"}}, {"env": "tensor:CartPole-v1"}]
)
def test_what_cannot_be_recorded_is_refused_before_it_starts(tmp_path: Path, settings_: dict[str, Any]) -> None:
    more = {"record": {"videos": 1}, "out": str(tmp_path), "total_updates": 1, "num_steps": 8, "num_envs": 2, "track": ()}
    if settings_["env"].startswith("tensor:"):
        run = rl.train("ppo", **{**settings_, **more, "ppo": {"num_minibatches": 1}, "eval": {"episodes": 2}})
        assert index(run.path)[0]["width"] > 200, "its Gymnasium twin is drawn"
        return
    with pytest.raises(rl.ConfigError, match=r"record.videos = 1: .*render_mode"):
        rl.train("ppo", **{**settings_, **more})
    with pytest.raises(rl.ConfigError, match=r"record.videos = 1: evaluations record"):
        rl.train("ppo", **{**more, "eval": {"episodes": 0}})
    with pytest.raises(rl.ConfigError, match=r"record.videos = 1: records episodes of environments"):
        rl.train("grpo", record={"videos": 1}, out=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_can_be_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path, total_updates=3)
    assert main(["record", str(run), "--episodes", "2", "--max-steps", "9"]) == 0
    told = capsys.readouterr().out.split()
    assert told == [str(run / "episodes" / f"v00000003-{i}.mp4") for i in (0, 1)]
    (more,) = rl.record(run, out=tmp_path / "films", seed=5, max_steps=9)
    assert more == tmp_path / "films" / "v00000003-0.mp4"
    rl.record(run, max_steps=9)
    assert [r["episode"] for r in index(run)] == [0, 1, 2]
    assert index(run)[0]["steps"] == 3 * 4 * 16
    assert main(["record", str(run), "--episodes", "0"]) == 2


def test_worlds_of_several_agents_that_draw_themselves_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hiders and seekers by one policy, beside training and afterwards; and a run from a GPU where there is none."""
    world = {"env": "tensor:HideAndSeek", "env_kwargs": {"lidar": 0, "num_layouts": 16}, "teams": ("hider_.*=h", "seeker_.*=s")}
    small = {"num_envs": 2, "num_steps": 4, "net": {"hidden": (4,), "entities": "mean"}, "track": (), "out": str(tmp_path)}
    ppo = {"num_epochs": 1, "num_minibatches": 1}
    more = {"total_updates": 1, "eval": {"episodes": 1, "max_steps": 6}, "record": {"videos": 1, "max_steps": 6}}
    run = rl.train("ippo", **world, **small, ppo=ppo, **more)
    (row,) = index(run.path)
    assert (row["length"], row["fps"], row["width"], row["truncated"]) == (6, 10.0, 480, True)
    assert (run.path / "episodes" / row["file"]).stat().st_size > 500
    saved = json.loads((run.path / "config.json").read_text())
    (run.path / "config.json").write_text(json.dumps({**saved, "device": "cuda:3"}))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.warns(UserWarning, match="was trained on cuda:3"):
        (file,) = rl.record(run.path, out=tmp_path / "films")
    (whole,) = (json.loads(line) for line in (file.parent / "index.jsonl").read_text().splitlines())
    assert whole["length"] == 80, "an episode to its end"
    assert whole["truncated"]
    assert whole["return"] == pytest.approx(0.0), "what hiders win seekers lose, but outside, where nobody was"


def test_worlds_that_do_not_draw_themselves_are_refused(tmp_path: Path) -> None:
    settings_ = {"env": "tensor:Spread", "total_updates": 1, "num_steps": 8, "num_envs": 2, "track": (), "out": str(tmp_path)}
    with pytest.raises(rl.ConfigError, match=r"record.videos = 1: .*only tensor worlds that draw themselves"):
        rl.train("ippo", **settings_, record={"videos": 1})
    assert list(tmp_path.iterdir()) == []
