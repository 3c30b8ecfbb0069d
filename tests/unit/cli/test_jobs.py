"""A run as a job: listed, followed, scaled and stopped through its folder."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import runnel as rl
from runnel.board.library import Library
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


def test_ps_finds_runs_in_folders_below_as_the_board_does(tmp_path, capsys):
    for name, tags in (("one", []), ("deep/er/two", []), ("study/trials/0000", ["tuning"])):
        folder = RunFolder(tmp_path / name)
        folder.path.mkdir(parents=True)
        folder.info.write_text(json.dumps({"command": "runnel train x"}))
        folder.config.write_text(json.dumps({"tags": tags}))
    library = Library(tmp_path, cache=tmp_path / "cache")
    library.refresh()
    found = {str(tmp_path / key) for key in library.runs}
    library.close()
    assert main(["ps", str(tmp_path), "--trials"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == found
    assert main(["ps", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert {line.split()[0] for line in said.out.splitlines()} == found - {str(tmp_path / "study/trials/0000")}
    assert "trials of tuning studies that are not shown: 1 (--trials shows them)" in said.err


@pytest.mark.parametrize("launcher", ["inproc", "local"])
def test_a_run_stops_when_it_is_told_to(launcher, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("runnel.run.session.ORDERS_S", 0.0)
    folder = RunFolder(tmp_path / "run")
    told: list[int] = []

    def on_update(row: dict[str, int]) -> None:
        if row["version"] == 3:
            told.append(main(["stop", str(folder.path)]))

    run = train(tmp_path, total_updates=1_000_000, launcher=launcher, on_update=on_update)
    assert (told, run.status) == ([0], "stopped")
    assert main(["stop", str(folder.path)]) == 2
    assert "no process is training it" in capsys.readouterr().err
    assert main(["logs", str(folder.path)]) == 0
    assert "stopped by order" in capsys.readouterr().out


class JobServer:
    """Ray's job client, with one job."""

    def __init__(self, logs: str) -> None:
        self.logs, self.stopped, self.submitted = logs, list[str](), dict[str, Any]()

    def __call__(self, address: str) -> JobServer:
        return self

    def get_job_logs(self, job: str) -> str:
        return self.logs

    def stop_job(self, job: str) -> None:
        self.stopped.append(job)

    def submit_job(self, **given: Any) -> str:
        self.submitted = given
        return "raysubmit_1"


def test_a_job_is_stopped_through_its_folder(tmp_path, capsys, monkeypatch):
    """Ray would kill it 3 s after its signal, in the middle of a checkpoint."""
    monkeypatch.setattr("runnel.run.session.ORDERS_S", 0.0)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    told: list[int] = []

    def on_update(row: dict[str, int]) -> None:
        if row["version"] == 3:
            server = JobServer("started\n" + capsys.readouterr().out)
            monkeypatch.setattr("runnel.cli.jobs._client", server)
            told.append(main(["stop", "raysubmit_1"]))
            assert server.stopped == []

    run = train(tmp_path, total_updates=1_000_000, on_update=on_update)
    assert (told, run.status) == ([0], "stopped")
    elsewhere = JobServer(f"run folder: {tmp_path / 'nosuch'}\n")
    monkeypatch.setattr("runnel.cli.jobs._client", elsewhere)
    assert main(["stop", "raysubmit_1"]) == 0
    assert elsewhere.stopped == ["raysubmit_1"]
    assert "cannot be seen from here" in capsys.readouterr().err


def test_a_job_has_time_for_its_last_checkpoint(tmp_path, monkeypatch):
    server = JobServer("")
    monkeypatch.setattr("runnel.cli.jobs._client", server)
    assert main(["submit", "train", "ppo"]) == 0
    assert int(server.submitted["runtime_env"]["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]) >= 600


def test_who_lacks_the_job_client_is_told_what_to_install(capsys, monkeypatch):
    pytest.importorskip("ray")

    def client(address: str) -> None:
        raise RuntimeError("The Ray jobs CLI & SDK require the ray[default] installation: `pip install 'ray[default]'`")

    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", client)
    assert main(["stop", "raysubmit_1"]) == 2
    assert "pip install 'runnel[jobs]'" in capsys.readouterr().err


def test_a_checkpoint_can_be_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr("runnel.run.session.ORDERS_S", 0.0)
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


def test_scale_says_what_it_asked_for(tmp_path, capsys):
    folder = RunFolder.create(tmp_path, "run")
    folder.info.write_text("{}")
    folder.write_config({"num_actors": 2, "placement": {"max_actors": 4, "policy_workers": 1, "max_policy_workers": 0}})
    with folder.held():
        assert main(["scale", str(folder.path), "--actors", "4", "--policy-workers", "1"]) == 0
    assert "asked for 4 actors and 1 policy worker; the run says when" in capsys.readouterr().out
    assert folder.read_orders(0)[0] == [{"op": "scale", "numbers": {"actor": 4, "policy": 1}}]


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


def test_a_setting_is_given_one_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["set", str(tmp_path), "ppo.lr=1e-4", "ppo.lr=1e-3"]) == 2
    assert "ppo.lr = 0.001: is given twice, and was 0.0001 before" in capsys.readouterr().err
