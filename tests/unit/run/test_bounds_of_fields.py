"""No setting takes nonsense: a count below 0, and NaN, are refused by the name of their field before anything starts."""

from __future__ import annotations

import math
import typing
from typing import Any

import pytest
from field_runs import fields_of
from test_fields_of_environments import BASE as ON_ENVIRONMENTS
from test_fields_of_language_models import BASE as ON_LANGUAGE_MODELS

from runnel.core.config import override
from runnel.core.errors import ConfigError
from runnel.run import registry

RECIPES = {**ON_ENVIRONMENTS, **ON_LANGUAGE_MODELS}


def kinds(hint: Any) -> set[Any]:
    """The types that an annotation allows."""
    inner = typing.get_args(hint)
    return {hint} if not inner or typing.get_origin(hint) is typing.Literal else set().union(*map(kinds, inner))


def cases() -> list[tuple[str, str, Any]]:
    """Each numeric setting once, in the first recipe that has it from the class that declares it, with a value that nobody can
    mean."""
    found: dict[Any, tuple[str, str, Any]] = {}
    for recipe, settings in RECIPES.items():
        config = override(registry.load_recipe(recipe).Config(), settings)
        for name, owner, hint, _ in fields_of(config):
            known = kinds(hint)
            holder = next(c for c in owner.__mro__ if name.rpartition(".")[2] in vars(c).get("__annotations__", {}))
            if typing.get_origin(hint) is tuple or not known & {int, float}:
                continue
            found.setdefault((f"{holder.__module__}.{holder.__name__}", name), (recipe, name, -3 if int in known else math.nan))
    return list(found.values())


CASES = cases()


@pytest.mark.parametrize(("recipe", "name", "value"), CASES, ids=[f"{recipe}-{name}" for recipe, name, _ in CASES])
def test_a_number_that_nobody_can_mean_is_refused_by_name(recipe: str, name: str, value: Any) -> None:
    config = override(registry.load_recipe(recipe).Config(), RECIPES[recipe])
    with pytest.raises(ConfigError) as error:
        registry.build(recipe, override(config, {name: value}))
    assert error.value.field.rpartition(".")[2] == name.rpartition(".")[2]
    assert error.value.fix


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("grpo", {"lm.layers": -3}, "lm.layers = -3: must be at least 1"),
        ("grpo", {"lm.layers": 0}, "lm.layers = 0: must be at least 1"),
        ("grpo", {"lm.heads": 0}, "lm.heads = 0: must be at least 1"),
        ("grpo", {"lm.kv_heads": 0}, "lm.kv_heads = 0: must be at least 1"),
        ("grpo", {"lm.inner": 0}, "lm.inner = 0"),
        ("grpo", {"lm.width": 0}, "lm.width = 0"),
        ("grpo", {"learner.lora.rank": 2, "learner.lora.alpha": 0.0}, "learner.lora.alpha = 0.0: must be above 0"),
        ("token_ppo", {"ppo.value_clip": 0.0}, "ppo.value_clip = 0.0: must be above 0"),
        ("dqn", {"update_ratio": math.inf}, "update_ratio = inf: must be above 0, and finite"),
        ("dqn", {"replay.prioritised": True, "replay.alpha": -1.0}, "replay.alpha = -1.0: must be at least 0"),
        ("dqn", {"replay.n_step": 0}, "replay.n_step = 0: must be at least 1"),
        ("dqn", {"dqn.max_grad_norm": 0.0}, "dqn.max_grad_norm = 0.0: must be above 0"),
        ("sac", {"sac.target_entropy": math.inf}, "sac.target_entropy = inf: must be a finite number"),
        ("ppo", {"population": 3, "member": -4}, "member = -4: must be at least -1"),
        ("sft", {"demo_rows": 0}, "demo_rows = 0: must be at least 1"),
    ],
)
def test_what_ended_in_a_traceback_or_in_nothing_names_its_field(recipe: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        registry.build(recipe, override(registry.load_recipe(recipe).Config(), {**RECIPES[recipe], **settings}))
