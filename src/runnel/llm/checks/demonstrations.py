"""Checks demonstrations before a run starts: the task's own reward judges some of them."""

from __future__ import annotations

from collections.abc import Sequence

from runnel.core.errors import ConfigError
from runnel.llm.checks.sizes import CHECKED, some
from runnel.llm.rewards.components import RewardComponent
from runnel.llm.rewards.judging import RewardJob, RewardPool, Rewards, scalar
from runnel.llm.tasks import Example, TextTask
from runnel.llm.tokenize import Tokenizer, messages_of

JUDGED = 16
"""Demonstrations that are judged, evenly spread."""
VERIFIERS = ("exact", "math", "regex", "python_tests", "reasoning_gym")
"""Built-in rewards that tell right from wrong: a demonstration to which one gives 0 is a mistake."""
MODELS = ("reward_model", "judge")
"""Built-in rewards that run a model: too expensive for this check, and their 0 does not mean a mistake."""


def check_demonstrations(task: TextTask, tokenizer: Tokenizer, *, timeout_s: float = 30.0) -> list[str]:
    """Warnings about demonstrations to which the reward of `task` gives 0. Raises if a verifier gives 0 to all of them: then
    data and reward do not fit."""
    parts = [p for p in task.components if p.fn not in MODELS and any(p.weights.values())]
    verifiers = [p for p in parts if p.fn in VERIFIERS]
    examples = [e for e in some(task.train, JUDGED) if e.answer is not None]
    if not parts or not examples:
        return []
    judged, failure = _judge(verifiers or parts, examples, tokenizer, timeout_s)
    if failure:
        return [f"demonstrations were not checked with the reward, which failed: {failure}"]
    wrong = [example for example, rewards in judged if _worthless(rewards, each=bool(verifiers))]
    if not wrong:
        return []
    names = ", ".join(p.name for p in verifiers or parts)
    shown = f"{wrong[0].answer!r}"[:120]
    if "answer" in wrong[0].columns:
        shown += f" where {wrong[0].columns['answer']!r}"[:120] + " is expected"
    text = f"the reward ({names}) gives 0 to {len(wrong)} of {len(judged)} demonstrations, e.g. {shown}"
    if verifiers and len(wrong) == len(judged):
        fix = "a policy would learn to fail; make data.answer, data.extract and data.reward fit, or correct the answers"
        raise ConfigError("task", task.name, f"{text}; {fix}")
    return [f"{text}; they are used all the same"]


def check_resets(task: TextTask, share: float) -> None:
    """Raise where completions of `task` cannot begin behind a part of a demonstrated answer."""
    if task.token_channels:
        names = ", ".join(task.token_channels)
        fix = f"the reward ({names}) is given by token, and a part that the policy did not make has no place for it; use 0"
        raise ConfigError("reset_share", share, fix)
    if all(e.answer is None for e in some(task.train, CHECKED)):
        raise ConfigError("reset_share", share, f"task {task.name!r} has no answers to begin with; give them, or use 0")


def check_answers(task: TextTask) -> None:
    """Raise where the demonstrated answer cannot stand in each group of completions."""
    if any(e.answer is None for e in some(task.train, CHECKED)):
        fix = "it has train examples without an answer, which this recipe puts into each group; give each one, or use grpo"
        raise ConfigError("task", task.name, fix)


def _judge(
    parts: Sequence[RewardComponent], examples: Sequence[Example], tokenizer: Tokenizer, timeout_s: float
) -> tuple[list[tuple[Example, Rewards]], str]:
    """Rewards of the demonstrations, and why the reward failed (empty: it did not). They are judged one after another, so that
    a reward that hangs is waited for only once."""
    pool = RewardPool(parts, timeout_s=timeout_s)
    out: list[tuple[Example, Rewards]] = []
    try:
        for key, e in enumerate(examples):
            columns = {k: [v] for k, v in e.columns.items()}
            ids, talks = [tokenizer.answer(e.answer or "")], [messages_of(e.prompt)]
            pool.submit(RewardJob(key, [e.text], [e.answer or ""], columns, ids, talks))
            (verdict,) = pool.collect(block=True)
            if verdict.rewards is not None:
                out.append((e, verdict.rewards))
            elif not verdict.failure.startswith("no verdict"):
                return out, verdict.failure
    finally:
        pool.close()
    return out, ""


def _worthless(rewards: Rewards, *, each: bool) -> bool:
    """Whether a verifier gives 0 (`each`), or all rewards do."""
    values = [scalar(found[0]) for found in rewards.values() if found[0] is not None]
    return any(v == 0 for v in values) if each else all(v == 0 for v in values)
