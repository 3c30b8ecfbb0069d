"""A few words to write backwards."""

from __future__ import annotations

import runnel as rl


def reward(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """Share of characters in their place."""
    return [sum(a == b for a, b in zip(p[::-1], c, strict=False)) / 3 for p, c in zip(prompts, completions, strict=True)]


def make_task() -> rl.TextTask:
    words = [a + b + c for a in "abc" for b in "def" for c in "ghij"]
    examples = [rl.Example(word, word[::-1]) for word in words]
    return rl.TextTask("words", examples[4:], examples[:4], reward, max_tokens=5)
