"""An engine that says what a script tells it, token for token, in place of a model; and plays of conversations with it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fakes_llm import FakeClient, FakeStream

from runnel.core.contracts.inference import Reply, Request
from runnel.core.contracts.params import ParamSet
from runnel.core.records import Batch
from runnel.core.state import State
from runnel.llm.chat.config import TalkConfig
from runnel.llm.chat.sampler import ChatSampler
from runnel.llm.chat.task import make_chat_task
from runnel.llm.sampling.groups import rollout_stream
from runnel.llm.tokenize import Tokenizer

Say = Callable[[int, int], str]
"""`say(conversation, turn)`; conversations are numbered in the order in which the engine hears of them."""


class ScriptedEngine:
    """Answers each request in one step."""

    def __init__(self, say: Say, tokenizer: Tokenizer) -> None:
        self._say, self._tokenizer = say, tokenizer
        self._logprob = -math.log(tokenizer.vocab_size)  # as of a model that knows nothing
        self.version, self.num_tokens, self.num_steps = -1, 0, 0
        self.asked: list[tuple[int, list[int], list[int]]] = []
        """Conversation, prompt and reply of each request."""
        self._turns: dict[int, int] = {}
        self._waiting: list[Request] = []

    def submit(self, requests: Sequence[Request]) -> None:
        self._waiting += requests

    def step(self) -> list[Reply]:
        waiting, self._waiting = self._waiting, []
        self.num_steps += 1
        return [self._reply(request) for request in waiting]

    def _reply(self, request: Request) -> Reply:
        session = int(request.rows["session"])
        turn = self._turns.get(session, -1) + 1
        self._turns[session] = turn
        conversation = list(self._turns).index(session)
        said = self._tokenizer.answer(self._say(conversation, turn))[: int(request.rows["max_tokens"])]
        self.asked.append((conversation, request.rows["tokens"].tolist(), said))
        tokens = torch.tensor(said)
        self.num_tokens += len(tokens)
        rows = {
            "tokens": tokens,
            "logprob": torch.full(tokens.shape, self._logprob),
            "policy_version": torch.zeros_like(tokens),
        }
        return Reply(request.id, Batch(rows), self.version)

    @property
    def prompts(self) -> list[list[int]]:
        return [prompt for _, prompt, _ in self.asked]

    def abort(self, ids: Sequence[int]) -> None:
        self._waiting = [r for r in self._waiting if r.id not in ids]

    def pending(self) -> int:
        return len(self._waiting)

    def load_params(self, params: ParamSet) -> None:
        self.version = params.version


@dataclass
class Played:
    """What came of a play: its stream, its events, and the engine."""

    stream: FakeStream
    events: list[State]
    engine: ScriptedEngine
    order: list[int]
    """Numbers of segments in the order in which they were committed."""

    def reasons(self) -> list[str]:
        return [e["reason"] for e in self.events if e["kind"] == "call_retried"]

    def tool_errors(self) -> list[dict[str, int]]:
        return [e["tool_errors"] for e in self.events if e["kind"] == "episode"]

    def talks(self) -> list[State]:
        return [e for e in self.events if e["kind"] == "conversation"]


def play(
    env: Any,
    say: Say,
    tokenizer: Tokenizer,
    *,
    tools: Sequence[Any] = (),
    groups: int = 2,
    group_size: int = 2,
    max_turns: int = 4,
    max_context: int = 2000,
    blocking: bool = False,
    engine: type[ScriptedEngine] = ScriptedEngine,
    **talk: Any,
) -> Played:
    """Play until `groups` segments are committed or cancelled. Nothing may be lost on the way."""
    task = make_chat_task(env, talk=TalkConfig(**talk), tools=tools)
    sampler = ChatSampler(
        task,
        tokenizer,
        max_turns=max_turns,
        max_context=max_context,
        blocking_calls=blocking,
        group_size=group_size,
        max_tokens=200,
        seed=1,
    )
    speaks = engine(say, tokenizer)
    client: Any = FakeClient(speaks)  # type: ignore[arg-type]
    client.published[0] = ParamSet(0, {})
    channels, rows = tuple(task.turn_channels), max_turns if talk.get("history") == "template" else 1
    spec = rollout_stream(
        group_size=group_size,
        max_prompt=max_context * rows,
        max_tokens=0,
        rewards=channels,
        turn_rewards=channels,
        max_turns=max_turns,
        max_rows=rows,
        capacity=groups,
    )
    stream = FakeStream(spec, limit=groups)
    played, limit = Played(stream, [], speaks, []), time.monotonic() + 60
    while len(stream.committed) + len(stream.cancelled) < groups:
        assert time.monotonic() < limit, f"{len(stream.committed)} committed, {stream.cancelled}, {sampler.events()}"
        sampler.step({"policy": client}, {"rollouts": stream})
        played.events += sampler.events()
        known = len(played.order)
        played.order += [s.header.sequence for s in stream.committed[known:]]
    assert not stream.reserved
    sampler.close()
    played.events += sampler.events()
    return played
