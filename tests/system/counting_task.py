"""A task whose answer a tiny model cannot work out from the prompt: always the same answer is the best that it finds."""

from __future__ import annotations

import zlib

import runnel as rl


def reward(prompts: list[str], completions: list[str], *, right: list[str], **columns: object) -> list[float]:
    """1 for the right number."""
    return [float(completion == answer) for completion, answer in zip(completions, right, strict=True)]


def make_task(answers: str = "1112") -> rl.TextTask:
    """`answers`: each prompt's right answer is one of these digits, by a hash of the prompt."""
    words = [a + b + c for a in "abcd" for b in "efgh" for c in "ijkl"]
    right = [answers[zlib.crc32(word.encode()) % len(answers)] for word in words]
    examples = [rl.Example(word, digit, {"right": digit}) for word, digit in zip(words, right, strict=True)]
    return rl.TextTask("counting", examples[8:], examples[:8], reward, max_tokens=2)


def make_easy_task() -> rl.TextTask:
    """Every right answer is 1."""
    return make_task("1")
