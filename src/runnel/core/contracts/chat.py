"""Conversations: what an agent is told before it speaks, what it says, and what tools are.

`ChatEnv` means for messages what Gymnasium's `reset` and `step` mean for arrays, `ChatGame` what PettingZoo's parallel calls
mean. An environment is made anew for each conversation. What else it may offer stands in protocols of its own (`HasTasks`,
`HasTools`, `HasState`, `HasScript`, and `Closes` in `inference.py`): who has the methods, has it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from runnel.core.checks import as_number, wrong_number
from runnel.core.errors import DataError
from runnel.core.state import Settings, State

Message = Mapping[str, Any]
"""`role` and `content`, both text, and what else a chat template knows. An assistant's may have `tool_calls`, in the form of
chat templates: `{"id": "call-0", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}`, and `tool_errors`:
calls in its text that cannot be read, each as `{"kind": "not_json", "text": "words for the model"}`; with either, `text` is
all that it said, word for word. A tool's has `tool_call_id` and `name`."""
Lane = Literal["inline", "thread", "async"]
"""Where calls of user code run: at once (pure and fast code: such runs can be replayed), in a thread, as a coroutine."""
REWARD = "reward"
"""The channel of a reward that is given as a number."""
TOOL_CALLS, TOOL_ERRORS = "tool_calls", "tool_errors/"
"""What is counted of tools (`Turn.counts`): their calls, and by kind (the name goes on) those that failed. Kinds of ours:
`unknown` (no such tool), `not_json`, `arguments` (they do not fit the schema), `raised`, `timeout`, `too_long`, `died`."""
UNUSABLE = "unusable"
"""The kind of a `ToolFailure` that is not the model's to deal with: what the tool needs is not there. The conversation has
failed, as where its environment fails. So it is where a tool raises a `ConfigError`."""


@dataclass(frozen=True)
class Turn:
    """What an agent gets before it speaks again: new messages, what it earned by what it said last, and whether that was all.

    A text stands for one message of the user, a number for the channel `reward`. Messages of the last turn are read by nobody
    who learns, but people see them.

    >>> turn = Turn("higher", 0.5)
    >>> turn.messages, turn.rewards
    (({'role': 'user', 'content': 'higher'},), {'reward': 0.5})
    """

    messages: str | Sequence[Message] = ()
    rewards: float | Mapping[str, float] = field(default_factory=dict)
    """By channel (`ChatEnv.rewards`); a channel that is not named earned 0."""
    terminated: bool = False
    """The conversation has ended by itself."""
    truncated: bool = False
    """The environment has cut it off, by a limit of its own."""
    key: str = ""
    """The state that the agent is in, where turns in the same state may have other messages: credit by state compares it.
    Empty: the new messages are the state."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What happened in this turn and is to be counted, by name: `tool_calls`, `tool_errors/raised`."""

    def __post_init__(self) -> None:
        said = ({"role": "user", "content": self.messages},) if isinstance(self.messages, str) else self.messages
        object.__setattr__(self, "messages", tuple(dict(m) for m in said))
        given = self.rewards if isinstance(self.rewards, Mapping) else {REWARD: self.rewards}
        for name, value in given.items():
            if why := wrong_number(value):
                raise DataError(f"the reward {name!r} of a turn {why}; give a finite number, or leave the channel out")
        object.__setattr__(self, "rewards", {str(name): as_number(value) for name, value in given.items()})

    @property
    def over(self) -> bool:
        """Whether the agent does not speak again."""
        return self.terminated or self.truncated

    @property
    def heard(self) -> tuple[Message, ...]:
        """The new messages, whatever form they were given in."""
        assert not isinstance(self.messages, str), "a text was made a message"
        return tuple(self.messages)

    @property
    def earned(self) -> Mapping[str, float]:
        """The rewards by channel, whatever form they were given in."""
        assert isinstance(self.rewards, Mapping), "a number was made a channel"
        return self.rewards


class ChatEnv(Protocol):
    """A conversation with one agent. Both methods may be `async`; what they raise is a failure that is counted, never a reward.

    An environment with more than the channel `reward` has `rewards`, a mapping from each channel to its weight in what is
    maximised. One whose calls are pure and fast has
    `lane = "inline"`.
    """

    def reset(self, task: Settings, *, seed: int) -> Turn | Awaitable[Turn]:
        """The first messages of a conversation. All conversations of a group have one task and one seed, and so one start."""
        ...

    def step(self, message: Message) -> Turn | Awaitable[Turn]:
        """What the agent's message led to. `message` has `content`. Calls of tools do not come here; where the environment has
        no tools, nothing is looked for in the text."""
        ...


@runtime_checkable
class HasRewards(Protocol):
    """Has more channels than `reward`."""

    rewards: Mapping[str, float]


@runtime_checkable
class HasLane(Protocol):
    """Says where its calls run; others run as coroutines where they are `async`, else in threads."""

    lane: Lane


@runtime_checkable
class HasTasks(Protocol):
    """Knows what may be played: plain data for `reset`. Other environments play `{}`, and the seed alone decides."""

    def tasks(self) -> tuple[Sequence[Settings], Sequence[Settings]]:
        """Tasks to train on, and others to measure with. Lazy sequences are asked only for what is played."""
        ...


@runtime_checkable
class HasTools(Protocol):
    """Offers tools, which may change the environment's own state. Whoever plays the conversation shows their schemas to the
    model and calls them, with a deadline for each call: `step` gets only messages without calls."""

    def tools(self) -> Sequence[Tool]: ...


@runtime_checkable
class HasState(Protocol):
    """Can be saved and put back as plain data, in the middle of a conversation. Others are played again, message by message."""

    def get_state(self) -> State: ...

    def set_state(self, state: State) -> None: ...


@runtime_checkable
class HasScript(Protocol):
    """Knows how to play well: what to imitate, and what to compare with."""

    def script(self) -> str | Message:
        """A good message now, as its text or with `tool_calls`."""
        ...


class ChatGame(Protocol):
    """A conversation with several agents. Those that get a `Turn` speak next; a `Turn` that is over ends it for that agent."""

    agents: Sequence[str]

    def reset(self, task: Settings, *, seed: int) -> Mapping[str, Turn] | Awaitable[Mapping[str, Turn]]: ...

    def step(self, messages: Mapping[str, Message]) -> Mapping[str, Turn] | Awaitable[Mapping[str, Turn]]: ...


# ---------------------------------------------------------------------------------------------------------------- tools
@dataclass(frozen=True)
class Tool:
    """What a model may call: its name, what it does, and the JSON schema of its arguments.

    `open` makes the tool of one conversation, so a tool may have a state of its own. Nothing of it is shared between two
    conversations.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    open: Callable[[], OpenTool]
    lane: Lane = "thread"


class OpenTool(Protocol):
    """A tool in one conversation. One with a state has `get_state` and `set_state` too (`HasState`)."""

    def call(self, arguments: Mapping[str, Any]) -> object | Awaitable[object]:
        """Text, or plain data that is shown as JSON; a `Turn` where the call earns something or ends the conversation (its
        messages are then the result). A `ToolFailure` is told to the model as it is."""
        ...

    def close(self) -> None: ...


class ToolFailure(Exception):
    """A call that failed, in words for the model, and of which kind it is, for the counts; a name, as `no_such_file`."""

    def __init__(self, text: str, *, kind: str = "raised") -> None:
        super().__init__(text)
        self.kind = kind
