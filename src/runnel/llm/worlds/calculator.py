"""Arithmetic that a small model cannot do in its head, with a tool that does it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runnel.core.contracts.chat import REWARD, Message, Tool, ToolFailure, Turn
from runnel.core.errors import ConfigError, DataError
from runnel.core.state import Settings
from runnel.llm.rewards.extract import extract, number_of
from runnel.llm.worlds.arithmetic import LEVELS, calculator_tool, evaluate, problem
from runnel.llm.worlds.world import World, entry, share, splits, switch, whole

CALLED = "called"


class Calculator(World):
    """Compute an expression of whole numbers (`level` from 1 to 4: longer, with larger numbers). Reward 1 for the right answer.

    The first message without a call ends the conversation, and its last number is the answer: 1,200 is 1200, and 7.0 is 7.
    With `call_reward`, the channel `called` pays so much once if the tool gave a number before. With `tools` off, the same
    problems are put without a tool: what the model can do alone.
    """

    name = "calculator"
    max_tokens = 128

    def __init__(
        self,
        *,
        level: int = 2,
        tools: bool = True,
        call_reward: float = 0.0,
        num_train: int = 10_000,
        num_eval: int = 256,
    ) -> None:
        super().__init__()
        self._level = whole("calculator.level", level, 1, LEVELS)
        self._with_tool = switch("calculator.tools", tools)
        self._call_reward = share("calculator.call_reward", call_reward, 0, 100)
        if self._call_reward and not tools:
            raise ConfigError("calculator.call_reward", call_reward, "there is no tool to call; set tools, or leave this 0")
        self._sizes = whole("calculator.num_train", num_train, 1, 10**9), whole("calculator.num_eval", num_eval, 1, 10**9)
        self.rewards = {REWARD: 1.0, **({CALLED: self._call_reward} if self._call_reward else {})}

    def tasks(self) -> tuple[Sequence[Settings], Sequence[Settings]]:
        return splits(self, *self._sizes)

    def draw(self, rng: np.random.Generator) -> Settings:
        return {"problem": problem(rng, self._level)}

    def tools(self) -> Sequence[Tool]:
        return [calculator_tool(self._heard)] if self._with_tool else []

    def begin(self, task: Settings) -> Turn:
        text = entry(task, "problem", str, self.name)
        try:
            value = evaluate(text)
        except ToolFailure as error:
            raise DataError(f"world {self.name!r}: the problem {text!r} cannot be computed: {error}") from error
        self.now |= {"answer": str(value), "calls": 0}  # as text: numbers in JSON may be cut to 53 bits
        help_of_tool = " Use the calculator." if self._with_tool else ""
        return Turn(f"What is {text}?{help_of_tool} End with the number.")

    def answer(self, text: str) -> Turn:
        found = extract(text, "last_number")
        right = found is not None and number_of(found) == int(self.now["answer"])
        rewards = {REWARD: float(right)}
        if self._call_reward:
            rewards[CALLED] = float(self.now["calls"] > 0)
        return Turn((), rewards, terminated=True)

    def script(self) -> str | Message:
        """The call, and when the tool was called, the answer."""
        if not self._with_tool or self.now["calls"]:
            return f"The answer is {self.now['answer']}."
        called = {"name": "calculator", "arguments": {"expression": self.now["task"]["problem"]}}
        return {"role": "assistant", "content": "", "tool_calls": [{"id": "call-0", "type": "function", "function": called}]}

    def _heard(self) -> None:
        self.now["calls"] += 1
