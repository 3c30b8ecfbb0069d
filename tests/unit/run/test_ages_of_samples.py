"""Every algorithm that learns from rollouts of a language model, on samples of older weights.

An algorithm whose equation has no place for who sampled is refused on them, before anything starts, with the reason.
All others are run on them here. (On samples of the newest weights, golden runs are of all.) That their losses and gradients are
then those of their equations is shown in `unit/llm/test_policy_papers.py` and `test_papers.py`, where policy and behaviour
differ at every token.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tiny_recipes import SMALL_LM

import runnel as rl
from runnel.core.errors import ConfigError
from runnel.graphs.prompts import PromptConfig
from runnel.llm.algorithms.base import PolicyAlgorithm
from runnel.llm.algorithms.oreal import OREAL
from runnel.llm.algorithms.reinforce import RLOO, Reinforce, ReMax
from runnel.run import registry

ALGORITHMS = sorted(
    name
    for name in registry.RECIPES
    if name != "make_pairs" and isinstance(registry.load_recipe(name).Config(), PromptConfig)  # that one trains nothing
)
FRESH = {"reinforce": Reinforce, "rloo": RLOO, "remax": ReMax, "oreal": OREAL}
"""Those whose equation is a gradient on samples of the very weights that it moves."""
TASK = f"{Path(__file__).parent / 'field_tasks.py'}:make_task"
TINY: dict[str, Any] = {
    **SMALL_LM,
    "task": TASK,
    "num_prompts": 2,
    "group_size": 3,
    "max_tokens": 3,
    "total_updates": 5,
    "warmup_updates": 0,
    "learner": {"lr": 1e-2, "warmup_updates": 1},
    "eval": {"episodes": 0},
    "checkpoint": {"every": 0},
    "track": (),
    "placement": {"threads": 1},
}
AGES = {"one_step": {1}, "window": {1, 2}}
"""By mode: the ages in versions that batches may have once the run has begun."""


@pytest.mark.parametrize("mode", list(AGES))
@pytest.mark.parametrize("recipe", ALGORITHMS)
def test_samples_of_an_age_are_trained_on_or_refused(recipe: str, mode: str, tmp_path: Path) -> None:
    settings = {**TINY, "staleness": {"mode": mode, **({"max_lag": 2} if mode == "window" else {})}}
    if recipe in FRESH:
        why = (
            rf"^staleness\.mode = '{mode}': {FRESH[recipe].__name__} has no importance weight for samples of older weights; use"
        )
        with pytest.raises(ConfigError, match=why):
            rl.train(recipe, out=str(tmp_path), **settings)
        assert not list(tmp_path.iterdir()), "nothing was started"
        return
    rows = [row["metrics"] for row in rl.train(recipe, seed=1, out=str(tmp_path), **settings).rows() if "version" in row]
    assert len(rows) == TINY["total_updates"]
    assert {row["staleness/max"] for row in rows[2:]} <= AGES[mode]
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert any(row.get("grad_norm", 0.0) > 0 for row in rows[2:]), "it is trained on"


def test_what_needs_fresh_samples_says_so() -> None:
    """The list of this file is what the algorithms themselves say."""
    found = {kind for kind in _kinds(PolicyAlgorithm) if kind.fresh_only}
    assert found == set(FRESH.values())


def _kinds(kind: type[PolicyAlgorithm]) -> set[type[PolicyAlgorithm]]:
    own = {each for each in kind.__subclasses__() if each.__module__.startswith("runnel.")}
    return own.union(*(_kinds(each) for each in own)) if own else own
