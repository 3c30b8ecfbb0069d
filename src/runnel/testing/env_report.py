"""What `check_env` found, by weight: errors stop or spoil a run, warnings may, hints are worth a thought."""

from __future__ import annotations

import textwrap

_WIDTH = 118


class BrokenEnvError(Exception):
    """The environment cannot be played on; the report says why."""


class EnvReport(list[str]):
    """The errors of an environment, a sentence each, with the fix: an empty list is a pass.

    `warnings` and `hints` stand beside them and fail nothing. `print(report)` shows all three.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.warnings: list[str] = []
        self.hints: list[str] = []
        self.num_steps = 0
        """Steps played in all."""
        self.num_episodes = 0
        """Episodes that ended."""
        self._said: set[str] = set()

    def error(self, topic: str, text: str) -> None:
        """A run would stop, or learn something false. Of each topic only the first finding is kept."""
        self._add(self, topic, text)

    def warn(self, topic: str, text: str) -> None:
        """Often a mistake, but not always."""
        self._add(self.warnings, topic, text)

    def hint(self, topic: str, text: str) -> None:
        """Works, and could work better."""
        self._add(self.hints, topic, text)

    def stop(self, topic: str, text: str) -> BrokenEnvError:
        """An error after which there is no playing on; raise what it returns."""
        self.error(topic, text)
        return BrokenEnvError(text)

    def _add(self, findings: list[str], topic: str, text: str) -> None:
        if topic not in self._said:
            self._said.add(topic)
            findings.append(text)

    def __str__(self) -> str:
        groups = (("error", list(self)), ("warning", self.warnings), ("hint", self.hints))
        counts = [f"{len(found)} {kind}{'s' * (len(found) != 1)}" for kind, found in groups if found]
        lines = [f"{self.name}: {', '.join(counts) or 'nothing to complain about'} ({self._played()})"]
        for kind, found in groups:
            for text in found:
                lines += textwrap.wrap(text, _WIDTH, initial_indent=f"  {kind:<8} ", subsequent_indent=" " * 11)
        return "\n".join(lines)

    def _played(self) -> str:
        steps, episodes = self.num_steps, self.num_episodes
        return f"{steps} step{'s' * (steps != 1)}, {episodes} episode{'s' * (episodes != 1)} played"
