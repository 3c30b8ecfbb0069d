"""Your own text task: prompts, demonstrations, and a reward function in plain Python.

    runnel train grpo --task examples/own_reward.py:make_task --warmup-updates 60 --total-updates 100
    python examples/own_reward.py

The task: write a word in capitals. The reward has two channels, the exact answer and the share of right letters.
"""

from __future__ import annotations

from collections.abc import Sequence

import runnel as rl


def capitals_reward(prompts: Sequence[str], completions: Sequence[str], **columns: Sequence[str]) -> list[dict[str, float]]:
    """One verdict a completion. `columns` holds what each example brought along, here the wanted answer.

    An exception, a NaN or None is not a reward of 0: the group is cancelled, and counted with its reason.
    """
    return [
        {"exact": float(completion == wanted), "letters": share(completion, wanted)}
        for completion, wanted in zip(completions, columns["wanted"], strict=True)
    ]


def share(completion: str, wanted: str) -> float:
    """Share of places with the right letter; letters too many count as wrong ones."""
    right = sum(a == b for a, b in zip(completion, wanted, strict=False))
    return right / max(len(completion), len(wanted))


def make_task() -> rl.TextTask:
    """1000 random words of three letters; every tenth is kept for the evaluation."""
    rng = rl.core.make_rng(0, "capitals")
    words = sorted({"".join(rng.choice(list("abcdefgh"), 3)) for _ in range(1000)})
    examples = [rl.Example(word, answer=word.upper(), columns={"wanted": word.upper()}) for word in words]
    return rl.TextTask(
        name="capitals",
        train=[e for i, e in enumerate(examples) if i % 10],
        eval=[e for i, e in enumerate(examples) if i % 10 == 0],
        reward=capitals_reward,
        channels=("exact", "letters"),
        weights=(1.0, 0.5),
        max_tokens=5,
    )


def main(warmup_updates: int = 60, total_updates: int = 100, width: int = 128, out: str = "runs") -> rl.Run:
    run = rl.train(
        "grpo",
        task=make_task,
        warmup_updates=warmup_updates,
        total_updates=total_updates,
        demo_rows=64,
        lm={"layers": 1, "width": width, "inner": 2 * width},
        out=out,
        eval={"episodes": 32},
    )
    print(f"{run.status}: mean reward {run.eval['mean']:.2f} of 1.5 on {run.eval['num']} unseen words; {run.path}")
    print("bad ->", rl.load(run.path).chat([{"role": "user", "content": "bad"}]))
    return run


if __name__ == "__main__":
    main()
