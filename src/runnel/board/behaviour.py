"""What a run recorded for people to look at: episodes, groups of completions, conversations; read line by line from its
folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from runnel.track.files import MAX_LINE, is_regular, open_regular, size_of
from runnel.track.folder import Row, RunFolder, read_rows
from runnel.track.history import is_number

NUM_LISTED = 2000
"""Most groups or conversations in a list; older ones are left out."""
TEXT = 160
"""Characters of a prompt that the list shows: its end, where prompts of one task differ."""


def recorded_episodes(folder: RunFolder) -> Row:
    """The recorded episodes, the newest first. Those whose file is gone are left out."""
    home = folder.path / "episodes"
    rows, problems = read_rows(home / "index.jsonl") if is_regular(home / "index.jsonl", below=folder.path) else ([], [])
    found = []
    for row in rows:
        name = row.get("file")
        if isinstance(name, str) and Path(name).name == name and is_regular(home / name, below=folder.path):
            found.append(row)
    return {"episodes": found[::-1], "problems": problems}


def episode_file(folder: RunFolder, name: str) -> Path | None:
    """The video called `name`, if it is one of the run's."""
    path = folder.path / "episodes" / name
    if Path(name).name != name or path.suffix not in (".mp4", ".webm") or not is_regular(path, below=folder.path):
        return None
    return path


class LineIndex:
    """An index of groups.jsonl or conversations.jsonl: where each line begins, and what a list shows of it (`head`). Each
    refresh reads only new lines."""

    def __init__(self, path: Path, head: Callable[[Row], Row]) -> None:
        self._path, self._head = path, head
        self._places: list[tuple[int, int]] = []
        self._heads: list[Row] = []
        self._offset = 0
        self.num_problems = 0

    def refresh(self) -> None:
        """Read the lines that were added."""
        try:
            size = size_of(self._path)
        except OSError:
            size = 0
        if size < self._offset:  # the run went back, or the file was thinned out: read all of it again
            self._places, self._heads, self._offset, self.num_problems = [], [], 0, 0
        if size == self._offset:
            return
        with open_regular(self._path) as file:
            file.seek(self._offset)
            while line := file.readline(MAX_LINE):
                if not line.endswith(b"\n"):
                    break
                self._add(line)
                self._offset += len(line)

    def _add(self, line: bytes) -> None:
        try:
            head = self._head(json.loads(line))
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            self.num_problems += 1
            return
        head["number"] = len(self._places)
        self._places.append((self._offset, len(line)))
        self._heads.append(head)

    def heads(self) -> list[Row]:
        """What the list shows of each line, the newest first."""
        return self._heads[::-1][:NUM_LISTED]

    def read(self, number: int) -> Row | None:
        """One line, whole; None if it is not there any more."""
        if not 0 <= number < len(self._places):
            return None
        start, size = self._places[number]
        with open_regular(self._path) as file:
            file.seek(start)
            try:
                found = json.loads(file.read(size))
            except ValueError:
                return None
        return dict(found) | {"number": number}


def group_head(group: Row) -> Row:
    """What the list shows of a group of completions."""
    rows = [row for row in group["rows"] if isinstance(row, Mapping)]
    rewards = [float(row["reward"]) for row in rows if is_number(row.get("reward"))]
    prompt = group.get("prompt")
    if any(row.get("turns") for row in rows) and (said := group.get("messages")):
        prompt = said[-1]["content"]  # the prompt of a conversation ends with what its template writes
    return {
        "version": group.get("version"),
        "source": str(group.get("source") or ""),
        "prompt": str(prompt or "")[-TEXT:],
        "rewards": rewards,
        "size": len(rows),
        **_agent(group),
    }


def _agent(told: Row) -> Row:
    """Which of several agents it is of."""
    agent = told.get("agent")
    return {} if agent is None else {"agent": f"agent {agent + 1}" if isinstance(agent, int) else str(agent)}


def conversation_head(talk: Row) -> Row:
    """What the list shows of a conversation: how it went, and the first words of whom the policy talks to."""
    messages = [m for m in talk["messages"] if isinstance(m, Mapping) and isinstance(m.get("content"), str)]
    asked = [m["content"] for m in messages if m.get("role") not in ("system", "developer", "assistant")]
    turns = [turn for turn in talk.get("turns") or [] if isinstance(turn, Mapping)]
    return {
        "version": talk.get("version"),
        "return": talk["return"] if is_number(talk.get("return")) else None,
        "reason": str(talk.get("reason") or ""),
        "turns": len(turns),
        **_agent(talk),
        "prompt": asked[0][:TEXT] if asked else "",
    }
