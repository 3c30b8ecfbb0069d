"""A conversation while it is played: what each agent said and heard, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from runnel.core.contracts.chat import TOOL_CALLS, TOOL_ERRORS, ChatGame, Message
from runnel.core.state import Settings, State
from runnel.llm.chat.rows import Said
from runnel.llm.chat.tools import Toolbox

Stage = Literal["idle", "ready", "asked", "tools", "spoke", "over"]
"""Of an agent: it is not its turn; its prompt is ready; the engine is asked; its calls of tools run; it has spoken; it is
through."""
Reason = Literal["", "terminated", "environment", "turns", "context", "time"]
"""Why it is through: the conversation ended, the environment cut it off, or a limit of the run did."""
TOO_LONG = "prompt_too_long"
"""Why a conversation has failed whose first prompt leaves no room for a reply."""


@dataclass(eq=False)
class Speaker:
    """One agent of a conversation."""

    agent: str
    toolbox: Toolbox
    partner: bool = False
    """Whether a model speaks for it that is never trained."""
    stage: Stage = "idle"
    said: Said = field(default_factory=Said)
    messages: list[Message] = field(default_factory=list)
    """All messages that it heard and said."""
    key: int = 0
    """The state in which it speaks next, as a number."""
    ticket: int | None = None
    """Of the engine's reply, or of the call of a tool."""
    asked_at: float = 0.0
    results: list[Message] = field(default_factory=list)
    """Answers to the calls of its newest message, so far."""
    reason: Reason = ""
    early: dict[str, float] = field(default_factory=dict)
    """What it earned before it ever spoke."""

    @property
    def terminated(self) -> bool:
        return self.reason == "terminated"

    @property
    def spoken(self) -> Message:
        """Its newest message."""
        return self.messages[-1 - len(self.results)]

    @property
    def answer(self) -> str:
        """What it said last. Where a limit ends the conversation, the result of a tool may stand behind it."""
        return next((str(m["content"]) for m in reversed(self.messages) if m["role"] == "assistant"), "")

    def total(self, channel: str) -> float:
        """What it earned in a channel."""
        return sum(turn.rewards.get(channel, 0.0) for turn in self.said.turns) + self.early.get(channel, 0.0)

    def count(self, prefix: str) -> int:
        """What was counted under names that begin so."""
        return sum(n for turn in self.said.turns for name, n in turn.counts.items() if name.startswith(prefix))

    @property
    def tool_calls(self) -> int:
        return self.count(TOOL_CALLS)

    @property
    def tool_errors(self) -> dict[str, int]:
        """Calls of tools that failed, by kind."""
        found: dict[str, int] = {}
        for turn in self.said.turns:
            for name, n in turn.counts.items():
                if name.startswith(TOOL_ERRORS):
                    kind = name.removeprefix(TOOL_ERRORS)
                    found[kind] = found.get(kind, 0) + n
        return found

    def data(self) -> State:
        """Plain data, for a checkpoint. The engine's ticket is in the client's; a call of a tool is made again."""
        asked = self.ticket if self.stage == "asked" else None
        return {
            "agent": self.agent,
            "stage": self.stage,
            "said": self.said.data(),
            "messages": [dict(m) for m in self.messages],
            "key": self.key,
            "ticket": asked,
            "results": len(self.results),
            "reason": self.reason,
            "early": dict(self.early),
        }

    def restore(self, data: State, *, now: float) -> None:
        self.asked_at = now
        self.stage, self.said = data["stage"], Said.restored(data["said"])
        self.messages, self.key, self.ticket = [dict(m) for m in data["messages"]], data["key"], data["ticket"]
        self.results = list(self.messages[len(self.messages) - data["results"] :])
        self.reason, self.early = data["reason"], dict(data["early"])


@dataclass(eq=False)
class Conversation:
    """A game that is played, with all of its agents. `names` make the seeds of its replies, `seed` is the environment's own:
    equal for all conversations of a group."""

    number: int
    task: Settings
    seed: int
    names: tuple[int | str, ...]
    game: ChatGame
    sides: dict[str, Speaker]
    version: int = -1
    """The exact version that must make its replies; -1: any."""
    affinity: int = -1
    max_turns: int = 1
    greedy: bool = False
    attempt: int = 0
    """How often it was begun before, and failed."""
    called: Literal["", "reset", "step"] = ""
    """The call of the environment that runs."""
    ticket: int | None = None
    began: float = 0.0
    failure: str = ""
    lines: str = ""
    lost: bool = False
    """Whether it failed because a restart could not bring its environment back."""
    hopeless: bool = False
    """Whether it would fail again."""
    released: bool = False
    """Whether its environment and tools have let go of what they hold."""
    log: list[list[Any]] = field(default_factory=list)
    """What was done to the environment and its tools: to do it again where their state cannot be saved. `["step", messages,
    what came]`, `["tool", agent, call, what came]`."""

    @property
    def over(self) -> bool:
        """Whether all of its agents are through."""
        return not self.failure and not self.called and all(side.stage == "over" for side in self.sides.values())

    @property
    def runs(self) -> bool:
        """Whether the engine works for it."""
        return any(side.stage == "asked" for side in self.sides.values())

    def tickets(self) -> list[int]:
        """Those of the engine."""
        return [side.ticket for side in self.sides.values() if side.stage == "asked" and side.ticket is not None]

    def speakers(self) -> list[Speaker]:
        """Agents that have spoken and wait for the environment, where all whose turn it was have spoken."""
        if any(side.stage in ("ready", "asked", "tools") for side in self.sides.values()):
            return []
        return [side for side in self.sides.values() if side.stage == "spoke"]

    def data(self, *, now: float) -> State:
        """Plain data, for a checkpoint, without the state of its environment and tools."""
        names = ("number", "seed", "version", "affinity", "max_turns", "greedy", "attempt", "called")
        return {name: getattr(self, name) for name in (*names, "failure", "lines", "hopeless")} | {
            "names": list(self.names),
            "elapsed": now - self.began,
            "sides": [side.data() for side in self.sides.values()],
            "log": [list(entry) for entry in self.log],
        }

    def restore(self, data: State, *, now: float) -> None:
        """Be what `data` told, but for what was known when it was made. Its environment is new, or could not be made."""
        self.attempt, self.hopeless, self.began = data["attempt"], data["hopeless"], now - data["elapsed"]
        self.lost = bool(self.failure) and not data["failure"]
        if self.lost:
            return
        self.failure, self.lines, self.log = data["failure"], data["lines"], [list(entry) for entry in data["log"]]
        if self.sides and data["sides"]:  # both are, but where an environment could not be made
            for side, told in zip(self.sides.values(), data["sides"], strict=True):
                side.restore(told, now=now)

    def policy_versions(self) -> list[int]:
        """The versions of the policy that made its tokens; a partner has none."""
        rows = [row for side in self.sides.values() if not side.partner for row in side.said.rows]
        return [v for row in rows for v in row.fields["policy_version"] if v >= 0]
