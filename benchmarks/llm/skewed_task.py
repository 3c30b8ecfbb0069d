"""A task of which every completion gets another reward, so that every group trains: what `in_parts.py` measures with."""

from __future__ import annotations

import runnel as rl


def reward(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """A number that hardly two completions share."""
    return [sum((i + 1) * b for i, b in enumerate(c.encode())) % 101 / 101 for c in completions]


def make_task() -> rl.TextTask:
    words = [a + b + c for a in "abc" for b in "def" for c in "ghij"]
    examples = [rl.Example(word, word[::-1]) for word in words]
    return rl.TextTask("skewed", examples[8:], examples[:8], reward, max_tokens=192)
