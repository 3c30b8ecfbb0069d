import json
import subprocess
from datetime import datetime

import pytest

from runnel.core.errors import ConfigError
from runnel.track.folder import RunFolder, git_state, package_versions, read_rows, run_name

WHEN = datetime(2030, 1, 2, 3, 4, 5)


def test_create_never_reuses_a_folder(tmp_path):
    first = RunFolder.create(tmp_path / "runs", "ppo-x-1")
    second = RunFolder.create(tmp_path / "runs", "ppo-x-1")
    assert first.path.name == "ppo-x-1"
    assert second.path.name == "ppo-x-1-2"
    assert first.checkpoints.is_dir()


def test_run_name_is_safe_for_paths():
    name = run_name("my/recipes/own.py", "../envs/maze.py:Maze", seed=7, when=WHEN)
    assert name == "own-envs_maze.py_Maze-7-20300102-030405"
    assert "/" not in name


def test_run_info_round_trip(tmp_path):
    folder = RunFolder.create(tmp_path, "run")
    written = folder.write_run_info(recipe="ppo", command="runnel train ppo", seed=3, created=WHEN, graph="a -> b")
    read = folder.read_run_info()
    assert read == written == json.loads(folder.info.read_text())
    assert read["command"] == "runnel train ppo"
    assert read["created"] == "2030-01-02T03:04:05"
    assert read["versions"]["numpy"]
    assert set(read) >= {"recipe", "command", "seed", "created", "versions", "git", "python", "platform", "graph"}
    folder.write_config({"seed": 3, "text": "ä"})
    assert folder.read_config() == {"seed": 3, "text": "ä"}


def test_open_says_what_is_missing(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="holds no run"):
        RunFolder.open(tmp_path)
    (tmp_path / "run.json").write_text("{broken")
    with pytest.raises(ConfigError, match="damaged"):
        RunFolder.open(tmp_path).read_run_info()


def test_read_rows_skips_damage_and_says_so(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"a": 1}\n\x00\xff garbage\n[1, 2]\n\n{"a": 2}\n{"a": 3, "b')
    rows, problems = read_rows(path)
    assert rows == [{"a": 1}, {"a": 2}]
    assert [p.split(" is ")[0] for p in problems] == ["metrics.jsonl line 2", "metrics.jsonl line 3", "metrics.jsonl line 6"]
    assert "cut off" in problems[2]
    assert "cut off" not in problems[0]
    assert read_rows(tmp_path / "none.jsonl") == ([], ["none.jsonl is missing"])


def test_checkpoint_sizes(tmp_path):
    folder = RunFolder.create(tmp_path, "run")
    (folder.checkpoints / "000002").mkdir()
    (folder.checkpoints / "000002" / "state").write_bytes(b"x" * 30)
    (folder.checkpoints / "000001.safetensors").write_bytes(b"x" * 10)
    (folder.checkpoints / ".partial").write_bytes(b"x")
    assert folder.checkpoint_sizes() == [("000001.safetensors", 10), ("000002", 30)]


def test_versions_leave_out_what_is_not_installed():
    assert set(package_versions(["numpy", "no-such-package-here"])) == {"numpy"}


def test_git_state_inside_and_outside_of_a_repository(tmp_path):
    assert git_state(tmp_path) == {}
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), *identity, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    clean = git_state(tmp_path)
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "new.txt").write_text("x")
    assert git_state(tmp_path)["dirty"] is True
