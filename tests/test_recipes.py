"""Every recipe runs two steps, both worlds on the same worker classes; a run folder holds what it promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_recipes import TWO_STEPS
from tiny_slices import SLICES, settings

import runnel as rl
from runnel.core.clock import ManualClock
from runnel.run import registry
from runnel.run.wiring import place, wire


@pytest.mark.parametrize("recipe", list(registry.RECIPES))
def test_every_recipe_runs_two_steps(recipe: str, tmp_path: Path) -> None:
    run = rl.train(recipe, out=str(tmp_path), eval={"every": 0, "episodes": 2, "stop_return": None}, **TWO_STEPS[recipe])
    assert run.status == "finished"
    assert run.version >= 2
    assert run.eval is not None
    assert run.eval["num"] == 2
    names = {p.name for p in run.path.iterdir()}
    assert {"config.json", "run.json", "metrics.jsonl", "samples.jsonl", "tensorboard", "checkpoints", "report.html"} <= names
    info = json.loads((run.path / "run.json").read_text())
    assert info["recipe"] == recipe
    assert {"command", "seed", "versions", "git", "graph"} <= set(info)
    assert rl.load(run.path) is not None


def workers(name: str) -> dict[str, type]:
    recipe, tiny = settings(name)
    loaded = registry.load_recipe(recipe)
    experiment = registry.build(recipe, registry.configure(loaded, tiny))
    group = wire(experiment, place(experiment), "main", clock=ManualClock())
    found = {w.kind: type(w) for w in group.workers}
    group.close()
    return found


def test_all_slices_are_wired_from_the_same_worker_classes() -> None:
    ppo, grpo, dqn = workers("ppo"), workers("grpo"), workers("dqn")
    assert set(ppo) == set(grpo) == {"actor", "trainer", "evaluator"}
    assert ppo == grpo
    assert {k: v for k, v in dqn.items() if k != "transform"} == ppo


@pytest.mark.parametrize("mode", ["sync", "one_step", "window"])
@pytest.mark.parametrize("name", list(SLICES))
def test_staleness_is_bounded_in_every_mode(name: str, mode: str, tmp_path: Path) -> None:
    """Three settings of one policy object; what is trained on is never older than the mode allows, and all adds up."""
    recipe, tiny = settings(name, staleness={"mode": mode, **({"max_lag": 3} if mode == "window" else {})})
    run = rl.train(recipe, out=str(tmp_path), **tiny)
    bound = {"sync": 0, "one_step": 1, "window": 3}[mode]
    assert all(r["metrics"]["staleness/max"] <= bound for r in run.rows())
    if mode == "one_step" and name != "dqn":
        assert max(r["metrics"]["staleness/max"] for r in run.rows()) == 1
    for account in run.rows("end")[-1]["streams"].values():
        settled = account["consumed"] + sum(account["dropped"].values()) + sum(account["cancelled"].values())
        assert account["dispatched"] == settled + account["in_flight"]


def test_the_update_ratio_of_replay_is_kept_exactly(tmp_path: Path) -> None:
    recipe, tiny = settings("dqn", update_ratio=0.25)
    run = rl.train(recipe, out=str(tmp_path), **tiny)
    for row in run.rows():
        inserted = row["streams"]["trajectories"]["steps"]
        assert row["version"] <= 1 + (inserted - 200) * 0.25
    due = 1 + (700 - 200) * 0.25
    assert due - 10 * 0.25 <= run.version <= due, "the run ends with its last segment, at most one segment's updates short"
