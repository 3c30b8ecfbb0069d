"""Processes that are killed or frozen: the run goes on without a person, accounts add up, and nothing is trained on twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from made_data import CARTPOLE
from test_faults import descendants, last_row, newest

import runnel as rl
from runnel.run.launchers.guard import children
from runnel.run.launchers.guard import descendants as all_descendants
from runnel.track.folder import RunFolder

TINY: dict[str, Any] = {
    "env": "CartPole-v1",
    "launcher": "local",
    "num_actors": 2,
    "num_envs": 2,
    "num_steps": 8,
    "vector": {"backend": "serial"},
    "total_updates": 60,
    "track": (),
    "eval": {"episodes": 0},
    "checkpoint": {"every": 10},
    "name": "run",
}
PPO = {"ppo": {"num_minibatches": 1, "num_epochs": 1}}


def processes() -> dict[str, int]:
    """The processes of our run, by what they are called: the groups, and the one that forks them."""
    found = {}
    for pid in descendants():
        with suppress(FileNotFoundError, ProcessLookupError):
            found[Path(f"/proc/{pid}/comm").read_text().strip()] = pid
    return found


def once(at: int, what: Callable[[], None]) -> Callable[[dict[str, Any]], None]:
    """A callback that does something at the first update from version `at` on."""
    done: list[int] = []

    def on_update(row: dict[str, Any]) -> None:
        if row["version"] >= at and not done:
            done.append(row["version"])
            what()

    return on_update


def kill(group: str, how: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    return lambda: os.kill(processes()[group], how)


def check_run(run: rl.Run, *, updates: int = 60) -> dict[str, Any]:
    """It finished, every version was trained once, the accounts add up; returns the account."""
    assert (run.status, run.version) == ("finished", updates)
    assert [r["version"] for r in run.rows()] == list(range(1, updates + 1))
    used = [i for r in run.rows() for ids in r["sample_ids"].values() for i in ids]
    assert len(used) == len(set(used)), "a sample was trained on twice"
    account: dict[str, Any] = last_row(run.path)["streams"]["trajectories"]
    gone = sum(account["cancelled"].values()) + sum(account["dropped"].values())
    assert account["dispatched"] == account["consumed"] + gone + account["in_flight"]
    assert not descendants()
    return account


def told(run: rl.Run) -> str:
    return "\n".join(r["text"] for r in run.rows("event"))


@pytest.mark.parametrize("mode", ["sync", "window"])
def test_a_killed_actor_is_started_again(mode: str, tmp_path: Path) -> None:
    run = rl.train("ppo", out=str(tmp_path), staleness={"mode": mode}, on_update=once(15, kill("actor-1")), **TINY, **PPO)
    check_run(run)
    assert "worker 'actor-1' was killed by signal SIGKILL" in told(run)
    assert run.rows()[-1]["metrics"]["faults/worker_lost"] == 1.0
    if mode == "sync":  # the others wait for it; in a window the run may end before it is back
        assert "worker 'actor-1' is back after" in told(run)


def test_a_killed_policy_worker_is_started_again_and_asked_again(tmp_path: Path) -> None:
    settings = {**TINY, **PPO, "placement": {"policy_workers": 1}}
    run = rl.train("ppo", out=str(tmp_path), on_update=once(15, kill("policy-0")), **settings)
    check_run(run)
    assert "worker 'policy-0' is back after" in told(run)


def test_a_frozen_actor_is_replaced(tmp_path: Path) -> None:
    settings = {**TINY, **PPO, "placement": {"stage_timeout_s": 3.0}}
    run = rl.train("ppo", out=str(tmp_path), on_update=once(15, kill("actor-0", signal.SIGSTOP)), **settings)
    check_run(run)
    assert "worker 'actor-0' has sent no heartbeat" in told(run)


@pytest.mark.parametrize("at", [5, 25])
def test_a_killed_trainer_resumes_from_its_checkpoint_without_a_person(at: int, tmp_path: Path) -> None:
    """At version 5 there is no checkpoint yet: it starts over."""
    run = rl.train("ppo", out=str(tmp_path), on_update=once(at, kill("trainer")), **TINY, **PPO)
    check_run(run)
    assert "worker 'trainer' was killed by signal SIGKILL" in told(run)
    assert "the run is back after" in told(run)
    assert newest(run.path)["epoch"] == 1


def test_sigterm_to_all_processes_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    """As `timeout`, systemd and schedulers send it: it is the launching process that acts on it."""

    def everyone() -> None:
        for pid in (*all_descendants(children(os.getpid())), os.getpid()):
            os.kill(pid, signal.SIGTERM)

    settings = {**TINY, **PPO, "vector": {"backend": "processes"}, "total_updates": 1_000_000, "checkpoint": {"every": 0}}
    run = rl.train("ppo", out=str(tmp_path), on_update=once(15, everyone), **settings)
    assert run.status == "stopped"
    assert newest(run.path)["version"] == run.version >= 15
    assert "lost" not in told(run)


def test_a_replay_run_survives_its_buffer_and_an_actor(tmp_path: Path) -> None:
    settings = {**TINY, "total_updates": 200, "log_every": 1, "min_fill": 64, "update_ratio": 0.25, "dqn": {"batch_size": 16}}
    settings |= {"num_steps": 1, "placement": {"groups": ("buffer",)}, "checkpoint": {"every": 40}}
    both = [once(50, kill("actor-0")), once(110, kill("buffer"))]
    run = rl.train("dqn", out=str(tmp_path), on_update=lambda row: [f(row) for f in both] and None, **settings)
    assert (run.status, run.version) == ("finished", 200)
    assert [r["version"] for r in run.rows()] == list(range(1, 201))
    assert "the run is back after" in told(run)


def test_who_dies_too_often_ends_the_run(tmp_path: Path) -> None:
    settings = {**TINY, **PPO, "env": f"{Path(__file__).parent / 'fault_envs.py'}:Dies", "placement": {"max_restarts": 1}}
    with pytest.raises(rl.core.WorkerFailure, match="killed by signal SIGKILL"):
        rl.train("ppo", out=str(tmp_path), **settings)


def test_a_trainer_that_waits_gets_more_actors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator is slow and the update is small, so one actor keeps nobody busy; there is room for three."""
    monkeypatch.setattr("runnel.run.balance.PERIOD_S", 2.0)
    folder, seen = RunFolder(tmp_path / "run"), list[int]()

    def on_update(row: dict[str, Any]) -> None:
        seen.append(len({"actor-0", "actor-1", "actor-2"} & processes().keys()))
        if seen[-1] == 3 and seen.count(3) == 1:
            folder.add_order({"op": "stop"})

    settings = {**TINY, "env": f"{Path(__file__).parent / 'uneven_envs.py'}:UnevenGoal", "num_actors": 1}
    settings |= {"total_updates": 10_000, "checkpoint": {"every": 0}, "placement": {"max_actors": 3}}
    settings |= {"staleness": {"mode": "window", "max_lag": 4, "balance": "auto"}}
    run = rl.train("appo", out=str(tmp_path), on_update=on_update, **settings)
    assert (seen[0], seen[-1]) == (1, 3)
    whys = [row for row in run.rows("event") if row["text"].startswith("staleness.balance: the trainer waits")]
    assert [row["numbers"] for row in whys[:2]] == [{"actor": 2}, {"actor": 3}]
    assert "scaled to 3 actor workers" in told(run)


def test_a_run_replans_from_its_own_stages(tmp_path: Path) -> None:
    """One actor of a slow simulator keeps nobody busy: the run predicts, starts more, and says what came."""
    folder, seen = RunFolder(tmp_path / "run"), list[int]()

    def plans() -> list[dict[str, Any]]:
        return [row for row in folder.read_rows()[0] if row.get("what") == "plan" and "reached" in row]

    def on_update(row: dict[str, Any]) -> None:
        seen.append(len({"actor-0", "actor-1", "actor-2"} & processes().keys()))
        if row["version"] % 20 == 0 and (len(found := plans()) > 5 or any(p["workers"]["actor"] > 1 for p in found)):
            folder.add_order({"op": "stop"})

    settings = {**TINY, "env": "runnel.envs.toy:StepTime", "env_kwargs": {"step_ms": 4.0}, "num_actors": 1}
    settings |= {"total_updates": 100_000, "checkpoint": {"every": 0}, "compiled": "off"}
    settings |= {"placement": {"max_actors": 3, "replan_s": 4.0}, "staleness": {"mode": "window", "max_lag": 4}}
    run = rl.train("appo", out=str(tmp_path), on_update=on_update, **settings)
    before = next(p for p in plans() if p["next_workers"] != p["workers"])
    after = next(p for p in plans() if p["workers"] != {"actor": 1})
    assert before["workers"] == {"actor": 1}
    assert before["next_predicted"] >= 1.1 * before["reached"]
    assert after["workers"] == before["next_workers"] == {"actor": max(seen)}
    assert after["predicted"] == before["next_predicted"]
    assert after["reached"] > before["reached"]
    assert f"scaled to {max(seen)} actor workers" in told(run)
    assert "Predicted and reached rates" in folder.report.read_text()
    assert not descendants()


def test_actors_come_and_go_while_the_run_goes_on(tmp_path: Path) -> None:
    """`runnel scale` asks through the run's folder."""
    folder = RunFolder(tmp_path / "run")
    seen: set[int] = set()

    def on_update(row: dict[str, Any]) -> None:
        seen.add(len({"actor-0", "actor-1", "actor-2", "actor-3"} & processes().keys()))
        if row["version"] == 10:
            folder.add_order({"op": "scale", "numbers": {"actor": 4}})
        if 4 in seen and not told_to_shrink and folder.metrics.read_text().count("has joined after") == 2:
            told_to_shrink.append(row["version"])
            folder.add_order({"op": "scale", "numbers": {"actor": 1}})
        if 1 in seen:  # a process is gone before the supervisor knows of it, which it does at its next look
            gone_since.append(time.monotonic())
            written = [r for r in folder.read_rows()[0] if "idle" in r.get("time", {})]
            if actors_in(written[-1]) == ["actor-0"] or gone_since[-1] - gone_since[0] > 30:
                folder.add_order({"op": "stop"})

    def actors_in(row: dict[str, Any]) -> list[str]:
        return [name for name in row["time"]["idle"] if name.startswith("actor")]

    told_to_shrink: list[int] = []
    gone_since: list[float] = []
    settings = {**TINY, **PPO, "total_updates": 100_000, "checkpoint": {"every": 200}}
    settings |= {"placement": {"max_actors": 4}, "staleness": {"mode": "window", "max_lag": 4}}
    run = rl.train("ppo", out=str(tmp_path), on_update=on_update, **settings)
    assert run.status == "stopped"
    assert {2, 4, 1} <= seen
    assert "is back" not in told(run), "nobody was lost: those that were asked for have joined"
    assert actors_in(run.rows()[-1]) == ["actor-0"], "who has left waits for nothing"
    account = last_row(run.path)["streams"]["trajectories"]
    gone = sum(account["cancelled"].values()) + sum(account["dropped"].values())
    assert account["dispatched"] == account["consumed"] + gone + account["in_flight"]
    assert rl.resume(run.path, total_updates=run.version + 5).status == "finished"


def test_a_killed_reader_of_a_data_set_loses_nothing(tmp_path: Path) -> None:
    """It has no state: batch k is drawn from seed and k. So the run gives what one that nobody killed gives in one process."""
    settings: dict[str, Any] = {"data": CARTPOLE, "total_updates": 60, "bc": {"batch_size": 16}, "log_every": 1}
    settings |= {name: TINY[name] for name in ("env", "vector", "track", "eval", "checkpoint")}
    broken = rl.train("bc", out=str(tmp_path / "a"), launcher="local", on_update=once(20, kill("offline-0")), **settings)
    assert broken.status == "finished"
    assert "worker 'offline-0' was killed by signal SIGKILL" in told(broken)
    whole = rl.train("bc", out=str(tmp_path / "b"), **settings)
    losses = [[row["metrics"]["loss/imitation"] for row in run.rows()] for run in (broken, whole)]
    assert len(losses[0]) == 60
    assert losses[0] == losses[1]
