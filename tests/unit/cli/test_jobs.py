"""A run as a job: listed, followed, scaled and stopped through its folder."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

import runnel as rl
from runnel.cli.jobs import entrypoint, rows_of
from runnel.cli.main import main
from runnel.core.errors import ConfigError
from runnel.track.folder import RunFolder

TINY = {"num_envs": 2, "num_steps": 8, "vector": {"backend": "serial"}, "track": (), "eval": {"episodes": 0}, "name": "run"}


def train(tmp_path: Path, **settings: object) -> rl.Run:
    return rl.train("ppo", out=str(tmp_path), ppo={"num_minibatches": 1, "num_epochs": 1}, **{**TINY, **settings})


def test_the_command_of_a_job_runs_on_its_cluster():
    assert entrypoint(["train", "ppo"]).endswith("runnel train ppo --launcher ray --cluster.address auto")
    assert "--launcher local --cluster.address auto" in entrypoint(["train", "ppo", "--launcher", "local"])
    assert "'a b'" in entrypoint(["train", "ppo", "--name", "a b"], python="python3")
    with pytest.raises(ConfigError, match="give a command to run"):
        entrypoint(["ps"])


def test_ps_shows_what_runs_do(tmp_path, capsys):
    assert main(["ps", str(tmp_path)]) == 0
    assert "no runs below" in capsys.readouterr().out
    train(tmp_path, total_updates=4)
    killed = RunFolder(tmp_path / "killed")
    killed.path.mkdir()
    killed.info.write_text(json.dumps({"command": "runnel train x"}))
    assert main(["ps", str(tmp_path)]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines[str(tmp_path / "run")].startswith("finished")
    assert "100%" in lines[str(tmp_path / "run")]
    assert lines[str(tmp_path / "killed")].startswith("killed")


@pytest.mark.parametrize("launcher", ["inproc", "local"])
def test_a_run_stops_when_it_is_told_to(launcher, tmp_path, capsys):
    folder = RunFolder(tmp_path / "run")
    told: list[int] = []

    def on_update(row: dict[str, int]) -> None:
        if row["version"] == 3:
            told.append(main(["stop", str(folder.path)]))

    run = train(tmp_path, total_updates=1_000_000, launcher=launcher, on_update=on_update)
    assert (told, run.status) == ([0], "interrupted")
    assert main(["stop", str(folder.path)]) == 2
    assert "no process is training it" in capsys.readouterr().err
    assert main(["logs", str(folder.path)]) == 0
    assert "stopped by order" in capsys.readouterr().out


def test_a_checkpoint_can_be_asked_for(tmp_path):
    folder = RunFolder(tmp_path / "run")
    made: list[int] = []

    def on_update(row: dict[str, int]) -> None:
        if row["version"] == 3:
            folder.add_order({"op": "checkpoint"})
            folder.add_order({"op": "unheard of"})
            folder.add_order({"op": "scale"})
            folder.add_order({"op": "scale", "numbers": {"actor": "many"}})
        if made:
            folder.add_order({"op": "stop"})

    train(
        tmp_path,
        total_updates=1_000_000,
        checkpoint={"every": 0},
        on_update=on_update,
        on_checkpoint=lambda row: made.append(row["version"]),
    )
    assert len(made) == 2, "the one that was asked for, and the last"


def test_scale_says_what_there_is_room_for(tmp_path, capsys):
    codes: list[int] = []

    def on_update(row: dict[str, int]) -> None:
        if row["version"] == 2:
            codes.append(main(["scale", str(tmp_path / "run"), "--actors", "3"]))
            codes.append(main(["scale", str(tmp_path / "run")]))

    train(tmp_path, total_updates=4, on_update=on_update)
    assert codes == [2, 2]
    told = capsys.readouterr().err
    assert "from 1 to 1; start the run with --placement.max-actors N" in told
    assert "--actors N or --policy-workers N" in told


def test_attach_shows_a_run_until_it_ends(tmp_path, capsys):
    """Another process trains; here it is a thread, which holds the folder all the same."""
    thread = threading.Thread(target=train, args=(tmp_path,), kwargs={"total_updates": 60})
    thread.start()
    folder = RunFolder(tmp_path / "run")
    while not folder.metrics.exists() or not folder.info.exists():
        assert thread.is_alive()
    assert main(["attach", str(folder.path)]) == 0
    thread.join()
    assert "60 of 60 updates" in capsys.readouterr().out
    assert [r["kind"] for r in rows_of(folder, follow=False)][-1] == "end"
