"""A small text task with one right answer of six characters: nothing else is rewarded."""

from __future__ import annotations

import numpy as np

import runnel as rl

ANSWER = "123456"
PROMPTS = [f"{a}{b}" for a in "abcdefgh" for b in "ijklmnop"]


def reward(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """1 for the whole answer."""
    return [float(text == ANSWER) for text in completions]


def make_task() -> rl.TextTask:
    return _task("sparse", [ANSWER] * len(PROMPTS))


def make_noisy_task() -> rl.TextTask:
    """The same, with demonstrations of which 64 % of the characters are wrong, and every one somewhere."""
    rng = np.random.default_rng(0)
    return _task(
        "noisy", ["".join(c if rng.random() < 0.4 else str(rng.choice(list("90xyz"))) for c in ANSWER) for _ in PROMPTS]
    )


def _task(name: str, answers: list[str]) -> rl.TextTask:
    kept = [rl.Example(p, a) for i, (p, a) in enumerate(zip(PROMPTS, answers, strict=True)) if i % 4]
    held = [rl.Example(p, ANSWER) for p in PROMPTS[::4]]
    return rl.TextTask(name, kept, held, reward, max_tokens=len(ANSWER) + 1)
