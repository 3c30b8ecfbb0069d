"""A group of conversations: several plays of one task from one start, from the first prompt to the segment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from runnel.core.records import Batch
from runnel.llm.chat.conversation import Conversation, Speaker
from runnel.llm.rewards.judging import scalar
from runnel.llm.sampling.groups import CompletionGroup


@dataclass(eq=False)
class ChatGroup(CompletionGroup):
    """The conversations of one task. A trajectory is what one trained agent of one of them said."""

    conversations: list[Conversation] = field(default_factory=list)
    trained: tuple[str, ...] = ()
    """The agents whose replies are trained on."""
    begun: bool = False
    judged: bool = False
    """Whether its verdict is asked for."""

    @property
    def waits(self) -> bool:
        return not self.begun

    @property
    def runs(self) -> bool:
        return self.begun and not self.judged

    @property
    def complete(self) -> bool:
        """Whether nothing more comes of any of its conversations."""
        return self.begun and all(c.over or c.failure for c in self.conversations)

    @property
    def unjudged(self) -> bool:
        return False  # the sampler looks at groups that run

    def sides(self) -> Iterator[Speaker]:
        """Its trajectories, in the order of the segment's rows."""
        for conversation in self.conversations:
            for agent in self.trained:
                yield conversation.sides[agent]

    def oldest(self) -> int | None:
        """The oldest version that made a token of it."""
        versions = [v for conversation in self.conversations for v in conversation.policy_versions()]
        return min(versions, default=None)


def fill_conversations(group: ChatGroup, turn_channels: Mapping[str, float], *, greedy_first: bool = False) -> int:
    """Write the trajectories of a group into its segment; returns the number of tokens that the policy made."""
    assert group.rewards is not None, "it is judged"
    arrays, start, row, turn, made = group.slot.arrays, 0, 0, 0, 0
    for owner, side in enumerate(group.sides()):
        first, first_turn = row, turn
        for one in side.said.rows:
            start = _write_row(arrays, row, start, one.tensors() | {"prompt_length": torch.tensor(one.prompt_length)})
            arrays["row_owner"][row] = owner
            if greedy_first and owner < len(group.trained):
                arrays["loss_mask"][int(arrays["row_start"][row]) : start] = False
            row += 1
        for record in side.said.turns:
            arrays["turn_row"][turn] = first + record.row
            arrays["turn_start"][turn], arrays["turn_end"][turn] = record.start, record.end
            arrays["turn_key"][turn], arrays["duration_s"][turn] = record.key, record.duration_s
            for channel in turn_channels:
                arrays[f"rewards/{channel}"][turn] = record.rewards.get(channel, 0.0)
            turn += 1
        if "agent" in arrays:
            arrays["agent"][owner] = owner % len(group.trained)
        arrays["terminated"][owner], arrays["truncated"][owner] = side.terminated, not side.terminated
        arrays["tool_calls"][owner], arrays["tool_errors"][owner] = side.tool_calls, sum(side.tool_errors.values())
        for channel in group.rewards.keys() - turn_channels.keys():
            arrays[f"rewards/{channel}"][owner] = scalar(group.rewards[channel][owner])
        made += side.said.num_tokens
        assert turn > first_turn, "an agent that never spoke has no trajectory"
    header, versions = group.slot.header, [v for c in group.conversations for v in c.policy_versions()]
    header.version_min, header.version_max = min(versions), max(versions)
    header.group_id, header.task_id = header.sample_id, group.example.id
    header.used = {"N": start, "R": row, "U": turn}
    return made


def _write_row(arrays: Batch, row: int, start: int, fields: Mapping[str, torch.Tensor]) -> int:
    """Put the tokens of a row, and what is known of each, at `start`; returns where they end."""
    end = start + len(fields["tokens"])
    for name in ("tokens", "loss_mask", "logprob", "policy_version", "sampling_logprob"):
        if name in arrays:
            arrays[name][start:end] = fields[name]
    arrays["row_start"][row], arrays["row_length"][row] = start, end - start
    arrays["prompt_length"][row] = fields["prompt_length"]
    return end
