"""The contract of a reward function, as a check that its author can run."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def check_reward(
    fn: Callable[..., Any],
    *,
    prompts: Sequence[str] = ("a prompt", "another"),
    completions: Sequence[str] = ("a completion", ""),
    columns: Mapping[str, Sequence[Any]] | None = None,
    channels: Sequence[str] = ("reward",),
) -> None:
    """Raise `AssertionError` with a reason if `fn(prompts, completions, **columns)` is not a reward function.

    It must give one finite number (or a number for each of `channels`, or None for "no verdict") for each completion, the same
    when asked again, leave its arguments as they are, and survive empty and odd completions.

    >>> check_reward(lambda prompts, completions, **columns: [float(len(c)) for c in completions])
    """
    odd = ["", " ", "\n", "\ufffd", "a" * 1000, *completions]
    odd_prompts = [prompts[i % len(prompts)] for i in range(len(odd))]
    odd_columns = {k: [v[i % len(v)] for i in range(len(odd))] for k, v in (columns or {}).items()}
    _check_values(_call(fn, odd_prompts, odd, odd_columns), len(odd), channels)
    given = (list(prompts), list(completions))
    first = _call(fn, *given, dict(columns or {}))
    assert given == (list(prompts), list(completions)), "a reward function must not change its arguments"
    _check_values(first, len(completions), channels)
    assert list(first) == list(_call(fn, *given, dict(columns or {}))), (
        "a reward function must answer the same when asked again"
    )


def _call(fn: Callable[..., Any], prompts: list[str], completions: list[str], columns: Mapping[str, Any]) -> Sequence[Any]:
    answer = fn(prompts, completions, **columns)

    async def wait() -> Any:
        return await answer

    values = asyncio.run(wait()) if inspect.isawaitable(answer) else answer
    assert isinstance(values, Sequence), f"a reward function returns a list, not {type(values).__name__}"
    return values


def _check_values(values: Sequence[Any], count: int, channels: Sequence[str]) -> None:
    assert len(values) == count, f"{len(values)} rewards for {count} completions; return one for each"
    for i, value in enumerate(values):
        if value is None:
            continue
        named = value if isinstance(value, Mapping) else {channels[0]: value}
        assert set(named) == set(channels), f"reward {i} has the channels {sorted(named)} instead of {sorted(channels)}"
        for channel, number in named.items():
            assert isinstance(number, int | float), f"reward {i}, {channel}: {number!r} is not a number"
            assert math.isfinite(number), f"reward {i}, {channel} is {number}"
