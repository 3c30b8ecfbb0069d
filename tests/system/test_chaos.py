"""Runs on three nodes whose processes, agents and nodes are lost, frozen or cut off.

They finish without a person, every version is trained once, accounts add up, and nothing is left. Longer, and at random:
`python -m benchmarks.faults.chaos`.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

import ray
from ray_cluster import Nodes, agent_of, is_alive, nothing_is_left, our_actors, wait_until

import runnel as rl
from runnel.run.ledger import Ledger

TINY: dict[str, Any] = {
    "env": "CartPole-v1",
    "launcher": "ray",
    "num_actors": 2,
    "num_envs": 2,
    "num_steps": 8,
    "vector": {"backend": "serial"},
    "track": (),
    "eval": {"episodes": 0},
    "checkpoint": {"every": 5},
    "name": "run",
    "ppo": {"num_minibatches": 1, "num_epochs": 1},
    "cluster": {"place": ("actor-*: 1 core, spread",)},
}


UPDATES = 20_000
"""More than any of these runs makes: they end when they have got over their last fault."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    made = Nodes(3)
    yield made
    made.close()


class Faults:
    """Does one fault after the other, each so many updates after the run has got over the one before; then ends the run.

    The run would not wait for a worker that is being started again: a count of updates alone could put the next fault, or the
    end, before that.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, every: int, *faults: Callable[[], None]) -> None:
        self._every, self._left, self._next = every, list(faults), every
        self._recoveries = -1
        """Those that were there when the last fault was done; -1 once the run has got over it."""
        self.recovered: list[str] = []
        """Who came back. Not read from the run's rows: those are cut back when a run goes back to a checkpoint."""
        self.pids: set[int] = set()
        tell = Ledger.recovered

        def note(ledger: Ledger, who: str, seconds: float) -> None:
            self.recovered.append(who)
            tell(ledger, who, seconds)

        monkeypatch.setattr(Ledger, "recovered", note)

    def __call__(self, row: dict[str, Any]) -> bool | None:
        if 0 <= self._recoveries < len(self.recovered):
            self._recoveries, self._next = -1, row["version"] + self._every
        if self._recoveries >= 0 or row["version"] < self._next:
            return None
        if not self._left:
            return False
        self.pids |= {place["pid"] for place in our_actors().values()}
        self._recoveries = len(self.recovered)
        self._left.pop(0)()
        return None

    def all_done(self) -> bool:
        return not self._left and self._recoveries < 0


def kill(group: str, how: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    return lambda: os.kill(our_actors()[group]["pid"], how)


def kill_agent() -> None:
    """Of a node without the trainer."""
    places = our_actors()
    node = next(p["node"] for p in places.values() if p["node"] != places["trainer"]["node"])
    ray.kill(agent_of(node))


def damage_newest(run: Path) -> None:
    """Turn a bit over in the newest checkpoint."""
    newest = sorted((run / "checkpoints").glob("0*"))[-1]
    path = max((p for p in newest.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def check_run(run: rl.Run) -> str:
    """It ended as asked, every version was trained once, the accounts add up, nothing is left; returns what it told."""
    assert run.status == "stopped"
    assert [row["version"] for row in run.rows()] == list(range(1, run.version + 1))
    used = [i for row in run.rows() for ids in row["sample_ids"].values() for i in ids]
    assert len(used) == len(set(used)), "a sample was trained on twice"
    for account in run.rows()[-1]["streams"].values():
        gone = sum(account["cancelled"].values()) + sum(account["dropped"].values())
        assert account["dispatched"] == account["consumed"] + gone + account["in_flight"]
    assert wait_until(nothing_is_left), "something of the run is left"
    return "\n".join(row["text"] for row in run.rows("event"))


def test_a_run_survives_its_actors_policy_worker_agent_trainer_and_a_node(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damage_and_kill_trainer() -> None:
        damage_newest(tmp_path / "run")
        kill("trainer")()

    lost: list[str] = []

    def lose_a_node() -> None:
        places = our_actors()
        lost.append(min({p["node"] for p in places.values()} & nodes.removable()))
        nodes.remove(lost[0])

    faults = Faults(monkeypatch, 12, kill("actor-1"), kill("policy-0"), kill_agent, damage_and_kill_trainer, lose_a_node)
    settings = {**TINY, "total_updates": UPDATES, "placement": {"policy_workers": 1}}
    run = rl.train("ppo", out=str(tmp_path), on_update=faults, **settings)
    assert faults.all_done()
    text = check_run(run)
    assert wait_until(lambda: not any(map(is_alive, faults.pids))), "a process of the run is left"
    assert "damaged" in text
    assert re.search(rf"node {lost[0][:8]} (is|was) lost|was lost with its node {lost[0][:8]}", text)
    assert re.search(r"(the run|worker '\S+') is back after \d+\.\d s", text)
    assert "the run" in faults.recovered
    assert any(who.startswith("worker ") for who in faults.recovered)
    nodes.add()


def test_a_run_survives_lost_and_late_messages_and_a_frozen_actor(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In window mode: segments, requests, parameters and their answers, each lost at times."""
    monkeypatch.setenv("RUNNEL_MESSAGE_FAULTS", "drop=0.02,delay=0.02")
    settings = {**TINY, "total_updates": UPDATES, "placement": {"policy_workers": 1, "stage_timeout_s": 4.0}}
    faults = Faults(monkeypatch, 8, kill("actor-0", signal.SIGSTOP))
    run = rl.train("ppo", out=str(tmp_path), on_update=faults, staleness={"mode": "window"}, **settings)
    assert faults.all_done()
    check_run(run)
