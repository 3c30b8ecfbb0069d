"""One history of tasks for all actors: how many there are and where they run changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from letters_task import make_flat_task
from tiny_slices import SLICES, content

import runnel as rl
from runnel.core.state import State
from runnel.flow.workers.trainer import TrainerWorker
from runnel.run.checkpoint import Checkpoints, read_part

SETTINGS: dict[str, Any] = {
    **{k: v for k, v in SLICES["grpo"][1].items() if k not in ("warmup_updates", "demo_rows", "checkpoint")},
    "num_prompts": 4,
    "group_size": 3,
    "total_updates": 12,
    "filter": {"on": True, "low": 0.4, "high": 0.6, "momentum": 0.5, "retry_after": 20},
    "checkpoint": {"every": 4},
    "eval": {"episodes": 0},
    "track": (),
}


def train(tmp_path: Path, name: str, **settings: Any) -> rl.Run:
    return rl.train("grpo", out=str(tmp_path), name=name, **{**SETTINGS, **settings})


def history_of(run: rl.Run) -> State:
    newest = Checkpoints(Path(run.path) / "checkpoints").newest_whole()
    assert newest is not None
    return read_part(newest, "worker-trainer")["curriculum"]["prompts"]["table"]


def metrics_of(run: rl.Run) -> list[dict[str, float]]:
    return [row["metrics"] for row in content(Path(run.path))[0] if row["kind"] == "update"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> rl.Run:
    return train(tmp_path_factory.mktemp("alone"), "alone")


def test_the_filter_passes_over_prompts_outside_of_the_band(alone: rl.Run) -> None:
    found = history_of(alone)
    visits, mean = np.asarray(found["visits"]), np.asarray(found["mean"])
    assert visits.sum() == 4 * 12
    inside = (mean >= 0.4) & (mean <= 0.6)
    assert 0 < inside.sum() < len(mean)
    last = metrics_of(alone)[-1]
    assert (last["tasks/seen"], last["tasks/in_band"]) == (len(mean), pytest.approx(inside.mean()))


@pytest.mark.parametrize("launcher", ["inproc", "local"])
def test_one_actor_and_four_choose_the_same_tasks(launcher: str, alone: rl.Run, tmp_path: Path) -> None:
    four = train(tmp_path, "four", num_actors=4, launcher=launcher)
    ours, theirs = history_of(alone), history_of(four)
    for name in ("ids", "visits", "last", "mean"):
        assert np.array_equal(np.asarray(ours[name]), np.asarray(theirs[name])), name
    shown = ("reward/mean", "tasks/seen", "tasks/in_band")
    assert [[m[k] for k in shown] for m in metrics_of(alone)] == [[m[k] for k in shown] for m in metrics_of(four)]


@pytest.mark.parametrize(
    "more",
    [
        {"staleness": {"mode": "one_step"}, "num_actors": 2},
        {"staleness": {"mode": "window", "max_lag": 2}, "num_actors": 2},
        {"recipe": "dapo", "max_refills": 3},
    ],
    ids=["one step", "window", "refills"],
)
def test_a_stopped_run_goes_on_as_if_it_had_not(more: dict[str, Any], tmp_path: Path) -> None:
    recipe, settings = more.get("recipe", "grpo"), {**SETTINGS, **{k: v for k, v in more.items() if k != "recipe"}}
    settings |= {"task": f"{Path(__file__).with_name('letters_task.py')}:make_flat_task"} if recipe == "dapo" else {}
    whole = rl.train(recipe, out=str(tmp_path), name="whole", **settings)
    part = rl.train(recipe, out=str(tmp_path), name="part", on_update=lambda row: row["version"] < 6, **settings)
    rl.resume(part.path)
    assert content(Path(part.path)) == content(Path(whole.path))
    ours, theirs = history_of(whole), history_of(part)
    assert all(np.array_equal(np.asarray(ours[name]), np.asarray(theirs[name])) for name in ours)


def test_replaced_prompts_are_in_the_history(tmp_path: Path) -> None:
    """Half of the prompts have no signal: their groups never reach the learner, and are known to it all the same."""
    task = f"{Path(__file__).with_name('letters_task.py')}:make_flat_task"
    settings = {**SETTINGS, "task": task, "max_refills": 3, "filter": {"on": True, "low": 0.01, "high": 0.99}}
    run = rl.train("dapo", out=str(tmp_path), name="one", **settings)
    four = rl.train("dapo", out=str(tmp_path), name="four", num_actors=4, **settings)
    ours, theirs = history_of(run), history_of(four)
    assert all(np.array_equal(np.asarray(ours[name]), np.asarray(theirs[name])) for name in ours)
    flat = {e.id for e in make_flat_task().train if e.text < "b"}
    table = zip(*(np.asarray(ours[name]).tolist() for name in ("ids", "mean", "visits")), strict=True)
    played = {task_id: (mean, visits) for task_id, mean, visits in table if task_id in flat}
    assert played
    assert {mean for mean, _ in played.values()} == {1.0}
    rows = [json.loads(line) for line in (Path(run.path) / "metrics.jsonl").read_text().splitlines()]
    cancelled = rows[-1]["streams"]["rollouts"]["cancelled"]["no_signal"]
    assert cancelled == 3 * sum(visits for _, visits in played.values()), "every group that was replaced is known"
    assert max(visits for _, visits in played.values()) <= 2, "and its prompt is not played again"


def test_a_checkpoint_of_a_release_with_a_history_for_each_actor_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = TrainerWorker.snapshot
    with monkeypatch.context() as before:
        before.setattr(TrainerWorker, "snapshot", lambda self: {k: v for k, v in now(self).items() if k != "curriculum"})
        run = train(tmp_path, "old", total_updates=4)
    with pytest.raises(rl.RunnelError, match=r"a history of tasks of its own.*--init-from"):
        rl.resume(run.path, total_updates=8)


LETTERS = Path(__file__).with_name("letters_task.py")
SOURCES: dict[str, Any] = {
    **{k: v for k, v in SETTINGS.items() if k not in ("filter", "task")},
    "tasks": tuple(f"{name}={LETTERS}:make_{name}" for name in ("easy", "hopeless", "learnable")),
    "sources": {"pick": "ucb", "explore": 0.3},
    "total_updates": 20,
}


def sources_of(run: rl.Run) -> State:
    newest = Checkpoints(Path(run.path) / "checkpoints").newest_whole()
    assert newest is not None
    return read_part(newest, "worker-trainer")["curriculum"]["sources"]


def test_a_bandit_over_sources_finds_the_one_that_teaches(tmp_path: Path) -> None:
    run = rl.train("grpo", out=str(tmp_path), name="whole", **SOURCES)
    found = sources_of(run)
    assert sum(found["counts"].values()) == 4 * 20
    assert found["counts"]["learnable"] > 0.6 * 80
    shares = [metrics_of(run)[-1][f"tasks/share/{name}"] for name in ("easy", "hopeless", "learnable")]
    assert sum(shares) == pytest.approx(1.0)
    assert max(shares) == shares[2]
    part = rl.train("grpo", out=str(tmp_path), name="part", on_update=lambda row: row["version"] < 9, **SOURCES)
    rl.resume(part.path)
    assert content(Path(part.path)) == content(Path(run.path))
    four = rl.train("grpo", out=str(tmp_path), name="four", num_actors=4, **SOURCES)
    assert sources_of(four) == found


def test_bad_sources_are_refused_before_anything_starts(tmp_path: Path) -> None:
    for wrong, why in (
        ({"task": "reverse.jsonl"}, "task = .*tasks names the sources"),
        ({"tasks": ("easy=nowhere.jsonl", "b=reverse")}, "nowhere.jsonl"),
        ({"sources": {"pick": "even", "explore": 0.3}}, r"sources\.explore"),
        ({"tasks": ()}, r"sources\.(pick|explore)"),
    ):
        with pytest.raises(rl.RunnelError, match=why):
            rl.train("grpo", out=str(tmp_path), **{**SOURCES, **wrong})
    assert not list(tmp_path.iterdir())


def test_the_leading_rank_sees_what_all_ranks_train_on(tmp_path: Path) -> None:
    run = train(tmp_path, "ranks", total_updates=3, launcher="local", placement={"trainers": 2, "threads": 1})
    found = history_of(run)
    assert np.asarray(found["visits"]).sum() == 4 * 3
    assert max(np.asarray(found["last"])) == 4 * 3 - 1
