"""One recipe on every back end that plays the same episodes: the same rows and the same parameters, to the bit."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_slices import content

import runnel as rl
from runnel.envs.vector.gym_vector import GymVector
from runnel.envs.vector.serial import SerialVector

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))
from vector_cases import Walk, WalkVector

TINY: dict[str, Any] = {
    "num_envs": 4,
    "num_steps": 16,
    "net.hidden": (8,),
    "eval.episodes": 3,
    "track": (),
    "checkpoint.every": 0,
}
BUDGET: dict[str, dict[str, Any]] = {
    "ppo": {"total_updates": 3},
    "dqn": {"total_updates": 20, "min_fill": 64, "update_ratio": 0.2, "dqn.batch_size": 8, "replay.capacity": 256},
}
PROCESSES = [{"vector.backend": "processes", "vector.num_workers": n} for n in (1, 3)]


def trained(recipe: str, out: Path, env: Any, **settings: Any) -> Any:
    """Rows (without times) and parameters of a short run."""
    return content(rl.train(recipe, env=env, out=str(out), **{**TINY, **BUDGET[recipe], **settings}).path, by_arrival=False)


@pytest.mark.parametrize("recipe", list(BUDGET))
def test_a_whole_run_has_the_same_bits_on_every_back_end(recipe: str, tmp_path: Path) -> None:
    serial = trained(recipe, tmp_path / "serial", Walk, **{"vector.backend": "serial"})
    for i, backend in enumerate(PROCESSES):
        assert trained(recipe, tmp_path / f"processes-{i}", Walk, **backend) == serial
    assert trained(recipe, tmp_path / "auto", Walk) == serial
    own = trained(recipe, tmp_path / "gymnasium", WalkVector, **{"vector.backend": "gymnasium"})
    assert own[1] == serial[1]


def test_groups_of_a_ring_may_be_done_in_any_order(tmp_path: Path) -> None:
    serial = trained("ppo", tmp_path / "serial", Walk, num_env_groups=2, **{"vector.backend": "serial"})
    assert trained("ppo", tmp_path / "processes", Walk, num_env_groups=2, **PROCESSES[0]) == serial


def slowed(patch: pytest.MonkeyPatch, kind: type) -> None:
    """As a busy machine does: steps of one kind of vector take 2 ms longer."""
    send = kind.send  # type: ignore[attr-defined]
    patch.setattr(kind, "send", lambda self, actions: (time.sleep(0.002), send(self, actions))[1])


@pytest.mark.parametrize("num_envs", [16, 64])
def test_a_busy_machine_changes_nothing(num_envs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gymnasium's own vector of CartPole has random numbers of its own; where a stopwatch chose it, so did the load."""
    found = []
    for kind in (GymVector, SerialVector):
        with monkeypatch.context() as patch:
            slowed(patch, kind)
            found.append(trained("ppo", tmp_path / kind.__name__, "CartPole-v1", num_envs=num_envs, **{"eval.episodes": 0}))
    assert found[0] == found[1]


def test_a_run_says_what_steps_its_environments_and_keeps_it(tmp_path: Path) -> None:
    run = rl.train("ppo", env=Walk, out=str(tmp_path), **{**TINY, **BUDGET["ppo"], "eval.episodes": 0})
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    (text,) = [row["text"] for row in rows if row["kind"] == "event" and row["what"] == "note" and " x 4: " in row["text"]]
    assert text.endswith("Walk x 4: serial, as nothing is known of its cost (`runnel bench --backends` measures it)")
    assert json.loads((run.path / "config.json").read_text())["vector"]["backend"] == "serial"
