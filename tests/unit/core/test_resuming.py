"""Which settings may change on resume: every setting of every recipe says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from runnel.core.errors import ConfigError
from runnel.core.resuming import OnResume, check_changes, may_change, rule_of, stays
from runnel.run import registry


@dataclass(frozen=True)
class Inner:
    on_resume: ClassVar[OnResume] = may_change("rate", then="counts at once") | stays("size", why="it is the network's")
    rate: float = 0.1
    size: int = 3


@dataclass(frozen=True)
class Outer:
    on_resume: ClassVar[OnResume] = stays("code", why="a run is of one task")
    code: str = "/a/my.py:Env"
    forgotten: int = 1
    inner: Inner = field(default_factory=Inner)


def settings_of(config: Any, path: str = "") -> Iterator[tuple[str, type, str]]:
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            yield from settings_of(value, f"{path}{f.name}.")
        else:
            yield f"{path}{f.name}", type(config), f.name


@pytest.mark.parametrize("recipe", registry.RECIPES)
def test_every_setting_says_whether_it_may_change(recipe: str) -> None:
    silent = [name for name, cls, own in settings_of(registry.load_recipe(recipe).Config()) if rule_of(cls, own) is None]
    assert silent == [], "name them in `on_resume` of their config class"


@pytest.mark.parametrize("recipe", registry.RECIPES)
def test_no_table_names_a_setting_that_there_is_not(recipe: str) -> None:
    classes = {cls for _, cls, _ in settings_of(registry.load_recipe(recipe).Config())}
    for cls in classes:
        known = {f.name for f in dataclasses.fields(cls)}
        named = {name for c in cls.__mro__ for name in vars(c).get("on_resume", {})}
        assert named <= known, f"{cls.__name__} names {named - known}"


def test_a_change_that_may_be_is_told_with_what_it_does() -> None:
    after = Outer(inner=Inner(rate=0.2))
    assert check_changes(Outer(), Outer(), "runs/x") == {}
    assert check_changes(Outer(), after, "runs/x") == {"inner.rate": (0.1, 0.2, "counts at once")}


@pytest.mark.parametrize(
    ("after", "name", "words"),
    [
        (Outer(inner=Inner(size=4)), "inner.size", ["inner.size = 4", "has 3", "it is the network's", "--init-from runs/x"]),
        (Outer(code="/a/my.py:Other"), "code", ["a run is of one task", "/a/my.py:Env"]),
        (Outer(code="my.py:Env"), "code", ["a run is of one task"]),
        (Outer(forgotten=2), "forgotten", ["on_resume"]),
    ],
)
def test_others_are_refused_with_the_field_both_values_and_the_fix(after: Outer, name: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_changes(Outer(), after, "runs/x")
    assert caught.value.field == name
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_code_that_lies_elsewhere_now_is_the_same() -> None:
    found = check_changes(Outer(), Outer(code="/b/c/my.py:Env"), "runs/x")
    assert found == {"code": ("/a/my.py:Env", "/b/c/my.py:Env", "is the same at another place")}
