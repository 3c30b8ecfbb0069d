"""Deadlines follow progress: who shows that work comes back is not hung, and what is said of who hangs names the setting."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from test_recovery_from_checkpoint import ScriptedHost, ScriptedProcess, local, trained

from runnel.core.clock import ManualClock
from runnel.core.contracts.learning import SingleProcess
from runnel.core.errors import DeadlockError, WorkerFailure
from runnel.core.framing import Message
from runnel.core.worker import Worker, num_progressed
from runnel.envs.vector.processes import ProcessVector
from runnel.envs.vector.serial import SerialVector, look_at
from runnel.nets.optim import Adam
from runnel.run.launchers import supervisor as module
from runnel.run.launchers.deadlines import FIRST_TIMES, Deadlines
from runnel.run.launchers.heartbeat import Heartbeat
from runnel.run.launchers.supervisor import Supervisor


# -------------------------------------------------------------------------------------------------------------- heartbeat
class Slow(gym.Env):  # type: ignore[misc]
    """Each step and each reset takes `before`."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, before: Any) -> None:
        self._before = before

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._before()
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._before()
        return np.zeros(2, np.float32), 1.0, False, False, {}


def test_the_age_of_a_stage_counts_from_the_last_environment_that_came_back() -> None:
    clock, ages = ManualClock(), list[float]()
    worker, heart = Worker("actor-0", clock), Heartbeat(clock)
    heart.workers = [worker]

    def ten_seconds() -> None:
        heart.look()
        for _ in range(20):  # beats come more often than steps
            clock.advance(0.5)
            ages.append(heart.look()["stages"]["actor-0"][1])

    with worker.timer.stage("sample"):
        vector = SerialVector(lambda: Slow(ten_seconds), 16, seed=0)
        vector.reset()
        vector.step(torch.zeros(16, dtype=torch.int64))
        saved = vector.snapshot()
        vector.restore(saved)  # by playing the episodes again
    assert clock.now() > 480.0
    assert max(ages) == 10.0


def test_what_does_not_come_back_gets_older_and_a_process_that_stood_still_does_not() -> None:
    clock = ManualClock()
    worker, heart = Worker("trainer", clock), Heartbeat(clock)
    heart.workers = [worker]
    with worker.timer.stage("update"):
        for _ in range(8):
            clock.advance(0.25)
            found = heart.look()
        assert (found["stages"]["trainer"], found["progressed"], found["moved"]) == (["update", 2.0, True], False, False)
        clock.advance(60.0)  # the beat itself did not come through: all of the process was stopped
        assert heart.look()["stages"]["trainer"] == ["update", 0.0, True]
    assert heart.look()["moved"]


def test_a_checkpoint_that_grows_is_progress(tmp_path: Path) -> None:
    clock = ManualClock()
    heart = Heartbeat(clock)
    heart.writing = tmp_path
    heart.look()
    assert not heart.look()["moved"]
    (tmp_path / "params.safetensors").write_bytes(b"12345")
    assert heart.look()["moved"]
    heart.writing = tmp_path / "gone"
    heart.look()
    assert not heart.look()["moved"]


def test_steps_in_child_processes_and_optimiser_steps_are_progress() -> None:
    vector = ProcessVector(lambda: Slow(lambda: None), 2, spec=look_at(Slow(lambda: None), "slow"), seed=0, num_workers=1)
    try:
        vector.reset()
        before = num_progressed()
        vector.step(torch.zeros(2, dtype=torch.int64))
        assert num_progressed() == before + 2
    finally:
        vector.close()
    net = torch.nn.Linear(2, 1)
    adam, before = Adam(net.parameters(), lr=0.1), num_progressed()
    adam.step(net(torch.ones(2)).sum(), max_norm=None, collective=SingleProcess())
    assert num_progressed() == before + 1


def test_each_environment_of_a_worker_has_the_time_of_a_step_for_itself() -> None:
    """Six steps of 0.1 s in one process are not one of 0.6 s; one that hangs is found."""
    asleep = threading.Event()
    vector = ProcessVector(
        lambda: Slow(lambda: asleep.wait(0.1)),
        6,
        spec=look_at(Slow(lambda: None), "slow"),
        seed=0,
        num_workers=1,
        step_timeout_s=0.3,
    )
    try:
        vector.reset()
        vector.step(torch.zeros(6, dtype=torch.int64))
        assert vector.faults() == []
    finally:
        vector.close()


# --------------------------------------------------------------------------------------------------------------- verdicts
def test_a_rank_is_not_hung_while_another_one_makes_progress() -> None:
    limits, ranks = Deadlines(10.0), ["trainer", "trainer-1"]
    both = {"trainer": ("update", 11.0, False), "trainer-1": ("update", 3.0, False)}
    assert limits.hung(both, ranks) is None
    alone = {"trainer": ("idle", 11.0, False), "trainer-1": ("update", 11.0, False)}
    found = limits.hung(alone, ranks)
    assert found == ("trainer-1", "hung in stage 'update': nothing came back for 11.0 s (placement.stage_timeout_s = 10)")


def test_the_first_time_in_a_stage_may_compile() -> None:
    limits = Deadlines(10.0)
    assert limits.hung({"a": ("update", 10.0 * FIRST_TIMES, True)}, []) is None
    found = limits.hung({"a": ("update", 10.0 * FIRST_TIMES + 1, True)}, [])
    assert found is not None
    assert "placement.stage_timeout_s = 10; 25 s here" in found[1]


def test_ranks_that_all_wait_for_each_other_are_told() -> None:
    limits, ranks = Deadlines(10.0), ["trainer", "trainer-1"]
    assert limits.at_odds({"trainer": 50.0}, ranks) == "", "the other one is at work"
    assert limits.at_odds({"trainer": 50.0, "trainer-1": 2.0}, ranks) == ""
    assert "have waited for each other for 11.0 s" in limits.at_odds({"trainer": 50.0, "trainer-1": 11.0}, ranks)
    assert limits.at_odds({"trainer": 50.0}, ["trainer"]) == ""


# ------------------------------------------------------------------------------------------------------------- supervisor
class Timed(ScriptedHost):
    """Every wait takes a second, and every process says after it what `beat` gives for its group."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, beat: Any) -> None:
        super().__init__()
        self.now, self.beat = 1000.0, beat
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))

    def wait(self, handles: Collection[Any], timeout_s: float) -> None:
        self.now += 1.0
        for handle in handles:
            found = self.beat(handle)
            if found is not None:
                still = {"waits": {}, "held": {}, "cpu_s": 0.0, "progressed": False, "moved": False}
                handle.words.append({"op": "beat", **still, **found})


def late(handle: ScriptedProcess, op: str) -> None:
    """It does not answer that order."""
    send = handle.send

    def silent(message: dict[str, Any]) -> None:
        handle.orders.append(message) if message["op"] == op else send(message)

    handle.send = silent  # type: ignore[method-assign]


def supervised(path: Path, monkeypatch: pytest.MonkeyPatch, beat: Any) -> tuple[Supervisor, Timed]:
    host = Timed(monkeypatch, beat)
    supervisor = Supervisor(local(path), host, {})
    supervisor.start()
    return supervisor, host


def test_a_barrier_waits_for_an_evaluation_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = 0

    def beat(handle: ScriptedProcess) -> Any:
        nonlocal evaluated
        if handle.group != "trainer" or not handle.orders or handle.orders[-1]["op"] != "pause" or evaluated == 500:
            return {"stages": {}}
        evaluated += 1
        if evaluated == 500:
            handle.words.append({"op": "paused", "kept": {}, "next": {}})
        return {"stages": {"evaluator": ["evaluate", 1.0, False]}, "progressed": True, "moved": True}

    supervisor, host = supervised(tmp_path, monkeypatch, beat)
    late(next(s for s in host.handles if s.group == "trainer"), "pause")
    supervisor._pause(list(supervisor.children))
    assert evaluated == 500, "more than four times stage_timeout_s"


def test_who_does_not_answer_is_named_with_the_setting_and_an_advice_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, host = supervised(tmp_path, monkeypatch, lambda handle: {"stages": {}})
    late(next(s for s in host.handles if s.group == "trainer"), "pause")
    with pytest.raises(
        WorkerFailure, match=r"asked to be paused.*nothing for 120 s \(placement.stage_timeout_s = 120\)"
    ) as caught:
        supervisor._pause(list(supervisor.children))
    (note,) = caught.value.__notes__
    assert "no checkpoint was written yet, so start it again with --placement.stage-timeout-s 600" in note
    assert "runnel resume" not in note, "it could not work"


def test_a_process_that_makes_its_workers_for_long_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen environments that take half a minute each to be made."""
    host = Timed(monkeypatch, lambda handle: {"stages": {}, "moved": host.now % 30 == 0})
    start = host.start

    def slow(group: str, order: Message) -> ScriptedProcess:
        handle = start(group, order)
        handle.words = []
        return handle

    host.start = slow  # type: ignore[method-assign]
    supervisor = Supervisor(local(tmp_path), host, {})

    def ready() -> None:
        for handle in host.handles:
            handle.words.append({"op": "ready"})

    wait = host.wait

    def until(handles: Collection[Any], timeout_s: float) -> None:
        wait(handles, timeout_s)
        if host.now > 1480.0 and not any(handle.orders for handle in host.handles):
            ready()

    host.wait = until  # type: ignore[method-assign]
    supervisor.start()
    assert host.now > 1480.0


def test_rewards_that_are_waited_for_are_no_deadlock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = True
    supervisor, _ = supervised(
        tmp_path, monkeypatch, lambda handle: {"stages": {}, "progressed": waits and handle.group == "actor-0"}
    )

    def go_on() -> None:
        for _ in range(90):
            supervisor._listen(0.1)
            supervisor._check_moving()

    go_on()
    waits = False
    with pytest.raises(DeadlockError, match=r"nothing has moved for 61 s \(placement.stall_timeout_s = 60\)") as caught:
        go_on()
    assert "--placement.stall-timeout-s 300" in caught.value.__notes__[0]


def test_how_to_go_on_names_the_checkpoint_that_stands(tmp_path: Path) -> None:
    session = trained(tmp_path / "a run", 8)
    text = session.how_to_go_on("placement.stage_timeout_s")
    assert text == (
        "if it only needs longer, raise placement.stage_timeout_s: checkpoint 000000020 stands; go on with "
        f"`runnel resume '{tmp_path / 'a run'}' --placement.stage-timeout-s 600`"
    )
    assert session.how_to_go_on().startswith("checkpoint 000000020 stands; go on with `runnel resume ")
