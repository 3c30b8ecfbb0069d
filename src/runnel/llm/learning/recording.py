"""Records groups of completions for people to read: text, rewards, and what engine and learner computed for every token.

The learner chooses one group of a batch (`choose`), passes on what it computes for the group's tokens (`see`), and sends the
record with its update (`take`). Updates that record nothing do nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from runnel.core.records import Batch, Header, Segment
from runnel.core.state import State
from runnel.llm.algorithms.base import sum_channels, trajectory_reward
from runnel.llm.learning.batches import MicroBatch
from runnel.llm.tasks import Example
from runnel.llm.tokenize import Tokenizer

PLACE = "recorded_place"
"""The field of a batch that says which of its tokens are recorded: 1 + their place in the joined rows, 0 elsewhere."""
DIGITS = 5
_LOST = "\ufffd"


@dataclass(eq=False)
class GroupRecorder:
    """Records one group each `every` versions. `channels` are reward channels and their weights; a row with a total of
    `pass_reward` has passed. `example` finds a prompt by its task id; `source` is the name of the task."""

    tokenizer: Tokenizer
    every: int
    channels: Mapping[str, float] = field(default_factory=dict)
    pass_reward: float = 1.0
    example: Callable[[int], Example | None] | None = None
    source: str = ""
    _group: RecordedGroup | None = None

    def choose(
        self, version: int, segments: Mapping[str, Sequence[Segment]], rows: Mapping[str, Batch], parts: Sequence[Batch]
    ) -> Batch:
        """Start the record of a group of the batch that makes `version`; each time another group. `rows` are the joined rows of
        each reader, `parts` the same rows annotated. Returns a field of the batch that marks the group's tokens (`PLACE`)."""
        self._group = None
        if not self.every or version % self.every:
            return Batch()
        start = 0
        for (reader, joined), part in zip(rows.items(), parts, strict=True):
            if found := _members(joined, segments[reader], version // self.every):
                group = RecordedGroup(version, segments[reader][found[0]].header, joined, part, found[1])
                self._group = group
                place = torch.zeros(sum(len(p["tokens"]) for p in parts), dtype=torch.int64)
                place[start + group.places()] = 1 + group.places()
                return Batch({PLACE: place})
            start += len(part["tokens"])
        return Batch()

    def see(self, part: MicroBatch, outputs: Batch) -> None:
        """Record what the learner computed for the group's tokens: for each token the first numbers, from before the step."""
        if self._group is None or PLACE not in part.fields:
            return
        chosen = part.fields[PLACE].nonzero().squeeze(1)
        places = (part.fields[PLACE][chosen] - 1).tolist()
        found = {name: outputs[name].detach()[chosen].tolist() for name in ("logprob", "entropy") if name in outputs}
        for name, values in found.items():
            known = self._group.seen.setdefault(name, {})
            for place, value in zip(places, values, strict=True):
                known.setdefault(place, value)

    def take(self) -> list[State]:
        """End the record, and return it as an event."""
        group, self._group = self._group, None
        return [] if group is None else [self._event(group)]

    # ------------------------------------------------------------------------------------------------------------- text
    def _event(self, group: RecordedGroup) -> State:
        example = None
        if self.example is not None and group.header.task_id >= 0:
            example = self.example(group.header.task_id)
        start, begin, _ = group.spans(0)[0]
        prompt = self.tokenizer.decode(group.joined["tokens"][start:begin].tolist()) if example is None else example.text
        messages = None
        if example is not None and not isinstance(example.prompt, str):
            messages = [dict(m) for m in example.prompt]
        return {
            "kind": "group",
            "version": group.version,
            "task_id": group.header.task_id,
            "sample_id": group.header.sample_id,
            "prompt": prompt,
            "messages": messages,
            "source": self.source,
            "rows": [self._row(group, i) for i in range(len(group.members))],
        }

    def _row(self, group: RecordedGroup, number: int) -> State:
        """A completion, or a conversation: all that follows the first prompt."""
        member, at = group.members[number], group.shown(number)
        ids = group.joined["tokens"][at].tolist()
        mask = (group.part["component"][at] != 0).int().tolist()
        out: State = {
            "completion": self.tokenizer.decode(ids),
            "reward": None,
            "rewards": {},
            "advantage": None,
            "truncated": bool(group.joined["truncated"][member]) if "truncated" in group.joined else False,
            "passed": None,
            "tokens": token_texts(ids, self.tokenizer),
            "ids": ids,
            "mask": mask,
        }
        if self.channels and all(f"rewards/{c}" in group.joined for c in self.channels):
            out |= self._rewards(group, member)
        elif len(group.members) == 2 and "prompt_length" not in group.joined:
            out["label"] = ("chosen", "rejected")[number]
        if "advantage" in group.part:
            advantages = group.part["advantage"][at].tolist()
            trained = [a for a, m in zip(advantages, mask, strict=True) if m]
            out |= {"advantages": _rounded(advantages), "advantage": _mean(trained)}
        return out | group.turns(number) | self._tokens(group, at)

    def _rewards(self, group: RecordedGroup, member: int) -> State:
        each = {channel: float(trajectory_reward(group.joined, channel)[member]) for channel in self.channels}
        total = float(sum_channels(group.joined, self.channels)[member])
        rewards = {name: None if math.isnan(value) else round(value, DIGITS) for name, value in each.items()}
        return {"reward": round(total, DIGITS), "rewards": rewards, "passed": total >= self.pass_reward - 1e-6}

    def _tokens(self, group: RecordedGroup, at: Tensor) -> State:
        """Log-probabilities of engine and learner, and the entropy, of each token; None where the learner computed none."""
        out: State = {}
        if "policy_version" in group.joined:
            out["versions"] = group.joined["policy_version"][at].tolist()
        said: dict[str, list[float | None]] = {}
        if "logprob" in group.joined:
            said["logprob"] = group.joined["logprob"][at].tolist()
        for name, known in group.seen.items():
            values = [known.get(place) for place in at.tolist()]
            if any(v is not None for v in values):
                said[{"logprob": "learner_logprob"}.get(name, name)] = values
        out |= {name: _rounded(values) for name, values in said.items()}
        if "logprob" in said and "learner_logprob" in said:
            out["mismatch"] = [_gap(*pair) for pair in zip(said["learner_logprob"], said["logprob"], strict=True)]
        return out


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

    def shown(self, number: int) -> Tensor:
        """Tokens of a trajectory that are told: its first completion, and later rows whole."""
        spans = self.spans(number)
        return torch.cat([torch.arange(start if i else begin, end) for i, (start, begin, end) in enumerate(spans)])

    def turns(self, number: int) -> State:
        """Where later rows, and turns, lie among the tokens that are told; nothing for a single completion."""
        rows, spans, out, first, shift = self.rows(number), self.spans(number), State(), 0, dict[int, int]()
        for i, (row, (start, begin, end)) in enumerate(zip(rows, spans, strict=True)):
            told = start if i else begin
            shift[row] = first - (told - start)
            first += end - told
            if i:
                out.setdefault("row_starts", []).append(shift[row])
        if "turn_row" in self.joined:
            names = [name for name in self.joined if name.startswith("turn_rewards/")]
            out["turns"] = []
            for turn, row in enumerate(self.joined["turn_row"].tolist()):
                if row in shift:
                    ends = [int(self.joined[name][turn]) + shift[row] for name in ("turn_start", "turn_end")]
                    found = {name.partition("/")[2]: float(self.joined[name][turn]) for name in names}
                    rewards = {name: None if math.isnan(x) else round(x, DIGITS) for name, x in found.items()}
                    out["turns"].append({"start": ends[0], "end": ends[1], "rewards": rewards})
        return out

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


def _members(joined: Batch, segments: Sequence[Segment], turn: int) -> tuple[int, list[int]] | None:
    """Number of the segment and trajectories of one group or pair; None if those of a segment are independent of each other."""
    size = segments[0].spec.unit_rows
    if size < 2:
        return None
    units = len(joined["group"]) // size
    if not units:
        return None
    members = list(range(turn % units * size, (turn % units + 1) * size))
    return int(joined["group"][members[0]]), members


def token_texts(ids: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    """The text that each token adds. A token that ends inside a character adds nothing yet; the one that completes it adds the
    whole character. Joined they are the decoded text.

    >>> from runnel.llm.tokenize import CharTokenizer
    >>> t = CharTokenizer()
    >>> token_texts(t.encode("añ"), t)
    ['a', '', 'ñ']
    """
    alone = {token: tokenizer.decode([token]) for token in set(ids)}
    if "".join(pieces := [alone[token] for token in ids]) == tokenizer.decode(ids):
        return pieces  # most texts: no character is spread over several tokens
    out: list[str] = []
    start = read = 0
    for end in range(1, len(ids) + 1):
        before, text = tokenizer.decode(ids[start:read]), tokenizer.decode(ids[start:end])
        if text.endswith(_LOST) and end < len(ids) and end - read < 8:
            out.append("")
            continue
        out.append(text[len(before) :])
        start, read = read, end
    return out


def _rounded(values: Iterable[float | None]) -> list[float | None]:
    return [None if v is None or not math.isfinite(v) else round(v, DIGITS) for v in values]


def _gap(ours: float | None, theirs: float | None) -> float | None:
    """The difference, with three significant digits however small it is."""
    return None if ours is None or theirs is None else float(f"{ours - theirs:.3g}")


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), DIGITS) if values else None
