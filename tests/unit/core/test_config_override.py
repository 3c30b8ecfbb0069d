from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from runnel.core.config import override, to_data
from runnel.core.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    sizes: tuple[int, ...] = (64, 64)


@dataclass(frozen=True)
class Outer:
    seed: int = 1
    flag: bool = False
    name: str = "run"
    mode: Literal["sync", "window"] = "sync"
    limit: int | None = None
    schedule: str | float = 0.5
    pair: tuple[int, str] = (1, "a")
    kwargs: dict[str, Any] = field(default_factory=dict)
    anything: Any = None
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None


def test_nothing_changes_without_changes() -> None:
    assert override(Outer(), {}) == Outer()


def test_the_original_is_untouched() -> None:
    before = Outer()
    after = override(before, {"inner": {"rate": 0.5}, "seed": 3})
    assert before == Outer()
    assert after == dataclasses.replace(before, seed=3, inner=Inner(rate=0.5))


@pytest.mark.parametrize(
    "changes",
    [
        {"inner": {"rate": 2, "sizes": [8]}},
        {"inner.rate": 2, "inner.sizes": (8,)},
        {"inner": {"rate": 2}, "inner.sizes": [8]},
        {"inner.sizes": [8], "inner": {"rate": 2}},
        {"inner": Inner(2.0, (8,))},
    ],
)
def test_nested_and_dotted_say_the_same(changes: dict[str, Any]) -> None:
    assert override(Outer(), changes).inner == Inner(2.0, (8,))


def test_dashes_of_the_command_line_are_underscores() -> None:
    @dataclass(frozen=True)
    class Dashed:
        num_envs: int = 1

    assert override(Dashed(), {"num-envs": 4}).num_envs == 4


def test_whole_numbers_may_be_written_as_floats() -> None:
    found = override(Outer(), {"seed": 1e5, "limit": 2e3, "inner.sizes": [8.0]})
    assert (found.seed, found.limit, found.inner.sizes) == (100_000, 2_000, (8,))
    assert [type(n) for n in (found.seed, found.limit, *found.inner.sizes)] == [int, int, int]


@pytest.mark.parametrize(
    ("changes", "field_name", "fix"),
    [
        ({"sede": 2}, "sede", "did you mean seed?"),
        ({"inner": {"raet": 2}}, "inner.raet", "did you mean inner.rate?"),
        ({"inner.raet": 2}, "inner.raet", "did you mean inner.rate?"),
        ({"zzz": 2}, "zzz", "known fields: anything, flag, inner"),
    ],
)
def test_an_unknown_field_names_a_near_one(changes: dict[str, Any], field_name: str, fix: str) -> None:
    with pytest.raises(ConfigError) as error:
        override(Outer(), changes)
    assert error.value.field == field_name
    assert fix in error.value.fix


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"seed": "2"}, "seed = '2': expected int, got str"),
        ({"seed": 2.5}, "seed = 2.5: expected a whole number; it has a fraction, or is not finite"),
        ({"seed": float("inf")}, "seed = inf: expected a whole number; it has a fraction, or is not finite"),
        ({"limit": 2.5}, "limit = 2.5: expected a whole number; it has a fraction, or is not finite"),
        ({"seed": True}, "seed = True: expected int, got bool"),
        ({"flag": 1}, "flag = 1: expected bool, got int"),
        ({"name": None}, "name = None: expected str, got NoneType"),
        ({"mode": "asynchronous"}, "mode = 'asynchronous': expected one of 'sync', 'window'"),
        ({"limit": "many"}, "limit = 'many': expected int | None"),
        ({"limit": True}, "limit = True: expected int | None"),
        ({"schedule": [1]}, "schedule = [1]: expected str | float"),
        ({"kwargs": 3}, "kwargs = 3: expected a table of names and values"),
        ({"inner": 3}, "inner = 3: expected a table of Inner"),
        ({"inner.rate": True}, "inner.rate = True: expected float, got bool"),
        ({"inner.sizes": [8, "x"]}, "inner.sizes[1] = 'x': expected int, got str"),
        ({"inner.sizes": 8}, "inner.sizes = 8: expected tuple[int, ...], got int"),
    ],
)
def test_a_wrong_type_names_field_value_and_type(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        override(Outer(), changes)
    assert str(error.value) == text


def test_values_that_lose_nothing_are_taken() -> None:
    found = override(
        Outer(),
        {"limit": 3, "schedule": 1, "anything": [1], "mode": "window", "kwargs": {"a-b": 1}, "maybe": {"rate": 1}},
    )
    assert (found.limit, found.schedule, found.anything, found.mode) == (3, 1.0, [1], "window")
    assert isinstance(found.schedule, float)
    assert found.kwargs == {"a-b": 1}
    assert found.maybe == Inner(1.0)
    assert override(found, {"limit": None, "maybe": None, "schedule": "linear(1, 0)"}).limit is None


def test_a_pair_has_a_type_for_each_place() -> None:
    assert override(Outer(), {"pair": [2, "b"]}).pair == (2, "b")
    with pytest.raises(ConfigError, match=r"pair\[1\]"):
        override(Outer(), {"pair": [2, 3]})
    with pytest.raises(ConfigError, match="2 values"):
        override(Outer(), {"pair": [2]})


@pytest.mark.parametrize("order", [1, -1])
def test_setting_a_table_and_a_field_of_it_is_refused(order: int) -> None:
    changes = dict([("inner.rate", 3.0), ("inner", Inner())][::order])
    with pytest.raises(ConfigError, match="give one"):
        override(Outer(), changes)


def test_data_and_back() -> None:
    config = override(Outer(), {"inner.sizes": [1, 2], "kwargs": {"a": {"b": (1,)}}, "limit": 4, "maybe": {"rate": 9}})
    data = to_data(config)
    assert data["inner"] == {"rate": 0.1, "sizes": [1, 2]}
    assert data["pair"] == [1, "a"]
    again = override(Outer(), data)
    assert to_data(again) == data
    assert again.inner == config.inner
    assert again.maybe == config.maybe
