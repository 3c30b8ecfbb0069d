"""The settings of conversations: limits, how calls are written, and what of the past is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from runnel.core.bounds import bounded, check_bounds
from runnel.core.errors import ConfigError
from runnel.core.resuming import OnResume, may_change, stays

History = Literal["keep", "template"]
DialectName = Literal["auto", "hermes", "llama", "python"]


@dataclass(frozen=True)
class TalkConfig:
    """Conversations of several turns."""

    on_resume: ClassVar[OnResume] = (
        may_change("step_timeout_s", "tool_timeout_s", "time_limit_s", "retries", then="counts from the next call on")
        | may_change("first", "grow_every", then="counts from the next conversation on")
        | stays("history", "dialect", "max_calls", "tool_chars", why="what was learned is of conversations of that form")
    )

    history: History = "keep"
    """What a prompt says of earlier turns. keep: all tokens as they were said, so a conversation is one row to train on.
    template: what the model's chat template makes of the messages at each turn (some leave out earlier thoughts); where that
    changes the past, a new row begins."""
    dialect: DialectName = "auto"
    """How calls of tools are written in the text. auto: as the model's chat template writes them, else hermes."""
    step_timeout_s: float = bounded(60.0, above=0)
    """Most seconds that the environment may take for one step; then its conversation has failed."""
    tool_timeout_s: float = bounded(20.0, above=0)
    """Most seconds that a tool may take for one call; then the model is told so."""
    time_limit_s: float = bounded(0.0, at_least=0)
    """A conversation that takes longer is cut off before its next turn; 0: no limit."""
    max_calls: int = bounded(8, at_least=1)
    """Calls of tools that are answered in one turn; the model is told of those beyond."""
    tool_chars: int = bounded(4000, at_least=100)
    """The result of a call is cut in its middle to so many characters, with a mark."""
    retries: int = bounded(1, at_least=0)
    """A conversation whose environment fails is begun anew so often; then its group is cancelled, with the reason."""
    first: int = bounded(0, at_least=0)
    """A growing horizon (ScalingInter-RL): the most turns at the start of the run, one more after each `grow_every` updates,
    up to max_turns. 0: max_turns from the start."""
    grow_every: int = bounded(50, at_least=1)
    """Updates after which the horizon grows by one turn."""

    def __post_init__(self) -> None:
        check_bounds(self, "talk.")

    def horizon(self, max_turns: int, version: int) -> int:
        """The most turns of a conversation that this version begins.

        >>> [TalkConfig(first=2, grow_every=10).horizon(4, v) for v in (0, 9, 10, 20, 99)]
        [2, 2, 3, 4, 4]
        """
        if not self.first:
            return max_turns
        return min(max_turns, self.first + max(version, 0) // self.grow_every)

    def check(self, max_turns: int) -> None:
        """Raise a `ConfigError` for a horizon that could never grow."""
        if self.first > max_turns:
            raise ConfigError("talk.first", self.first, f"is above max_turns = {max_turns}; use at most that")

    def unused(self) -> dict[str, str]:
        """Settings that nothing would read, and why."""
        return {} if self.first else {"talk.grow_every": "is of a growing horizon; set talk.first"}
