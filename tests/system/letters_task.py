"""A task on which completions of a prompt get different rewards from the first update on: every update moves weights."""

from __future__ import annotations

import runnel as rl


def reward(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """A number that hardly two completions share."""
    return [sum((i + 1) * b for i, b in enumerate(c.encode())) % 101 / 101 for c in completions]


def make_task() -> rl.TextTask:
    words = [a + b + c for a in "abc" for b in "def" for c in "ghij"]
    examples = [rl.Example(word, word[::-1]) for word in words]
    return rl.TextTask("letters", examples[8:], examples[:8], reward, max_tokens=8)


def half_flat(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """The same number for all completions of a word that begins with a."""
    return [1.0] * len(completions) if prompts[0] < "b" else reward(prompts, completions)


def make_flat_task() -> rl.TextTask:
    task = make_task()
    return rl.TextTask("flat letters", task.train, task.eval, half_flat, max_tokens=8)


def by_source(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """Words with a are always right, words with b never, others at times."""
    return {"a": [1.0] * len(completions), "b": [0.0] * len(completions)}.get(prompts[0][0]) or reward(prompts, completions)


def words_with(letter: str) -> rl.TextTask:
    task = make_task()
    train = [e for e in task.train if e.text[0] == letter]
    return rl.TextTask(letter, train, [rl.Example(f"{letter}xx")], by_source, max_tokens=8)


def make_easy() -> rl.TextTask:
    return words_with("a")


def make_hopeless() -> rl.TextTask:
    return words_with("b")


def make_learnable() -> rl.TextTask:
    return words_with("c")
