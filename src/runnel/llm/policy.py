"""The policy that `load` returns for a language model: it continues conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runnel.core.contracts.chat import Message
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import DataError
from runnel.core.rng import make_seed
from runnel.llm.engines.native import NativeEngine
from runnel.llm.engines.requests import SamplingConfig, generate, make_request
from runnel.llm.model.causal_lm import model_params, num_positions
from runnel.llm.tokenize import Tokenizer, messages_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

UNLIMITED = 8192
"""Tokens of a conversation with a model that has no limit of its own."""


class ChatPolicy:
    """A model with its tokenizer (core `Policy`): an observation is a prompt or a conversation, an action is text."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Tokenizer,
        *,
        max_tokens: int,
        temperature: float = 1.0,
        stop: Sequence[str] = (),
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self._max_tokens, self._temperature, self._stop = max_tokens, temperature, tuple(stop)
        self.engine = NativeEngine(
            model,
            num_slots=1,
            max_length=num_positions(model.config) or UNLIMITED,
            eos_id=tokenizer.end_ids,
            decode_text=tokenizer.spell,
        )
        self.engine.load_params(ParamSet(0, model_params(model), shared=True))
        self._num_calls = 0

    def chat(self, messages: Sequence[Message], *, max_tokens: int | None = None, deterministic: bool = True) -> str:
        """The assistant's next message in a conversation."""
        if isinstance(messages, str):
            raise DataError(f"chat takes a list of messages, not the text {messages[:60]!r}; use complete(text) for one prompt")
        prompt = self.tokenizer.render(messages_of(messages))
        self._num_calls += 1
        request = make_request(
            self._num_calls,
            prompt,
            seed=make_seed(0, "chat", self._num_calls),
            max_tokens=self._max_tokens if max_tokens is None else max_tokens,
            sampling=SamplingConfig(0.0 if deterministic else self._temperature, stop=self._stop),
        )
        return self.tokenizer.decode(generate(self.engine, [request])[0].rows["tokens"].tolist())

    def complete(self, prompt: str, *, max_tokens: int | None = None, deterministic: bool = True) -> str:
        """The answer to one prompt."""
        return self.chat(messages_of(prompt), max_tokens=max_tokens, deterministic=deterministic)

    def act(self, obs: str | Sequence[Message], *, deterministic: bool = True) -> str:
        return self.chat(messages_of(obs), deterministic=deterministic)

    def reset(self) -> None:
        """Does nothing: each call passes the whole conversation."""
