"""Records groups of completions for people to read: text, rewards, and what engine and learner computed for every token.

The learner chooses one group of a batch (`choose`), passes on what it computes for the group's tokens (`see`), and sends the
record with its update (`take`). Updates that record nothing do nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from runnel.core.records import Batch, Segment
from runnel.core.state import State
from runnel.llm.algorithms.base import sum_channels, trajectory_reward
from runnel.llm.learning.batches import MicroBatch
from runnel.llm.learning.recorded_group import DIGITS, RecordedGroup
from runnel.llm.learning.recorded_turns import control_places, find_messages
from runnel.llm.tasks import Example
from runnel.llm.tokenize import Tokenizer

PLACE = "recorded_place"
"""The field of a batch that says which of its tokens are recorded: 1 + their place in the joined rows, 0 elsewhere."""
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
    agents: Sequence[str] = ()
    """Names of the agents that are trained, where there are several."""
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
        return {
            "kind": "group",
            "version": group.version,
            "task_id": group.header.task_id,
            "sample_id": group.header.sample_id,
            **self._prompt(group, example),
            **({"agent": self._agent(group)} if "agent" in group.joined else {}),
            "source": self.source,
            **({"weights": dict(self.channels)} if set(self.channels.values()) - {1.0} else {}),
            "rows": [self._row(group, i) for i in range(len(group.members))],
        }

    def _agent(self, group: RecordedGroup) -> int | str:
        """Whose trajectories these are: its name, or its number where nobody said names."""
        number = int(group.joined["agent"][group.members[0]])
        return self.agents[number] if number < len(self.agents) else number

    def _prompt(self, group: RecordedGroup, example: Example | None) -> State:
        """The prompt as its task has it; that of a conversation as its tokens say it, with what the sampler put there."""
        start, begin, _ = group.spans(0)[0]
        ids = group.joined["tokens"][start:begin].tolist()
        if group.has_turns:
            texts = token_texts(ids, self.tokenizer.spell)
            parts = find_messages(texts, control_places(ids, self.tokenizer))
            said = [(part["role"], self.tokenizer.decode(ids[part["said"] : part["end"]]).strip("\n")) for part in parts]
            named = [{"role": role, "content": content} for role, content in said if role and content]
            return {"prompt": "".join(texts), "messages": named or None}
        if example is None:
            return {"prompt": self.tokenizer.decode(ids), "messages": None}
        messages = None if isinstance(example.prompt, str) else [dict(m) for m in example.prompt]
        return {"prompt": example.text, "messages": messages}

    def _row(self, group: RecordedGroup, number: int) -> State:
        """A completion, or a conversation: all that follows the first prompt."""
        member, at = group.members[number], group.shown(number)
        ids = group.joined["tokens"][at].tolist()
        mask = (group.part["component"][at] != 0).int().tolist()
        texts = token_texts(ids, self.tokenizer.spell if group.has_turns else self.tokenizer.decode)
        out: State = {
            "completion": "".join(texts),
            "reward": None,
            "rewards": {},
            "advantage": None,
            "truncated": bool(group.joined["truncated"][member]) if "truncated" in group.joined else False,
            "passed": None,
            "tokens": texts,
            "ids": ids,
            "mask": mask,
        }
        if self.channels and all(f"rewards/{c}" in group.joined for c in self.channels):
            out |= self._rewards(group, member)
        elif "mismatched" in group.joined:
            rating = "good" if group.joined["rating"][member] > 0 else "bad"
            out["label"] = "mismatched" if group.joined["mismatched"][member] else rating
        elif len(group.members) == 2 and "prompt_length" not in group.joined:
            out["label"] = ("chosen", "rejected")[number]
        if "advantage" in group.part:
            advantages = group.part["advantage"][at].tolist()
            trained = [a for a, m in zip(advantages, mask, strict=True) if m]
            out |= {"advantages": _rounded(advantages), "advantage": _mean(trained)}
        turns = group.turns(number)
        return out | turns | self._between(ids, texts, turns) | self._tokens(group, at)

    def _between(self, ids: Sequence[int], texts: Sequence[str], told: State) -> State:
        """Who said what lies between the turns of a conversation: control tokens, and messages by their roles."""
        if "turns" not in told:
            return {}
        control = control_places(ids, self.tokenizer)
        ends = [(0, 0), *((turn["start"], turn["end"]) for turn in told["turns"]), (len(ids), len(ids))]
        marks = sorted({*told.get("row_starts", []), *(place for end in ends for place in end)})
        inside = {start for start, end in ends if end > start}
        messages: list[State] = []
        for start, end in pairwise(marks):
            if start not in inside:
                found = find_messages(texts[start:end], [place - start for place in control if start <= place < end])
                messages += [{k: v if k == "role" else v + start for k, v in part.items()} for part in found]
        return {"control": control, "messages": messages}

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


def _members(joined: Batch, segments: Sequence[Segment], turn: int) -> tuple[int, list[int]] | None:
    """Number of the segment and trajectories of one group or pair; None if those of a segment are independent of each other.
    Of several agents, each has a group of its own."""
    size = segments[0].spec.unit_rows
    if size < 2:
        return None
    units = len(joined["group"]) // size
    if not units:
        return None
    agents = int(joined["agent"].max()) + 1 if "agent" in joined else 1
    unit, agent = divmod(turn % (units * agents), agents)
    members = list(range(unit * size, (unit + 1) * size))
    ends = torch.tensor([s.num_rows for s in segments]).cumsum(0)
    number = int(torch.searchsorted(ends, members[0], right=True))
    return number, members if agents == 1 else [m for m in members if int(joined["agent"][m]) == agent]


def token_texts(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[str]:
    """The text that each token adds. A token that ends inside a character adds nothing yet; the one that completes it adds the
    whole character. Joined they are the decoded text.

    >>> from runnel.llm.tokenize import CharTokenizer
    >>> t = CharTokenizer()
    >>> token_texts(t.encode("añ"), t.decode)
    ['a', '', 'ñ']
    """
    alone = {token: decode([token]) for token in set(ids)}
    if "".join(pieces := [alone[token] for token in ids]) == decode(ids):
        return pieces  # most texts: no character is spread over several tokens
    out: list[str] = []
    start = read = 0
    for end in range(1, len(ids) + 1):
        before, text = decode(ids[start:read]), decode(ids[start:end])
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
