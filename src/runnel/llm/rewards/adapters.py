"""Reward functions of other systems: verl's `compute_score`. (TRL's signature is runnel's own.)"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from runnel.core.resolve import load_object

Verl = float | dict[str, Any]
"""What a score function of verl returns: a number, or a dict whose `score` is the reward."""
VerlScore = Callable[..., Verl | Awaitable[Verl]]


def verl_score(
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    compute_score: str | VerlScore,
    data_source: object = None,
    ground_truth: object = None,
    reward_model: Sequence[Mapping[str, object]] | None = None,
    extra_info: object = None,
    **columns: object,
) -> list[float | None]:
    """`compute_score(data_source, solution_str, ground_truth, extra_info)` for each completion, sync or async.

    The columns are those of verl's data: `ground_truth` is a column of its own or inside `reward_model`. If the function
    returns a dict, its `score` is the reward.
    """
    fn = load_object(compute_score, "reward.compute_score") if isinstance(compute_score, str) else compute_score
    truths = ground_truth if reward_model is None else [m["ground_truth"] for m in reward_model]
    results: list[Any] = [
        fn(data_source=_at(data_source, i), solution_str=text, ground_truth=_at(truths, i), extra_info=_at(extra_info, i))
        for i, text in enumerate(completions)
    ]
    if any(inspect.isawaitable(r) for r in results):
        results = asyncio.run(_gather(results))
    return [r["score"] if isinstance(r, dict) else r for r in results]


def _at(column: object, i: int) -> object:
    return column[i] if isinstance(column, list | tuple) else column


async def _gather(results: Sequence[Awaitable[Verl]]) -> list[Verl]:
    return list(await asyncio.gather(*results))
