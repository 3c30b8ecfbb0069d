"""Workers that die, hang or raise; Ctrl-C; bad numbers. Each is named, the run ends with a checkpoint, nothing is left over."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import runnel as rl
from lent_fork_servers import LENDING

ENVS = Path(__file__).parent / "fault_envs.py"
TINY: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 8,
    "vector": {"backend": "serial"},
    "total_updates": 10_000,
    "track": (),
    "ppo": {"num_minibatches": 1, "num_epochs": 1},
    "eval": {"episodes": 0},
    "checkpoint": {"every": 0},
    "placement": {"max_restarts": 0},
    "name": "run",
}


def descendants() -> set[int]:
    """Processes of ours below this one, but for those that are lent to all tests."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    below, grown = {os.getpid()}, True
    while grown:
        new = {pid for pid, parent in parents.items() if parent in below} - below
        grown = bool(new)
        below |= new
    return {pid for pid in below - {os.getpid()} - LENDING.pids() if is_runnel(pid)}


def is_runnel(pid: int) -> bool:
    try:
        return b"runnel" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def shared_segments() -> set[str]:
    """Named shared memory of ours, and what of ours this process still maps. (Anonymous memory dies with its processes.)"""
    named = {p.name for p in Path("/dev/shm").glob("*runnel*")}
    return named | set(re.findall(r"memfd:runnel-\S+", Path("/proc/self/maps").read_text()))


@pytest.fixture(autouse=True)
def _nothing_is_left_over() -> Any:
    before = shared_segments()
    yield
    deadline = time.monotonic() + 10
    while descendants() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert descendants() == set()
    assert shared_segments() <= before


def newest(run: Path) -> dict[str, Any]:
    manifest = sorted((run / "checkpoints").glob("0*"))[-1] / "manifest.json"
    found: dict[str, Any] = json.loads(manifest.read_text())
    return found


def last_row(run: Path) -> dict[str, Any]:
    row: dict[str, Any] = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return row


@pytest.mark.parametrize(
    ("fault", "message"),
    [("Dies", "killed by signal SIGKILL"), ("Exits", "exited with code 7"), ("Raises", "the simulator lost its mind")],
)
def test_a_lost_actor_is_named_and_the_rest_is_saved(fault: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(rl.core.WorkerFailure, match=message) as caught:
        rl.train("ppo", env=f"{ENVS}:{fault}", launcher="local", out=str(tmp_path), **TINY)
    assert caught.value.worker == "actor-0"
    manifest = newest(tmp_path / "run")
    assert manifest["version"] > 0
    assert manifest["left_out"] == ["actor-0"]
    row = last_row(tmp_path / "run")
    account = row["streams"]["trajectories"]
    assert row["status"] == "failed"
    assert account["dispatched"] == account["consumed"] + sum(account["cancelled"].values()) + account["in_flight"]
    assert (tmp_path / "run" / "report.html").is_file()


def test_the_run_goes_on_after_a_lost_actor(tmp_path: Path) -> None:
    envs, own = Path(ENVS).read_text(), tmp_path / "mine.py"
    own.write_text(f"{envs}\n\nclass Mine(Dies): ...\n")
    with pytest.raises(rl.core.WorkerFailure):
        rl.train("ppo", env=f"{own}:Mine", launcher="local", out=str(tmp_path), **TINY)
    version = newest(tmp_path / "run")["version"]
    own.write_text(f"{envs}\n\nclass Mine(Base): ...\n")  # the user has mended it
    run = rl.resume(tmp_path / "run", total_updates=version + 5)
    assert (run.status, run.version) == ("finished", version + 5)


def test_a_hung_actor_is_named_with_its_stack_within_its_deadline(tmp_path: Path) -> None:
    settings = {**TINY, "placement": {"stage_timeout_s": 3.0, "max_restarts": 0}}
    start = time.monotonic()
    with pytest.raises(rl.core.WorkerFailure, match="hung in stage 'sample'") as caught:
        rl.train("ppo", env=f"{ENVS}:Hangs", launcher="local", out=str(tmp_path), **settings)
    assert caught.value.worker == "actor-0"
    assert "fault_envs.py" in str(caught.value), "the stack shows where it hangs"
    assert "placement.stage_timeout_s = 3" in str(caught.value)
    (advice,) = [note for note in caught.value.__notes__ if "runnel resume" in note]
    assert re.search(r"checkpoint 0+\d+ stands; go on with `runnel resume .*/run --placement.stage-timeout-s 15`", advice)
    assert time.monotonic() - start < 60
    assert newest(tmp_path / "run")["version"] > 0


def test_a_slow_actor_whose_steps_come_back_is_not_hung(tmp_path: Path) -> None:
    """One step of all its environments takes twice as long as a stage may go without a sign of life, the first time too."""
    settings = {**TINY, "total_updates": 1, "num_envs": 12, "num_steps": 1, "placement": {"stage_timeout_s": 2.0}}
    run = rl.train("ppo", env=f"{ENVS}:Slow", launcher="local", out=str(tmp_path), **settings)
    assert (run.status, run.version) == ("finished", 1)


def test_an_error_in_process_names_the_worker_and_saves_the_rest(tmp_path: Path) -> None:
    with pytest.raises(rl.core.DataError, match="Raises") as caught:
        rl.train("ppo", env=f"{ENVS}:Raises", out=str(tmp_path), **TINY)
    assert any("actor-0" in note for note in caught.value.__notes__)
    assert newest(tmp_path / "run")["left_out"] == ["actor-0"]


@pytest.mark.parametrize("launcher", ["inproc", "local"])
@pytest.mark.parametrize(("fault", "tensor"), [("nan_obs", "obs"), ("nan_reward", "rewards/env")])
def test_bad_numbers_stop_the_run_and_leave_the_last_good_checkpoint(
    fault: str, tensor: str, launcher: str, tmp_path: Path
) -> None:
    settings = {**TINY, "checkpoint": {"every": 1}, "env_kwargs": {"fault": fault, "at": 150}}
    with pytest.raises(rl.core.NonFiniteError) as caught:
        rl.train("ppo", env="runnel.envs.toy:BadEnv", launcher=launcher, out=str(tmp_path), **settings)
    assert caught.value.tensor == tensor
    assert caught.value.step > 0
    manifest = newest(tmp_path / "run")
    assert manifest["left_out"] == []
    assert last_row(tmp_path / "run")["status"] == "failed"


def test_an_infinite_loss_stops_the_run_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(rl.core.NonFiniteError, match="loss"):
        rl.train("ppo", out=str(tmp_path), **{**TINY, "ppo": {"num_minibatches": 1, "num_epochs": 3, "lr": 1e30}})


def start_program(out: Path, launcher: str) -> subprocess.Popen[bytes]:
    args = ["--launcher", launcher, "--out", str(out), "--name", "run", "--total-updates", "100000", "--track"]
    args += ["--num-steps", "8", "--ppo.num-epochs", "1", "--ppo.num-minibatches", "1", "--eval.episodes", "0"]
    process = subprocess.Popen([sys.executable, "-m", "runnel", "train", "ppo", *args], stdout=subprocess.DEVNULL)
    metrics, deadline = out / "run" / "metrics.jsonl", time.monotonic() + 90
    while not metrics.exists() or metrics.stat().st_size < 2_000:
        assert process.poll() is None, "the program ended by itself"
        assert time.monotonic() < deadline, "the run does not start"
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("launcher", ["inproc", "local"])
def test_ctrl_c_ends_cleanly_with_a_checkpoint_and_resumes(launcher: str, tmp_path: Path) -> None:
    process = start_program(tmp_path, launcher)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    run = tmp_path / "run"
    assert last_row(run)["status"] == "stopped"
    version = newest(run)["version"]
    assert version > 0
    resumed = rl.resume(run, total_updates=version + 2)
    assert resumed.version == version + 2


def test_children_die_with_a_killed_launcher(tmp_path: Path) -> None:
    process = start_program(tmp_path, "local")
    children = [pid for pid in descendants() if pid != process.pid]
    assert len(children) == 3, "the actor, the trainer, and the process that forked them"
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while any(is_runnel(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(is_runnel(pid) for pid in children)
