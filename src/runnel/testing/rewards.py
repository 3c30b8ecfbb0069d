"""The contract check of reward functions, for their authors."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence

from runnel.core.checks import name_of
from runnel.core.errors import DataError
from runnel.llm.rewards.components import Reward, RewardComponent, RewardFn, as_components
from runnel.llm.rewards.judging import RewardJob, RewardOutcome, judge

Verdicts = Sequence[Reward] | Awaitable[Sequence[Reward]]
"""What a reward function returns, or what an async one does."""


def check_reward(
    fn: RewardFn | str | RewardComponent,
    *,
    prompts: Sequence[str] = ("a prompt", "another"),
    completions: Sequence[str] = ("a completion", ""),
    columns: Mapping[str, Sequence[object]] | None = None,
    channels: Sequence[str] = ("reward",),
) -> None:
    """Raise a `DataError` with a reason if `fn(prompts, completions, **columns)` is not a reward function.

    For each completion it must return one finite number (or one for each of `channels`, or None for "does not apply"). It must
    return the same again for the same arguments, not change them, and accept empty and odd completions. A `RewardComponent` is
    checked at its own level (here a token is a byte of the text).

    >>> check_reward(lambda prompts, completions, **columns: [float(len(c)) for c in completions])
    """
    if isinstance(fn, RewardComponent):
        component = fn
    else:
        (component,) = as_components(fn, channels, [1.0] * len(channels))
    odd = ["", " ", "\n", "\ufffd", "a" * 1000, *completions]
    odd_prompts = [prompts[i % len(prompts)] for i in range(len(odd))]
    odd_columns = {k: [v[i % len(v)] for i in range(len(odd))] for k, v in (columns or {}).items()}
    _ask(component, odd_prompts, odd, odd_columns)
    first = _ask(component, prompts, completions, columns or {})
    again = _ask(component, prompts, completions, columns or {})
    if first != again:
        raise _refusal(component, "a reward function must answer the same when asked again")


def _ask(
    component: RewardComponent, prompts: Sequence[str], completions: Sequence[str], columns: Mapping[str, Sequence[object]]
) -> RewardOutcome:
    given: list[object] = []
    function = component.function()

    def watched(prompts: list[str], completions: list[str], **columns: object) -> Verdicts:
        given.extend((prompts, completions))
        return function(prompts, completions, **columns)

    job = RewardJob(0, list(prompts), list(completions), dict(columns), [list(c.encode()) for c in completions])
    outcome = judge(watched, component, job)
    if given and given != [list(prompts), list(completions)]:
        raise _refusal(component, "a reward function must not change its arguments")
    if outcome.rewards is None:
        raised = f"failed with {outcome.failure}" if outcome.lines else outcome.failure
        raise _refusal(component, f"{raised}; return one verdict for each completion, empty and odd ones too{outcome.lines}")
    return outcome


def _refusal(component: RewardComponent, what: str) -> DataError:
    who = component.fn if isinstance(component.fn, str) else name_of(component.fn)
    return DataError(f"reward {component.name!r} ({who}): {what.removeprefix(f'{who}: ')}")
