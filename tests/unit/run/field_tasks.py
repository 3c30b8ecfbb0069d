"""What the tests of settings train on: a task whose rewards differ from completion to completion, so that every update moves
weights; environments of images; a network of one's own."""

from __future__ import annotations

import atexit
import functools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from runnel.core.contracts.chat import Message, Tool, Turn
from runnel.core.spaces import EnvSpec
from runnel.core.state import Settings
from runnel.envs.device import GoalBeyondHazard
from runnel.llm.chat.dialects import make_call
from runnel.llm.chat.tools import tools_of
from runnel.llm.export import save_policy, save_scorer
from runnel.llm.model.causal_lm import ModelConfig, ScalarModel, build_model, model_params
from runnel.llm.tasks import Example, TextTask
from runnel.llm.tokenize import CharTokenizer
from runnel.nets.actor_critic import build_body
from runnel.nets.layers import NetConfig


def low_bytes(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
    """The share of characters in the lower half of ASCII."""
    return [sum(ord(c) < 64 for c in text) / max(len(text), 1) for text in completions]


def make_task() -> TextTask:
    """Copy a letter."""
    train = [Example(c, c.upper()) for c in "abcdefgh"]
    held = [Example(c, c.upper()) for c in "xyz"]
    return TextTask("letters", train, held, low_bytes, max_tokens=4)


class Talking:
    """A conversation of short messages: it pays each of them like `low_bytes`, and knows a good one."""

    lane = "inline"
    max_tokens = 4

    def reset(self, task: Settings, *, seed: int) -> Turn:
        """Begin."""
        self.number = 0
        return Turn("abcd"[seed % 4])

    def step(self, message: Message) -> Turn:
        """Pay."""
        self.number += 1
        return Turn(str(self.number), low_bytes([], [message["content"]])[0])

    def script(self) -> str:
        """A digit."""
        return str(self.number)


class Asking(Talking):
    """A conversation whose model may ask for a number, and is shown how."""

    max_tokens = 80

    def reset(self, task: Settings, *, seed: int) -> Turn:
        """Begin."""
        self.asked = False
        return super().reset(task, seed=seed)

    def tools(self) -> Sequence[Tool]:
        """The number."""
        return tools_of(self)

    def ask(self, more: int) -> int:
        """The number of the next message, and more."""
        self.asked = True
        return self.number + more

    def script(self) -> str | Message:
        """A question, and then a digit."""
        return (
            super().script()
            if self.asked
            else {"role": "assistant", "content": "", "tool_calls": [make_call(0, "ask", {"more": 1})]}
        )


class Failing(Talking):
    """One that fails now and then."""

    def step(self, message: Message) -> Turn:
        """Pay, or fail."""
        if sum(map(ord, message["content"])) % 4 == 0:
            raise ValueError("four")
        return super().step(message)


def shout(text: str) -> str:
    """Capitals."""
    return text.upper()


def make_net(spec: EnvSpec, seed: int) -> Any:
    """A network of one's own."""
    return build_body(spec, NetConfig(hidden=(5,)), seed=seed)


class Told(gym.Env):  # type: ignore[misc]
    """Pays for the right one of two actions, as much as its task says, for as many steps as its task says."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 2.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.task_space = spaces.Box(0.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Play the task, or one of its own."""
        super().reset(seed=seed)
        self.task = (options or {}).get("task", self.np_random.random(2).astype(np.float32))
        self.left = 1 + int(4 * self.task[1])
        return self.task, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Pay."""
        self.left -= 1
        return self.task, float(self.task[0] * action), self.left <= 0, False, {}


class Frame(gym.Env):  # type: ignore[misc]
    """Noise of 10 x 10 as one frame, or `stack` of them; two actions, or a `box` of them."""

    def __init__(self, stack: int = 0, box: bool = False) -> None:
        self._shape = (stack, 10, 10) if stack else (10, 10)
        self.observation_space = spaces.Box(0, 255, self._shape, np.uint8)
        self.action_space = spaces.Box(-1, 1, (1,)) if box else spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Start again."""
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One more frame."""
        return self._look(), float(np.sum(action)), False, bool(self.np_random.random() < 0.2), {}

    def _look(self) -> np.ndarray:
        return self.np_random.integers(0, 255, self._shape).astype(np.uint8)


class Costly(Frame):
    """A `Frame` of 4 numbers whose action costs what it does not earn, and whose steps say how far they went."""

    def __init__(self, stack: int = 0, box: bool = False) -> None:
        super().__init__(stack, box)
        self.observation_space = spaces.Box(-1, 1, (4,))

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One more step."""
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"cost": 1.0 - reward, "rewards": {"forward": float(obs[0])}}

    def _look(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)


class Fast(GoalBeyondHazard):
    """Twice as fast."""

    speed = 0.2


@functools.cache
def folder() -> Path:
    """Where what the tests make lies; removed when they end."""
    made = tempfile.TemporaryDirectory(prefix="runnel-fields-")
    atexit.register(made.cleanup)
    return Path(made.name)


@functools.cache
def rows_file(name: str = "rows", first: int = 0) -> str:
    """Prompts of several lengths, with two columns for each purpose, and weights of parts of the answers."""
    texts = ["ab" * (1 + i % 4) + str(i) for i in range(first, first + 60)]
    rows = [{"prompt": t, "question": t + "?", "answer": t[2:], "solution": t[1:], "parts": [[t[2], 3.0]]} for t in texts]
    return _written(f"{name}.jsonl", rows)


@functools.cache
def pairs_file() -> str:
    """Pairs of answers, of different strengths."""
    some = enumerate("klmnopqrstuv")
    rows = [{"prompt": c, "chosen": c.upper(), "rejected": "?", "margin": i / 4, "weight": 1 + i % 3} for i, c in some]
    return _written("pairs.jsonl", rows)


@functools.cache
def rated_file() -> str:
    """Single answers, good and bad in turn, with a score."""
    some = enumerate("klmnopqr")
    return _written("rated.jsonl", [{"prompt": c, "completion": c.upper(), "label": i % 2, "score": i / 2} for i, c in some])


def _written(name: str, rows: Sequence[dict[str, Any]]) -> str:
    path = folder() / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@functools.cache
def model_folder(*, scores: bool = False) -> str:
    """A language model, or a reward model."""
    torch.manual_seed(0)
    sizes = ModelConfig(layers=1, width=16, heads=2, kv_heads=2, inner=16, max_positions=64)
    tokenizer, path = CharTokenizer(), folder() / ("scorer" if scores else "model")
    model = build_model(sizes, tokenizer.vocab_size, seed=7)
    params = model_params(ScalarModel(model) if scores else model)
    (save_scorer if scores else save_policy)(model, params, tokenizer, path)
    return str(path)


class Half(gym.ObservationWrapper):  # type: ignore[misc]
    """Shows half of every number."""

    def observation(self, observation: Any) -> Any:
        return (observation * 0.5).astype(observation.dtype)
