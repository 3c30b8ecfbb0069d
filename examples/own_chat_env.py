"""Your own conversation environment: a game with a tool, a reward, and a script to imitate.

    runnel train grpo --chat examples/own_chat_env.py:Shop --warmup-updates 100 --total-updates 104 --max-turns 4
    python examples/own_chat_env.py

The customer asks what something costs. The model looks the price up, and then says it. Looking costs a little, and who has not
looked is not believed. A new model with random weights learns here how a call is written, and hardly more; give one that can
speak (`--model`, see docs/guides/language-models.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import runnel as rl

PRICES = {"tea": "3", "ham": "7", "jam": "4", "oil": "9"}


class Shop:
    """A new object plays each conversation. Its calls are pure and fast, so they run inline; others run in a thread, or, as
    `async def`, as a coroutine."""

    lane = "inline"
    rewards = {"reward": 1.0, "calls": -0.1}  # noqa: RUF012  (channels of the reward, and their weights in what is maximised)
    max_tokens = 96

    def reset(self, task: Mapping[str, Any], *, seed: int) -> rl.Turn:
        """What the model hears first. The seed decides everything random; all conversations of a group have the same."""
        self.wanted, self.looked = str(rl.core.make_rng(seed, "shop").choice([*PRICES])), False
        return rl.Turn(f"{self.wanted}?")

    def step(self, message: Mapping[str, Any]) -> rl.Turn:
        """What a message without calls led to. An exception would be a failed conversation, and never a reward of 0."""
        if not self.looked:
            return rl.Turn("Look it up.")
        right = message["content"] == PRICES[self.wanted]
        return rl.Turn("Thank you." if right else "No.", float(right), terminated=True)

    def tools(self) -> Sequence[rl.llm.Tool]:
        """Tools that act on this conversation. Whoever plays it shows their schemas to the model and makes the calls."""
        return rl.llm.tools_of(self)

    def look(self, name: str) -> rl.Turn:
        """Look a price up.

        Args:
            name: What to look for.
        """
        self.looked = self.looked or name == self.wanted
        return rl.Turn(PRICES.get(name, "unknown"), {"calls": 1.0})

    def script(self) -> str | dict[str, Any]:
        """What a good player would say now: the warm-up imitates it."""
        if self.looked:
            return PRICES[self.wanted]
        call = {"name": "look", "arguments": {"name": self.wanted}}
        return {"content": "", "tool_calls": [{"id": "call-0", "type": "function", "function": call}]}


def main(warmup_updates: int = 100, total_updates: int = 104, width: int = 64, max_turns: int = 4, out: str = "runs") -> rl.Run:
    print(rl.check_chat(Shop))
    run = rl.train(
        "grpo",
        chat=Shop,
        max_turns=max_turns,
        warmup_updates=warmup_updates,
        total_updates=total_updates,
        demo_rows=16,
        num_prompts=2,
        group_size=4,
        lm={"layers": 2, "width": width, "inner": 2 * width, "max_positions": 1024},
        learner={"sft_lr": 0.01},
        out=out,
        eval={"episodes": 4},
    )
    print(f"{run.status}: mean reward {run.eval['mean']:.2f} of 0.9; {run.path}")
    print(f"watch it play: runnel chat {run.path} --play 2")
    return run


if __name__ == "__main__":
    main()
