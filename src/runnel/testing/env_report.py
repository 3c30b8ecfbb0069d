"""The findings of `check_env`: errors stop or spoil a run, warnings may do so, hints are possible improvements."""

from __future__ import annotations

import textwrap
from typing import ClassVar

_WIDTH = 118


class BrokenEnvError(Exception):
    """The environment cannot be played any further; the report has the reason."""


class EnvReport(list[str]):
    """The errors of an environment, one text each, with the fix. An empty list is a pass.

    `warnings` and `hints` do not fail the check. `print(report)` shows all three.
    """

    words: ClassVar[tuple[str, str]] = ("step", "episode")
    """What is counted."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.warnings: list[str] = []
        self.hints: list[str] = []
        self.num_steps = 0
        """Number of steps played."""
        self.num_episodes = 0
        """Number of episodes that ended."""
        self._said: set[str] = set()

    def error(self, topic: str, text: str) -> None:
        """Add an error: a run would stop, or learn something false. Only the first finding of each topic is kept."""
        self._add(self, topic, text)

    def warn(self, topic: str, text: str) -> None:
        """Add a warning: often a mistake, but not always."""
        self._add(self.warnings, topic, text)

    def hint(self, topic: str, text: str) -> None:
        """Add a hint: it works, and could work better."""
        self._add(self.hints, topic, text)

    def stop(self, topic: str, text: str) -> BrokenEnvError:
        """Add an error after which the play cannot go on. The caller raises the returned exception."""
        self.error(topic, text)
        return BrokenEnvError(text)

    def _add(self, findings: list[str], topic: str, text: str) -> None:
        if topic not in self._said:
            self._said.add(topic)
            findings.append(text)

    def __str__(self) -> str:
        groups = (("error", list(self)), ("warning", self.warnings), ("hint", self.hints))
        counts = [f"{len(found)} {kind}{'s' * (len(found) != 1)}" for kind, found in groups if found]
        numbers = zip((self.num_steps, self.num_episodes), self.words, strict=True)
        played = ", ".join(f"{number} {word}{'s' * (number != 1)}" for number, word in numbers) + " played"
        lines = [f"{self.name}: {', '.join(counts) or 'nothing to complain about'} ({played})"]
        for kind, found in groups:
            for text in found:
                said, *code = text.splitlines()  # lines of a user's code stay lines
                lines += textwrap.wrap(said, _WIDTH, initial_indent=f"  {kind:<8} ", subsequent_indent=" " * 11)
                lines += [f"{' ' * 11}{line}" for line in code]
        return "\n".join(lines)
