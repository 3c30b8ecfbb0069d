"""Every number in a recipe's config has bounds, or is on the list of those without; what is outside is refused by name."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from runnel.core.bounds import Bound, bound_of, bounded, check_bounds, scheduled
from runnel.core.config import hints_of, override
from runnel.core.errors import ConfigError
from runnel.run.registry import RECIPES, load_recipe

UNBOUNDED = {
    "eval.stop_return": "a return may be any number",
    "eval.pass_reward": "a reward may be any number",
    "channels.weights": "a weight may be any finite number (test_channels_of_runs.py)",
    "lagrangian.limits": "a cost may be any finite number (test_ppo_lagrangian.py)",
    "filter.low": "a reward may be any number",
    "filter.high": "a reward may be any number",
}


def is_number(hint: Any) -> bool:
    return hint in (int, float) or any(is_number(part) for part in typing.get_args(hint))


def numbers(config: Any, path: str = "") -> Iterator[tuple[str, Any, Bound | None]]:
    """(dotted name, type, bound) of every field of a config that holds a number."""
    hints = hints_of(type(config))
    for f in dataclasses.fields(config):
        if dataclasses.is_dataclass(value := getattr(config, f.name)):
            yield from numbers(value, f"{path}{f.name}.")
        elif is_number(hints[f.name]):
            yield f"{path}{f.name}", hints[f.name], bound_of(type(config), f.name)


def outside(bound: Bound) -> Iterator[float]:
    """Numbers that a bound excludes, one beyond each end."""
    if bound.above is not None:
        yield bound.above
    if bound.at_least is not None:
        yield bound.at_least - 1
    if bound.below is not None:
        yield bound.below
    if bound.at_most is not None:
        yield bound.at_most + 1
    if bound.finite:
        yield math.inf


def has_int(hint: Any) -> bool:
    return hint is int or any(has_int(part) for part in typing.get_args(hint))


CASES = [
    pytest.param(recipe, name, hint, bound, id=f"{recipe}-{name}")
    for recipe in RECIPES
    for name, hint, bound in numbers(load_recipe(recipe).Config())
]


@pytest.mark.parametrize(("recipe", "name", "hint", "bound"), CASES)
def test_every_number_has_bounds_and_a_value_beyond_them_is_refused(recipe: str, name: str, hint: Any, bound: Bound) -> None:
    assert (bound is None) == (name in UNBOUNDED), f"{name}: give it `bounded(...)`, or say in UNBOUNDED why it has none"
    for value in outside(bound) if bound is not None else ():
        if value == math.inf and has_int(hint):
            continue
        shown = int(value) if has_int(hint) else float(value)
        given = (shown,) if "tuple" in str(hint) else shown
        with pytest.raises(ConfigError) as refused:
            override(load_recipe(recipe).Config(), {name: given}).check()
        assert refused.value.field == name
        assert refused.value.value == given


@dataclass(frozen=True)
class Inner:
    lr: float | str = scheduled(0.1)
    width: tuple[int, ...] = bounded((8,), at_least=1)
    clip: float | None = bounded(None, above=0, note="None is no clip")


@dataclass(frozen=True)
class Outer:
    inner: Inner = dataclasses.field(default_factory=Inner)
    share: float = bounded(0.5, at_least=0, below=1)


@dataclass(frozen=True)
class Variant(Outer):
    share: float = 0.25


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"inner.lr": -1.0}, "inner.lr = -1.0: must be at least 0, and finite"),
        ({"inner.lr": math.inf}, "inner.lr = inf: must be at least 0, and finite"),
        ({"inner.lr": "linear(1"}, "inner.lr = 'linear(1': write a number, linear(start, end) or linear(start, end, share)"),
        ({"inner.width": (4, 0)}, "inner.width = (4, 0): each must be at least 1"),
        ({"inner.clip": 0.0}, "inner.clip = 0.0: must be above 0, or None; None is no clip"),
        ({"share": 1.0}, "share = 1.0: must be in [0, 1)"),
    ],
)
@pytest.mark.parametrize("kind", [Outer, Variant])
def test_the_error_names_the_field_and_the_bound(kind: type[Outer], changes: dict[str, Any], text: str) -> None:
    check_bounds(kind())
    with pytest.raises(ConfigError) as refused:
        check_bounds(override(kind(), changes))
    assert str(refused.value) == text


def test_nan_is_in_no_bounds() -> None:
    assert not Bound(at_least=0).holds(math.nan)
    assert not Bound(finite=True).holds(math.nan)
    assert Bound(above=0).holds(math.inf)
