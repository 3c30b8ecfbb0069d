"""Whoever makes an engine closes it, once, in every placement, at the end of a run that finished or failed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import runnel as rl
from runnel.run.api import evaluate_run

RECIPE = '''
"""GRPO whose engines write down that they were made and closed; FAIL: they break after some steps."""

import os
from dataclasses import replace
from pathlib import Path

from runnel.recipes import grpo
from runnel.recipes.grpo import Config

FAIL = False
LOG = Path(__file__).with_name("engines.log")


def note(text):
    with LOG.open("a") as log:
        log.write(text + "\\n")


def noted(make):
    def build():
        engine = make()
        name = f"{os.getpid()} {id(engine)}"
        note(f"made {name}")
        close, step, steps = engine.close, engine.step, []

        def counted_step():
            steps.append(1)
            if FAIL and len(steps) > 4:
                raise RuntimeError("the engine broke")
            return step()

        def counted_close():
            note(f"closed {name}")
            close()

        engine.step, engine.close = counted_step, counted_close
        return engine

    return build


def build(config):
    e = grpo.build(config)
    inference = tuple(replace(s, make=noted(s.make)) for s in e.inference)
    return replace(e, inference=inference, evaluation=replace(e.evaluation, inferencer=noted(e.evaluation.inferencer)))
'''
SMALL: dict[str, Any] = {
    "total_updates": 2,
    "num_prompts": 2,
    "group_size": 2,
    "max_tokens": 4,
    "lm": {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "inner": 32},
    "eval": {"episodes": 2},
    "placement": {"threads": 1},
    "track": (),
}
REMOTE = {"launcher": "local", "placement": {"threads": 1, "policy_workers": 1}}
PLACEMENTS = [({}, 1, 2), ({"launcher": "local", "num_actors": 2}, 3, 3), (REMOTE, 2, 2)]
"""Settings, number of processes with engines, number of engines; one engine is the evaluator's."""


def write_recipe(folder: Path, *, fail: bool = False) -> str:
    path = folder / "noted.py"
    path.write_text(RECIPE.replace("FAIL = False", f"FAIL = {fail}"))
    return str(path)


def noted(folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Engines made and engines closed, by process and identity."""
    lines = [line.partition(" ") for line in (folder / "engines.log").read_text().splitlines()]
    made, closed = (Counter(name for what, _, name in lines if what == kind) for kind in ("made", "closed"))
    return made, closed


@pytest.mark.parametrize(("settings", "processes", "engines"), PLACEMENTS)
def test_engines_are_closed_once_when_a_run_ends(
    settings: dict[str, Any], processes: int, engines: int, tmp_path: Path
) -> None:
    run = rl.train(write_recipe(tmp_path), out=str(tmp_path / "runs"), **{**SMALL, **settings})
    made, closed = noted(tmp_path)
    assert closed == made
    assert set(closed.values()) == {1}
    assert (len({name.split()[0] for name in made}), len(made)) == (processes, engines)
    if not settings:
        evaluate_run(run.path, episodes=2)
        assert noted(tmp_path)[1].total() == engines + 1


@pytest.mark.parametrize(("settings", "processes", "engines"), PLACEMENTS)
def test_engines_are_closed_once_when_a_run_fails(
    settings: dict[str, Any], processes: int, engines: int, tmp_path: Path
) -> None:
    with pytest.raises((RuntimeError, rl.RunnelError), match="the engine broke"):
        rl.train(write_recipe(tmp_path, fail=True), out=str(tmp_path / "runs"), **{**SMALL, **settings})
    made, closed = noted(tmp_path)
    assert closed == made
    assert (set(closed.values()), len(made)) == ({1}, engines)
