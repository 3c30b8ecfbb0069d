"""What users do to run folders: resume them twice at once, with other settings, on another launcher, or read them meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import runnel as rl
from runnel.nets.optim import Adam
from runnel.run.api import evaluate_run
from runnel.run.checkpoint import Checkpoints

TINY: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 8,
    "total_updates": 4,
    "track": (),
    "ppo": {"num_minibatches": 1, "num_epochs": 1},
    "eval": {"episodes": 0},
    "name": "run",
}


def contents(run: Path) -> dict[str, bytes]:
    """All files of a run but the log, in which processes may have printed something."""
    return {str(p.relative_to(run)): p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != "log.txt"}


def files(run: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (run / "metrics.jsonl", run / "config.json")}


def balanced(run: rl.Run) -> bool:
    accounts = run.rows("end")[-1]["streams"].values()
    return all(
        a["dispatched"] == a["consumed"] + sum(a["dropped"].values()) + sum(a["cancelled"].values()) + a["in_flight"]
        for a in accounts
    )


def test_a_run_that_is_being_trained_cannot_be_resumed_beside(tmp_path: Path) -> None:
    refused: list[str] = []

    def meddle(row: dict[str, Any]) -> None:
        with pytest.raises(rl.ConfigError, match="another process is training it") as caught:
            rl.resume(tmp_path / "run", total_updates=50)
        refused.append(str(caught.value))

    run = rl.train("ppo", out=str(tmp_path), on_checkpoint=meddle, **{**TINY, "checkpoint": {"every": 2}})
    assert refused
    assert [r["version"] for r in run.rows()] == [1, 2, 3, 4]
    assert rl.resume(run.path, total_updates=6).version == 6


def test_a_spent_budget_is_refused_before_the_folder_is_touched(tmp_path: Path) -> None:
    run = rl.train("ppo", out=str(tmp_path), **TINY)
    before = files(run.path)
    with pytest.raises(rl.ConfigError, match="spent its budget"):
        rl.resume(run.path)
    assert files(run.path) == before


OWN_ENV = """
from pathlib import Path
import gymnasium as gym
import numpy as np

class Mine(gym.Env):
    def __init__(self):
        self.size = int(Path(__file__).with_name("size.txt").read_text())
        self.observation_space = gym.spaces.Box(-1, 1, (self.size,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.size, np.float32), {}

    def step(self, action):
        return np.zeros(self.size, np.float32), 1.0, self.np_random.random() < 0.1, False, {}
"""


@pytest.mark.parametrize("launcher", ["inproc", "local"])
def test_code_that_no_longer_fits_the_checkpoint_leaves_the_run_as_it_was(launcher: str, tmp_path: Path) -> None:
    """The settings are the same, but what they name has changed: that shows only when the workers are set up."""
    (tmp_path / "mine.py").write_text(OWN_ENV)
    (tmp_path / "size.txt").write_text("3")
    run = rl.train("ppo", out=str(tmp_path), env=f"{tmp_path}/mine.py:Mine", launcher=launcher, **TINY)
    before = contents(run.path)
    (tmp_path / "size.txt").write_text("4")
    with pytest.raises((rl.core.CheckpointError, rl.core.WorkerFailure), match=r"is not what it was|size mismatch"):
        rl.resume(run.path, total_updates=8)
    assert contents(run.path) == before
    (tmp_path / "size.txt").write_text("3")
    assert rl.resume(run.path, total_updates=6).version == 6


@pytest.mark.parametrize("name", ["config.json", "run.json"])
def test_a_run_without_its_own_config_is_not_taken_for_one_of_the_defaults(name: str, tmp_path: Path) -> None:
    run = rl.train("ppo", out=str(tmp_path), **TINY)
    (run.path / name).unlink()
    for use in (rl.load, rl.resume, lambda path: evaluate_run(path, episodes=1)):
        with pytest.raises(rl.ConfigError, match=f"its {name} is missing"):
            use(run.path)


def test_a_run_changes_its_launcher_and_back(tmp_path: Path) -> None:
    run = rl.train("ppo", out=str(tmp_path), launcher="local", **TINY)
    run = rl.resume(run.path, launcher="inproc", total_updates=6)
    assert balanced(run)
    run = rl.resume(run.path, launcher="local", total_updates=8)
    assert run.version == 8
    assert balanced(run)


def test_a_stopped_run_goes_on_when_it_is_continued(tmp_path: Path) -> None:
    """Ctrl-Z and `fg`: all processes stood still for longer than the limits allow, and nobody is to blame."""
    limits = ["--placement.stage-timeout-s", "2", "--placement.stall-timeout-s", "2"]
    args = ["--launcher", "local", "--out", str(tmp_path), "--name", "run", "--total-updates", "100000", *limits]
    args += ["--eval.episodes", "0", "--track", "--compiled", "off"]  # compiling alone may take longer than the limits
    command = [sys.executable, "-m", "runnel", "train", "ppo", *args]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        metrics = tmp_path / "run" / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.stat().st_size > 1_000)
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(4)
        stopped_at = metrics.stat().st_size
        os.killpg(process.pid, signal.SIGCONT)
        wait_until(lambda: metrics.stat().st_size > stopped_at + 4_000)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_slow_start_is_not_a_stall(tmp_path: Path) -> None:
    """Processes take seconds to import torch; the clock of `stall_timeout_s` runs only once all have started."""
    run = rl.train("ppo", out=str(tmp_path), launcher="local", placement={"stall_timeout_s": 1.0}, **TINY)
    assert run.status == "finished"


def test_parameters_that_are_not_finite_are_neither_published_nor_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of the last minibatch is finite and its gradient is not: nothing later in the update would notice."""
    step = Adam._step_on_host

    def overflow(self: Adam, grad: torch.Tensor) -> None:
        step(self, grad * (float("nan") if self.num_steps == 2 else 1.0))

    monkeypatch.setattr(Adam, "_step_on_host", overflow)
    with pytest.raises(rl.core.NonFiniteError, match="params/"):
        rl.train("ppo", out=str(tmp_path), **{**TINY, "checkpoint": {"every": 1}})
    newest = Checkpoints(tmp_path / "run" / "checkpoints").newest_params()
    assert newest.version == 2
    assert all(torch.isfinite(x).all() for x in newest.params.values())


@pytest.mark.parametrize(
    "settings",
    [
        {"seed": -1},
        {"num_steps": 0},
        {"device": "mps"},
        {"env": ""},
        {"ppo.lr": float("nan")},
        {"ppo.lr": "linear(1e-3, -1)"},
        {"ppo.max_grad_norm": 0.0},
        {"ppo.clip_range": -0.2},
        {"placement.stage_timeout_s": float("nan")},
        {"init_from": "/nowhere"},
        {"out": __file__},
    ],
)
def test_settings_that_cannot_work_stop_before_a_folder_is_made(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(rl.ConfigError):
        rl.train("ppo", **{"out": str(tmp_path), **{k: v for k, v in TINY.items() if k != "ppo"}, **settings})
    assert list(tmp_path.iterdir()) == []


def test_numbers_and_answers_of_numpy_are_understood(tmp_path: Path) -> None:
    settings = {**TINY, "seed": np.int64(3), "total_updates": np.int32(50)}
    run = rl.train("ppo", out=str(tmp_path), on_update=lambda row: np.bool_(row["version"] < 2), **settings)
    assert (run.status, run.version) == ("stopped", 2)


def test_a_policy_loads_while_the_run_removes_old_checkpoints(tmp_path: Path) -> None:
    wrong: list[Exception] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            try:
                Checkpoints(tmp_path / "run" / "checkpoints").newest_params()
            except Exception as error:
                wrong.append(error)

    reader = threading.Thread(target=read)

    def begin(row: dict[str, Any]) -> None:
        if row["version"] == 1:
            reader.start()

    settings = {**TINY, "checkpoint": {"every": 1, "keep": 1}, "total_updates": 60}
    rl.train("ppo", out=str(tmp_path), on_checkpoint=begin, **settings)
    over.set()
    reader.join()
    assert wrong == []
