"""Conversations outside of training: with a person, and those of an environment that somebody watches.

Both are played by the player that training uses, so the model sees the prompts that it was trained on. In a conversation with a
person, the person is the environment: its `step` waits for what the person says next.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from runnel.core.contracts.chat import REWARD, Message, Tool, Turn
from runnel.core.contracts.inference import Reply, Request
from runnel.core.errors import DataError
from runnel.core.records import Batch
from runnel.core.rng import make_seed
from runnel.core.state import Settings
from runnel.llm.chat.config import TalkConfig
from runnel.llm.chat.conversation import TOO_LONG, Conversation, Reason, Speaker
from runnel.llm.chat.games import AGENT
from runnel.llm.chat.player import ChatPlayer
from runnel.llm.chat.task import SEED, TASK, ChatTask, Seeds
from runnel.llm.engines.requests import Engine, SamplingConfig
from runnel.llm.tasks.text import Example
from runnel.llm.tokenize import Tokenizer

WAIT_S = 0.005
PATIENCE_S = 1e7
"""Seconds that a person may think: some months."""
_HALF = "\ufffd"
"""What stands for a character of which not all bytes are there yet."""
OnText = Callable[[str], object]
"""Gets each piece of a reply as it is written."""
OnMessage = Callable[[Message], object]
"""Gets each message of the model and of its tools when it is there."""


@dataclass(frozen=True)
class Voice:
    """How a policy speaks: the engine that it asks, and the settings of its conversations."""

    engine: Engine
    tokenizer: Tokenizer
    talk: TalkConfig
    sampling: SamplingConfig
    max_tokens: int
    max_context: int
    max_turns: int
    """Replies in a row, with calls of tools between them."""


class EngineClient:
    """Asks an engine of this process (the part of a core `InferenceClient` that a player uses)."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._next = engine, 0
        self._replies: dict[int, Reply] = {}

    def submit(self, rows: Batch, *, version: int = -1, affinity: int = -1) -> int:
        ticket, self._next = self._next, self._next + 1
        self._engine.submit([Request(ticket, rows, version)])
        return ticket

    def poll(self) -> int:
        """Let the engine do a step, if it has something to do."""
        num = self._engine.pending()
        if num:
            self._replies |= {reply.id: reply for reply in self._engine.step()}
        return num

    def ready(self, ticket: int) -> Reply | None:
        return self._replies.pop(ticket, None)

    def pending(self) -> int:
        return self._engine.pending() + len(self._replies)

    def abort(self, tickets: Sequence[int]) -> None:
        self._engine.abort(tickets)
        for ticket in tickets:
            self._replies.pop(ticket, None)


class Person:
    """A person as an environment (`ChatEnv`). It says nothing by itself: `say` gives what the person says."""

    def __init__(self) -> None:
        self._next: Future[Turn] = Future()
        self.heard = 0
        """How many messages the person was told."""

    def reset(self, task: Settings, *, seed: int) -> Turn:
        return Turn(task["messages"])

    async def step(self, message: Message) -> Turn:
        self.heard += 1
        turn = await asyncio.wrap_future(self._next)
        self._next = Future()
        return turn

    def say(self, turn: Turn) -> None:
        if not self._next.done():
            self._next.set_result(turn)


class Chat:
    """A conversation with a person, who speaks with `say`.

    The model's earlier replies stay in the prompt as `talk.history` says. After `max_turns` replies in a row that only call
    tools, it is the person's turn again.
    """

    def __init__(
        self, voice: Voice, *, tools: Sequence[Tool] = (), system: str = "", greedy: bool = False, number: int = 0
    ) -> None:
        self._voice, self._greedy, self._number = voice, greedy, number
        self._num_begun = 0
        self._client = EngineClient(voice.engine)
        self._person = Person()
        # limits of time are for environments that hang: a person may take any time
        talk = replace(voice.talk, step_timeout_s=PATIENCE_S, time_limit_s=0.0)
        task = ChatTask(
            "chat",
            Seeds(0, 1),
            Seeds(1, 1),
            (),
            make=lambda: self._person,
            tools=tools,
            talk=talk,
            turn_channels={REWARD: 1.0},
        )
        self._player = _player(task, voice, seed=number)
        self._conversation: Conversation | None = None
        self._before: list[Message] = []
        """Messages with which the next conversation begins."""
        self.system = ""
        self.reset(system=system)

    # --------------------------------------------------------------------------------------------------------- for users
    @property
    def messages(self) -> list[Message]:
        """All messages so far."""
        return list(self._conversation.sides[AGENT].messages if self._conversation else self._before)

    def say(self, text: str, *, on_text: OnText | None = None, on_message: OnMessage | None = None) -> list[Message]:
        """Say something, and return the messages that follow: the model's, and between them those of tools. A `DataError` if
        there is no room for it. A `KeyboardInterrupt` stops the reply; what was written of it stays."""
        return self.go_on([{"role": "user", "content": text}], on_text=on_text, on_message=on_message)

    def go_on(
        self, messages: Sequence[Message], *, on_text: OnText | None = None, on_message: OnMessage | None = None
    ) -> list[Message]:
        """`say` with any messages."""
        start = len(self.messages) + len(messages)
        conversation = self._told(messages)
        side, heard = conversation.sides[AGENT], self._person.heard  # nothing is heard between steps of the player
        writing = Writing(self._voice, bool(side.toolbox.schemas), on_text)
        shown = start
        try:
            while not (conversation.over or conversation.failure or self._person.heard > heard):
                advance(self._player, self._client, conversation)
                writing.goes_on(side)
                for message in side.messages[shown:]:
                    writing.ends(message)
                    if on_message is not None:
                        on_message(message)
                shown = max(shown, len(side.messages))
        except KeyboardInterrupt:
            self._stop(side)
            raise
        return self._ended(conversation, start)

    def reset(self, *, system: str | None = None) -> None:
        """Begin anew, with the same system text or another one."""
        self._give_up()
        self.system = self.system if system is None else system
        self._before = [{"role": "system", "content": self.system}] if self.system else []

    def close(self) -> None:
        """Let go of its tools."""
        self._give_up()
        self._player.close()

    # -------------------------------------------------------------------------------------------------------- under them
    def _told(self, messages: Sequence[Message]) -> Conversation:
        """Tell the model what the person says; this begins the conversation where none goes on."""
        if self._conversation is not None:
            conversation = self._conversation
            conversation.max_turns = len(conversation.sides[AGENT].said.turns) + self._voice.max_turns
            self._person.say(Turn(messages))
            return conversation
        self._num_begun += 1
        self._person = Person()
        example = Example("", columns={TASK: {"messages": [*self._before, *messages]}})
        names = ("chat", self._number, self._num_begun)
        conversation = self._player.open(
            example, number=0, seed=0, names=names, max_turns=self._voice.max_turns, greedy=self._greedy
        )
        self._player.begin(conversation)
        self._conversation = conversation
        return conversation

    def _ended(self, conversation: Conversation, start: int) -> list[Message]:
        """What has followed. A conversation that a limit has ended goes on in a new one, which begins with its messages."""
        messages, reason = self.messages, conversation.sides[AGENT].reason
        if conversation.failure or (reason == "context" and len(messages) == start):
            self._give_up(keep=messages[: start - 1] if messages else self._before)
            room = f"it has no room for more than {self._voice.max_context} tokens"
            why = conversation.failure or f"{room}; begin a new one (reset)"
            if why.startswith(TOO_LONG):
                why = f"{room}, with what is said of its tools ({why}); begin a new one (reset), with less"
            raise DataError(f"the conversation cannot go on: {why}")
        if conversation.over:
            self._give_up(keep=messages)
        return messages[start:]

    def _stop(self, side: Speaker) -> None:
        """Stop a reply. The next conversation begins with what was written of it."""
        messages = list(side.messages)
        written = self._voice.engine.so_far(side.ticket) if side.stage == "asked" and side.ticket is not None else []
        if text := self._voice.tokenizer.decode(written):
            messages.append({"role": "assistant", "content": text})
        self._give_up(keep=messages)

    def _give_up(self, keep: Sequence[Message] = ()) -> None:
        if self._conversation is not None:
            self._player.drop(lambda agent: self._client, self._conversation)
            self._person.say(Turn(terminated=True))
        self._conversation, self._before = None, list(keep)


# ---------------------------------------------------------------------------------------------------------------- watching
@dataclass(frozen=True)
class Happened:
    """What happened in a conversation that is played: a message, or what an agent has earned."""

    agent: str
    message: Message | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    reason: Reason = ""
    """Why it is over for this agent."""


def watch(task: ChatTask, voice: Voice, example: Example, *, number: int = 0, greedy: bool = True) -> Iterator[Happened]:
    """Play a conversation of `task` step by step, and tell what happens. One policy speaks for all agents."""
    player, client = _player(task, voice, seed=number), EngineClient(voice.engine)
    given = example.columns.get(SEED)
    seed = int(given) if isinstance(given, int) else make_seed(0, "play", number)
    names = ("play", number)
    conversation = player.open(example, number=number, seed=seed, names=names, max_turns=voice.max_turns, greedy=greedy)
    shown, paid = dict.fromkeys(conversation.sides, 0), {agent: dict[str, float]() for agent in conversation.sides}
    try:
        player.begin(conversation)
        while not (conversation.over or conversation.failure):
            advance(player, client, conversation)
            for agent, side in conversation.sides.items():
                yield from _news(side, shown[agent], paid[agent])
                shown[agent] = len(side.messages)
        if conversation.failure:
            raise DataError(f"the conversation failed: {conversation.failure}{conversation.lines}")
        for agent, side in conversation.sides.items():
            yield Happened(agent, reason=side.reason)
    finally:
        player.drop(lambda agent: client, conversation)
        player.close()


def _news(side: Speaker, start: int, paid: dict[str, float]) -> Iterator[Happened]:
    """Messages from `start` on. What the model's last one has earned stands behind it, before what the environment says, which
    may show messages of an assistant, too."""
    spoken, heard = {turn.message for turn in side.said.turns}, list(enumerate(side.messages))[start:]
    own = [i for i, message in heard if i in spoken or message["role"] == "tool"]
    yield from (Happened(side.agent, side.messages[i]) for i in own)
    names = {*side.early, *(name for turn in side.said.turns for name in turn.rewards)}
    earned = {name: side.total(name) - paid.get(name, 0.0) for name in sorted(names)}
    if new := {name: value for name, value in earned.items() if value}:
        yield Happened(side.agent, rewards=new)
        paid.update({name: side.total(name) for name in new})
    yield from (Happened(side.agent, message) for i, message in heard if i not in own)


# ---------------------------------------------------------------------------------------------------------------- for both
def _player(task: ChatTask, voice: Voice, *, seed: int) -> ChatPlayer:
    return ChatPlayer(
        task,
        voice.tokenizer,
        max_context=voice.max_context,
        max_tokens=voice.max_tokens,
        seed=make_seed(0, "chat", seed),
        sampling=voice.sampling,
        blocking=False,
    )


def advance(player: ChatPlayer, client: EngineClient, conversation: Conversation) -> None:
    """One step of a conversation; it waits a little where there is nothing to do."""
    work = player.step(lambda agent: client, [conversation]) + client.poll()
    if not work:
        player.wait(WAIT_S)


class Writing:
    """A reply while it is written: `on_text` gets each new piece of its text.

    Where the model may call tools, pieces stop at what may be a call; the rest of the text follows when the reply is there.
    """

    _CALL = re.compile(r"<(?:t(?!h)|th?$|$)|`{1,2}$|```|\A\s*\{")

    def __init__(self, voice: Voice, tools: bool, on_text: OnText | None) -> None:
        self._voice, self._tools, self._on_text = voice, tools, on_text
        self._shown = ""

    def goes_on(self, side: Speaker) -> None:
        """Show what the engine has written since the last call."""
        if self._on_text is None or side.stage != "asked" or side.ticket is None:
            return
        text = self._voice.tokenizer.decode(self._voice.engine.so_far(side.ticket))
        if self._tools and (found := self._CALL.search(text)):
            text = text[: found.start()]
        self._show(text.rstrip(_HALF))

    def ends(self, message: Message) -> None:
        """Show the rest of a reply that is there."""
        if self._on_text is not None and message["role"] == "assistant":
            self._show(message["content"])
            self._shown = ""

    def _show(self, text: str) -> None:
        assert self._on_text is not None
        if len(text) > len(self._shown):
            known = text.startswith(self._shown)
            self._on_text(text[len(self._shown) :] if known else f"\n{text}")
            self._shown = text
