"""A signal: a speaker sees a secret and sends one letter; a listener hears the letter and names the secret."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import ClassVar

from runnel.core.contracts.chat import Lane, Message, Turn
from runnel.core.errors import DataError
from runnel.core.rng import make_rng
from runnel.core.state import Settings, State
from runnel.llm.worlds.world import entry_between, last_integer, said, said_letter, whole

SPEAKER, LISTENER = "speaker", "listener"
LETTERS = "abcdefghij"


class Signal:
    """A signalling game (Lewis 1969, Convention). The secret is a whole number from 1 to `num`. The speaker's message must be
    one of the first `num` letters; any other is heard as silence. The listener's answer is the last whole number of its
    message. Both earn 1 where it is the secret, and 0 otherwise: no letter means anything until both agree on it.

    Whoever speaks at random, or without heeding what was said, is right once in `num` plays. The seed draws the secret of a
    conversation.
    """

    agents: ClassVar[tuple[str, ...]] = (SPEAKER, LISTENER)
    lane: Lane = "inline"
    max_tokens = 8

    def __init__(self, *, num: int = 4) -> None:
        self._num = whole("signal.num", num, 2, len(LETTERS))
        self.now: State = {}

    def reset(self, task: Settings, *, seed: int) -> Mapping[str, Turn]:
        drawn = dict(task) or {"secret": int(make_rng(seed, "signal", "task").integers(1, self._num + 1))}
        self.now = {"secret": entry_between(drawn, "secret", 1, self._num, "signal"), "stage": SPEAKER}
        letters = " or ".join(LETTERS[: self._num])
        return {SPEAKER: Turn(f"The secret is {self.now['secret']}. Say {letters}.", key=str(self.now["secret"]))}

    def step(self, messages: Mapping[str, Message]) -> Mapping[str, Turn]:
        stage = self.now.get("stage", "")
        if not stage or set(messages) != {stage}:
            raise DataError(
                "world 'signal': step() without a conversation, or with the words of another agent; call reset() first"
            )
        text = said(messages[stage])
        if stage == SPEAKER:
            heard = said_letter(text, LETTERS[: self._num]) or "nothing"
            self.now["stage"] = LISTENER
            return {LISTENER: Turn(f"You hear {heard}. Which number from 1 to {self._num} is the secret?", key=heard)}
        self.now["stage"] = ""
        found = last_integer(text) == self.now["secret"]
        words = f"The secret was {self.now['secret']}."
        return {agent: Turn(words, float(found), terminated=True) for agent in self.agents}

    def get_state(self) -> State:
        return copy.deepcopy(self.now)

    def set_state(self, state: State) -> None:
        self.now = copy.deepcopy(state)
