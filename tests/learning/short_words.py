"""A small text task: write a word of three letters backwards."""

import itertools

import runnel as rl


def reward(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """Share of letters at their place."""
    return [
        sum(a == b for a, b in zip(p[::-1], c, strict=False)) / len(p) * (len(p) == len(c))
        for p, c in zip(prompts, completions, strict=True)
    ]


def make_task() -> rl.TextTask:
    words = ["".join(letters) for letters in itertools.product("abcdefgh", repeat=3)]
    held = [w for i, w in enumerate(words) if i % 4 == 0]
    kept = [w for i, w in enumerate(words) if i % 4]
    make = lambda ws: [rl.Example(w, w[::-1]) for w in ws]  # noqa: E731
    return rl.TextTask("short-words", make(kept), make(held), reward, max_tokens=5)
