"""The policy that `load` returns for a language model: it continues conversations, uses tools, and plays its environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from runnel.core.contracts.chat import Message
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError, DataError
from runnel.core.rng import make_seed
from runnel.llm.chat.config import TalkConfig
from runnel.llm.chat.session import Chat, Happened, Voice, watch
from runnel.llm.chat.task import ChatTask
from runnel.llm.chat.tools import load_tools
from runnel.llm.engines.native import NativeEngine
from runnel.llm.engines.requests import SamplingConfig, generate, make_request
from runnel.llm.model.causal_lm import ModelConfig, build_model, model_params, num_positions
from runnel.llm.model.pretrained import model_folder
from runnel.llm.tokenize import Tokenizer, make_tokenizer, messages_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

UNLIMITED = 8192
"""Tokens of a conversation with a model that has no limit of its own."""
MAX_TOKENS, MAX_TURNS = 512, 8
"""Longest reply of a model that is no run's, and its replies to one message of a person."""
AS_DEPLOYED = TalkConfig(history="template")
"""How a model is prompted that no run has trained on conversations: as its chat template says."""


class ChatPolicy:
    """A model with its tokenizer (core `Policy`): an observation is a prompt or a conversation, an action is text.

    `task` is what a run of conversations has played: its tools may be called, its environment can be played. `max_context` 0 is
    all that the model reads.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Tokenizer,
        *,
        max_tokens: int,
        temperature: float = 1.0,
        stop: Sequence[str] = (),
        task: ChatTask | None = None,
        max_turns: int = MAX_TURNS,
        max_context: int = 0,
    ) -> None:
        self.model, self.tokenizer, self.task = model, tokenizer, task
        self._max_tokens, self._temperature, self._stop = max_tokens, temperature, tuple(stop)
        self.engine = NativeEngine(
            model,
            num_slots=1,
            max_length=num_positions(model.config) or UNLIMITED,
            eos_id=tokenizer.end_ids,
            decode_text=tokenizer.spell,
        )
        self.engine.load_params(ParamSet(0, model_params(model), shared=True))
        self._max_turns, self._max_context = max_turns, max_context or self.engine.max_length
        self._num_calls = 0

    def chat(self, messages: Sequence[Message], *, max_tokens: int | None = None, deterministic: bool = True) -> str:
        """The assistant's next message in a conversation. A policy of a run with `tools` calls them first."""
        if isinstance(messages, str):
            raise DataError(f"chat takes a list of messages, not the text {messages[:60]!r}; use complete(text) for one prompt")
        if self.task is not None and self.task.tools:
            with closing(self.converse(max_tokens=max_tokens, deterministic=deterministic)) as chat:
                found = chat.go_on(messages_of(messages))
            return next((str(m["content"]) for m in reversed(found) if m["role"] == "assistant"), "")
        prompt = self.tokenizer.render(messages_of(messages))
        self._num_calls += 1
        request = make_request(
            self._num_calls,
            prompt,
            seed=make_seed(0, "chat", self._num_calls),
            max_tokens=self._max_tokens if max_tokens is None else max_tokens,
            sampling=self._sampling(deterministic),
        )
        return self.tokenizer.decode(generate(self.engine, [request])[0].rows["tokens"].tolist())

    def converse(
        self,
        *,
        tools: Sequence[Any] | None = None,
        system: str = "",
        max_tokens: int | None = None,
        deterministic: bool = True,
    ) -> Chat:
        """A conversation with a person that remembers what was said (`Chat.say`), with tools that keep their state. `tools`: by
        name, or functions; None is those of the run. Close it in the end."""
        own = self.task.tools if self.task is not None else ()
        used = own if tools is None else load_tools(tools)
        self._num_calls += 1
        voice = self._voice(deterministic, max_tokens)
        return Chat(voice, tools=used, system=system, greedy=deterministic, number=self._num_calls)

    def play(self, number: int = 0, *, deterministic: bool = True) -> Iterator[Happened]:
        """Play a held-out conversation of the run's environment, step by step: its messages, and what they earn."""
        if self.task is None:
            raise ConfigError("chat", "", "the run has no conversations to play; use chat, complete or converse")
        example = self.task.eval[number % len(self.task.eval)]
        return watch(self.task, self._voice(deterministic, None), example, number=number, greedy=deterministic)

    def complete(self, prompt: str, *, max_tokens: int | None = None, deterministic: bool = True) -> str:
        """The answer to one prompt."""
        return self.chat(messages_of(prompt), max_tokens=max_tokens, deterministic=deterministic)

    def act(self, obs: str | Sequence[Message], *, deterministic: bool = True) -> str:
        return self.chat(messages_of(obs), deterministic=deterministic)

    def reset(self) -> None:
        """Does nothing: each call passes the whole conversation."""

    def _sampling(self, deterministic: bool) -> SamplingConfig:
        return SamplingConfig(0.0 if deterministic else self._temperature, stop=self._stop)

    def _voice(self, deterministic: bool, max_tokens: int | None) -> Voice:
        return Voice(
            self.engine,
            self.tokenizer,
            self.task.talk if self.task is not None else AS_DEPLOYED,
            self._sampling(deterministic),
            self._max_tokens if max_tokens is None else max_tokens,
            self._max_context,
            self._max_turns,
        )


def model_policy(name: str, *, max_tokens: int = MAX_TOKENS, temperature: float = 1.0) -> ChatPolicy:
    """The policy of a model that is no run's: a folder, a hub id or smollm2."""
    folder = model_folder(name)
    tokenizer = make_tokenizer(folder)
    model = build_model(ModelConfig(path=folder), tokenizer.vocab_size, seed=0)
    return ChatPolicy(model, tokenizer, max_tokens=max_tokens, temperature=temperature)
