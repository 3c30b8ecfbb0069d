"""A small text task: answer with digits, whatever is asked."""

from __future__ import annotations

import runnel as rl

LENGTH = 6


def reward(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """Share of the answer's characters that are digits."""
    return [sum(c in "0123456789" for c in text) / LENGTH for text in completions]


def make_task() -> rl.TextTask:
    prompts = [f"{a}{b}" for a in "abcdefgh" for b in "ijklmnop"]
    held, kept = prompts[::4], [p for i, p in enumerate(prompts) if i % 4]
    examples = [[rl.Example(p, "123456") for p in some] for some in (kept, held)]
    return rl.TextTask("digits", *examples, reward, max_tokens=LENGTH)


def make_mixed_task(digits: tuple[int, ...] = (1, 3, 5)) -> rl.TextTask:
    """The same, with demonstrations of which half are letters: those whose number modulo 6 is not in `digits`."""
    plain = make_task()
    train = [rl.Example(e.prompt, "123456" if i % 6 in digits else "abcdef") for i, e in enumerate(plain.train)]
    return rl.TextTask("mixed", train, plain.eval, reward, max_tokens=LENGTH)


def make_letters_task() -> rl.TextTask:
    """Two demonstrations of three are letters."""
    return make_mixed_task(digits=(0, 3))
