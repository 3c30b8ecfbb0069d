from __future__ import annotations

import pytest

from runnel.core.errors import ConfigError
from runnel.core.schedule import at, parse


@pytest.mark.parametrize(
    ("schedule", "progress", "value"),
    [
        (3, 0.7, 3.0),
        (0.25, 0.0, 0.25),
        ("0.25", 1.0, 0.25),
        (" 1e-3 ", 0.5, 1e-3),
        ("linear(1, 0)", 0.0, 1.0),
        ("linear(1, 0)", 1.0, 0.0),
        ("linear(2, 4)", 0.25, 2.5),
        ("linear(1,0.1,0.5)", 0.25, 0.55),
        ("linear(1, 0.1, 0.5)", 0.5, 0.1),
        ("linear(1, 0.1, 0.5)", 0.9, 0.1),
        ("linear(1, 0)", -0.5, 1.0),
        ("linear(1, 0)", 1.5, 0.0),
    ],
)
def test_values(schedule: str | float, progress: float, value: float) -> None:
    assert at(schedule, progress) == pytest.approx(value, abs=1e-12)


def test_parse() -> None:
    assert parse("linear(3e-4, 0, 0.5)") == (3e-4, 0.0, 0.5)
    assert parse(2) == (2.0, 2.0, 1.0)
    assert parse("7") == (7.0, 7.0, 1.0)


WRONG = ["", "fast", "linear", "linear(1)", "linear()", "linear(a, b)", "cosine(1, 0)", "linear(1,2,0.5,3)", "linear(1,2"]


@pytest.mark.parametrize("schedule", WRONG)
def test_what_is_no_schedule_names_the_field_and_the_forms(schedule: str) -> None:
    with pytest.raises(ConfigError, match=r"ppo\.lr.*linear\(start, end, share\)") as error:
        parse(schedule, "ppo.lr")
    assert error.value.field == "ppo.lr"


@pytest.mark.parametrize("share", ["0", "-0.5", "1.5"])
def test_a_share_outside_of_its_range_is_refused(share: str) -> None:
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        parse(f"linear(1, 0, {share})")
