"""The group of a batch that is recorded: which tokens of its rows are told, and where its turns lie among them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from runnel.core.records import Batch, Header
from runnel.core.state import State
from runnel.llm.learning.recorded_turns import RowFork, find_forks, forked_after, numbered

DIGITS = 5
"""Decimals of recorded numbers."""


@dataclass
class RecordedGroup:
    """The chosen trajectories of a reader's joined rows, and what the learner computed for their tokens, by place."""

    version: int
    header: Header
    joined: Batch
    part: Batch
    members: list[int]
    seen: dict[str, dict[int, float]] = field(default_factory=dict)

    def rows(self, number: int) -> list[int]:
        """The rows of a trajectory."""
        return (self.joined["row_owner"] == self.members[number]).nonzero().squeeze(1).tolist()

    def spans(self, number: int) -> list[tuple[int, int, int]]:
        """Where each row of a trajectory starts, where its completion starts, and where both end, in the joined rows."""
        return [self._span(row) for row in self.rows(number)]

    @property
    def has_turns(self) -> bool:
        """Whether the trajectories are conversations."""
        return "turn_row" in self.joined

    def forks(self, number: int) -> list[RowFork | None]:
        """How the rows of a trajectory begin like earlier ones."""
        return find_forks([self.joined["tokens"][start:end] for start, _, end in self.spans(number)])

    def told(self, number: int) -> list[tuple[int, int]]:
        """The tokens of each row that are told: of the first row all behind its prompt, of a later one all behind what it
        shares with an earlier row, with all its turns."""
        out: list[tuple[int, int]] = []
        for row, (start, begin, end), fork in zip(self.rows(number), self.spans(number), self.forks(number), strict=True):
            if fork is None:
                out.append((begin, end))
                continue
            marked = self.part["component"][start:end].nonzero().flatten()[:1].tolist()
            turns = self.joined["turn_start"][self.joined["turn_row"] == row].tolist() if self.has_turns else []
            out.append((min(start + least for least in (fork.shared, *marked, *turns)), end))
        return out

    def shown(self, number: int) -> Tensor:
        """Tokens of a trajectory that are told."""
        return torch.cat([torch.arange(first, end) for first, end in self.told(number)])

    def turns(self, number: int) -> State:
        """Where later rows, and turns, lie among the tokens that are told; nothing for a single completion."""
        rows, told, out = self.rows(number), self.told(number), State()
        lengths = [end - first for first, end in told]
        places = [sum(lengths[:i]) for i in range(len(rows))]
        if len(rows) > 1:
            out["row_starts"] = places[1:]
        if self.has_turns:
            shift = {row: place - first for row, place, (first, _) in zip(rows, places, told, strict=True)}
            mine = [turn for turn, row in enumerate(self.joined["turn_row"].tolist()) if row in shift]
            out["turns"] = [self._turn(turn, rows, shift) for turn in mine]
            names = [name for name in ("tool_calls", "tool_errors") if name in self.joined]
            out |= {name: int(self.joined[name][self.members[number]]) for name in names}
            if len(rows) > 1:
                out["rows"] = self._row_forks(number, places, mine)
        return out

    def _turn(self, turn: int, rows: Sequence[int], shift: Mapping[int, int]) -> State:
        """A turn: its place, its rewards by channel, its seconds outside of the engine, and the number of its state."""
        row = int(self.joined["turn_row"][turn])
        at = int(self.joined["row_start"][row]) + shift[row]
        rewards = {
            name.partition("/")[2]: float(self.joined[name][turn]) for name in self.joined if name.startswith("turn_rewards/")
        }
        out: State = {"start": int(self.joined["turn_start"][turn]) + at, "end": int(self.joined["turn_end"][turn]) + at}
        out["rewards"] = {name: None if math.isnan(x) else round(x, DIGITS) for name, x in rewards.items()}
        out["row"] = rows.index(row)
        if "duration_s" in self.joined:
            out["duration_s"] = round(float(self.joined["duration_s"][turn]), DIGITS)
        if "turn_key" in self.joined:
            out["state"] = self.states[int(self.joined["turn_key"][turn])]
        return out

    def _row_forks(self, number: int, places: Sequence[int], mine: Sequence[int]) -> list[State]:
        """The rows of a trajectory as a tree: where each is told, and what it forks from, after which turn."""
        rows, forks = self.rows(number), self.forks(number)
        of, ends = self.joined["turn_row"].tolist(), self.joined["turn_end"].tolist()
        turns = [[(i, int(ends[turn])) for i, turn in enumerate(mine) if of[turn] == row] for row in rows]
        out: list[State] = []
        for i, (place, fork) in enumerate(zip(places, forks, strict=True)):
            parent, shared = (None, 0) if fork is None else (fork.parent, fork.shared)
            after = forked_after(i, forks, turns)
            out.append({"start": place, "parent": parent, "shared": shared, "after": after})
        return out

    @cached_property
    def states(self) -> dict[int, int]:
        """A small number for each key of the group's turns: those in one state have the same."""
        mine = {row for number in range(len(self.members)) for row in self.rows(number)}
        keys = zip(self.joined["turn_row"].tolist(), self.joined["turn_key"].tolist(), strict=True)
        return numbered(key for row, key in keys if row in mine)

    def _span(self, row: int) -> tuple[int, int, int]:
        """The completion starts behind the prompt; where the length of that is not given, at the first token that may be
        trained."""
        start = int(self.joined["row_start"][row])
        end = start + int(self.joined["row_length"][row])
        if "prompt_length" in self.joined:
            return start, start + int(self.joined["prompt_length"][row]), end
        marked = self.joined["loss_mask"][start:end].nonzero()
        return start, start + int(marked[0]) if len(marked) else end, end

    def places(self) -> Tensor:
        """Tokens of the group in the joined rows."""
        spans = [span for number in range(len(self.members)) for span in self.spans(number)]
        return torch.cat([torch.arange(start, end) for start, _, end in spans])
