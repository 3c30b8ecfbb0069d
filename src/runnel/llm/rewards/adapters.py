"""Reward functions of other systems: verl's `compute_score`. (TRL's signature is runnel's own.)"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from runnel.core.resolve import load_object
from runnel.llm.rewards.components import RewardFn

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

    verl's columns are taken as they are: `ground_truth` stands by itself or inside of `reward_model`. Of a dict of results,
    `score` is the reward.
    """
    fn = load_object(compute_score, "reward.compute_score") if isinstance(compute_score, str) else compute_score
    truths = ground_truth if reward_model is None else [m["ground_truth"] for m in reward_model]
    rows = [_at(column, i) for i in range(len(completions)) for column in (data_source, truths, extra_info)]
    results: list[Any] = []
    for i, completion in enumerate(completions):
        source, truth, info = rows[3 * i : 3 * i + 3]
        results.append(fn(data_source=source, solution_str=completion, ground_truth=truth, extra_info=info))
    if any(inspect.isawaitable(r) for r in results):
        results = asyncio.run(_gather(results))
    return [r["score"] if isinstance(r, dict) else r for r in results]


def from_verl(compute_score: VerlScore) -> RewardFn:
    """A verl score function as a reward function of runnel."""

    def reward(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float | None]:
        return verl_score(prompts, completions, compute_score=compute_score, **columns)

    return reward


def _at(column: object, i: int) -> object:
    return column[i] if isinstance(column, list | tuple) else column


async def _gather(results: Sequence[Awaitable[Verl]]) -> list[Verl]:
    return list(await asyncio.gather(*results))
