"""Reward functions of other systems: verl's `compute_score`. (TRL's signature is runnel's own.)"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from runnel.core.resolve import load_object
from runnel.llm.rewards.components import RewardFn


def verl_score(
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    compute_score: str | Callable[..., Any],
    data_source: Any = None,
    ground_truth: Any = None,
    reward_model: Any = None,
    extra_info: Any = None,
    **columns: Any,
) -> list[float | None]:
    """`compute_score(data_source, solution_str, ground_truth, extra_info)` for each completion, sync or async.

    verl's columns are taken as they are: `ground_truth` stands by itself or inside of `reward_model`. Of a dict of results,
    `score` is the reward.
    """
    fn = load_object(compute_score, "reward.compute_score") if isinstance(compute_score, str) else compute_score
    truths = ground_truth if reward_model is None else [m["ground_truth"] for m in reward_model]
    rows = [_at(column, i) for i in range(len(completions)) for column in (data_source, truths, extra_info)]
    answers = []
    for i, completion in enumerate(completions):
        source, truth, info = rows[3 * i : 3 * i + 3]
        answers.append(fn(data_source=source, solution_str=completion, ground_truth=truth, extra_info=info))
    if any(inspect.isawaitable(a) for a in answers):
        answers = asyncio.run(_gather(answers))
    return [a["score"] if isinstance(a, dict) else a for a in answers]


def from_verl(compute_score: Callable[..., Any]) -> RewardFn:
    """A verl score function as a reward function of runnel."""

    def reward(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float | None]:
        return verl_score(prompts, completions, compute_score=compute_score, **columns)

    return reward


def _at(column: Any, i: int) -> Any:
    return column[i] if isinstance(column, list | tuple) else column


async def _gather(answers: Sequence[Any]) -> list[Any]:
    return list(await asyncio.gather(*answers))
