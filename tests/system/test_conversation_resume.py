"""A run of conversations that is stopped in the middle of them and resumed is, bit for bit, the run that was never stopped."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tiny_slices import content

import runnel as rl

TINY: dict[str, Any] = {
    "total_updates": 7,
    "num_prompts": 2,
    "group_size": 3,
    "max_turns": 3,
    "max_context": 160,
    "max_tokens": 6,
    "lm": {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "inner": 32},
    "learner": {"lr": 3e-3, "warmup_updates": 1},
    "warmup_updates": 0,
    "eval": {"every": 3, "episodes": 4},
    "placement": {"threads": 1},
    "name": "run",
    "seed": 3,
    "track": (),
}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "rows are rewritten, states are saved": (
        "Inline",
        {"talk": {"history": "template"}, "staleness": {"mode": "window", "max_lag": 2}, "checkpoint": {"every": 1}},
    ),
    "in threads, played again": (
        "World",
        {"deterministic": True, "staleness": {"mode": "one_step"}, "checkpoint": {"every": 2}},
    ),
}


class Killed(BaseException):
    """Nothing in a run expects it, as nothing expects a kill."""


@pytest.mark.parametrize("form", FORMS)
def test_a_run_that_is_killed_and_resumed_has_the_weights_of_one_that_was_not(form: str, tmp_path: Path) -> None:
    env, more = FORMS[form]
    settings = {"chat": f"{Path(__file__).with_name('echo_world.py')}:{env}", **TINY, **more}
    rl.train("grpo", out=str(tmp_path / "whole"), **settings)
    expected = content(tmp_path / "whole" / "run")
    chance, total = random.Random(form), TINY["total_updates"]
    run = tmp_path / "broken" / "run"
    kills = sorted(chance.sample(range(3, total), 2))

    def kill(event: rl.Event) -> None:
        if kills and event["version"] == kills[0]:
            kills.pop(0)
            raise Killed

    with pytest.raises(Killed):
        rl.train("grpo", out=str(run.parent), on_update=kill, **settings)
    with pytest.raises(Killed):
        rl.resume(run, on_update=kill)
    rl.resume(run, on_update=kill)
    rows, params = content(run)
    assert params == expected[1]
    assert rows == expected[0]
