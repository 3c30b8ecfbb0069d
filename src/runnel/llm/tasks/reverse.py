"""The demonstration task: write a word backwards."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from runnel.core.rng import make_rng
from runnel.llm.tasks.text import Example, TextTask

MIN_LETTERS, MAX_LETTERS = 3, 6


def reverse_reward(prompts: Sequence[str], completions: Sequence[str], **columns: object) -> list[float]:
    """1 for the prompt's word written backwards, else 0.

    >>> reverse_reward(["abc", "abc"], ["cba", "abc"])
    [1.0, 0.0]
    """
    return [float(completion == prompt[::-1]) for prompt, completion in zip(prompts, completions, strict=True)]


def make_reverse(*, num_words: int = 10000, num_eval: int = 512) -> TextTask:
    """Write a word backwards; the words of the evaluation are never seen in training.

    Words are made of random syllables, from a fixed seed; a hash of the word decides its split.
    """
    train: list[Example] = []
    held: list[Example] = []
    rng = make_rng(0, "reverse", "words")
    seen: set[str] = set()
    while len(train) < num_words or len(held) < num_eval:
        word = _word(rng)
        if word in seen:
            continue
        seen.add(word)
        split, limit = (held, num_eval) if zlib.crc32(word.encode()) % 10 == 0 else (train, num_words)
        if len(split) < limit:
            split.append(Example(word, word[::-1]))
    return TextTask("reverse", train, held, reverse_reward, channels=("exact",), max_tokens=MAX_LETTERS + 2)


def _word(rng: np.random.Generator) -> str:
    """Syllables (consonant, vowel, sometimes another consonant), cut to a random length."""
    consonants = iter("bcdfghjklmnprstvwz"[i] for i in rng.permutation(18).tolist())
    vowels = iter("aeiouy"[i] for i in rng.permutation(6).tolist())
    size, word = int(rng.integers(MIN_LETTERS, MAX_LETTERS + 1)), ""
    for closed in rng.random(size) < 0.4:
        word += next(consonants) + next(vowels) + (next(consonants) if closed else "")
        if len(word) >= size:
            break
    return word[:size]
