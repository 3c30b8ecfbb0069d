"""A group of completions from prompt to segment: its state while it runs, its rows in the stream, its saved form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from runnel.core.contracts.samples import SampleWriter
from runnel.core.records import Batch, Slot
from runnel.core.state import State
from runnel.llm.rewards.components import Level, Value
from runnel.llm.rewards.judging import Rewards, scalar
from runnel.llm.sampling.streams import write_row
from runnel.llm.tasks.text import Example
from runnel.llm.tokenize import Tokenizer


@dataclass(eq=False)
class CompletionGroup:
    """The completions of one prompt: first waiting (no tickets), then running, then judged (all replies have come). If there is
    a reference, its log-probabilities of each row are requested meanwhile."""

    slot: Slot
    task_id: int
    example: Example
    prompt: list[int]
    tickets: dict[int, int] = field(default_factory=dict)
    """Tickets by row, for rows whose reply has not come yet."""
    replies: dict[int, Batch] = field(default_factory=dict)
    """Replies of the engine by row."""
    asked: dict[int, int] = field(default_factory=dict)
    """Tickets by row, for rows whose log-probabilities under the reference have not come yet."""
    reference: dict[int, Tensor] = field(default_factory=dict)
    """Log-probabilities of the completion under the reference, by row."""
    rewards: Rewards | None = None
    """The rewards, while the group waits for the reference."""

    @property
    def required(self) -> int:
        return self.slot.header.required_version

    def ids(self, row: int) -> list[int]:
        """The tokens of a completion, as the engine made them."""
        found: list[int] = self.replies[row]["tokens"].tolist()
        return found


def fill(group: CompletionGroup, levels: Mapping[str, Level], tokenizer: Tokenizer) -> None:
    """Write the rows of a judged group into its segment. A channel that does not apply to a completion is NaN there."""
    assert group.rewards is not None, "it is judged"
    arrays, header, rewards = group.slot.arrays, group.slot.header, group.rewards
    prompt, start = torch.tensor(group.prompt), 0
    for row in range(len(group.replies)):
        reply = group.replies[row]
        middle, end = start + len(prompt), start + write_row(arrays, row, start, prompt, reply["tokens"])
        arrays["logprob"][start:middle], arrays["logprob"][middle:end] = 0.0, reply["logprob"]
        arrays["policy_version"][start:middle], arrays["policy_version"][middle:end] = -1, reply["policy_version"]
        if "sampling_logprob" in arrays:
            arrays["sampling_logprob"][start:middle] = 0.0
            arrays["sampling_logprob"][middle:end] = reply.get("sampling_logprob", reply["logprob"])
        if "reference_logprob" in arrays:
            arrays["reference_logprob"][start:middle] = 0.0
            arrays["reference_logprob"][middle:end] = group.reference.get(row, torch.zeros(()))
        arrays["prompt_length"][row] = len(prompt)
        arrays["terminated"][row] = reply["terminated"][0]
        arrays["truncated"][row] = ~reply["terminated"][0]
        for channel, values in rewards.items():
            into = arrays[f"rewards/{channel}"]
            if levels[channel] == "sequence":
                into[row] = scalar(values[row])
            else:
                into[start:middle], into[middle:end] = 0.0, spread(values[row], levels[channel], group.ids(row), tokenizer)
        start = end
    versions = torch.cat([r["policy_version"] for r in group.replies.values()])
    header.version_min, header.version_max = int(versions.min()), int(versions.max())
    header.group_id, header.task_id, header.used = header.sample_id, group.task_id, {"N": start}


def spread(value: Value, level: Level, tokens: Sequence[int], tokenizer: Tokenizer) -> Tensor:
    """Rewards finer than a sequence, by token: a segment's counts where it ends, a turn's at its last token. `[m]`"""
    out = torch.zeros(len(tokens))
    if value is None or not isinstance(value, list):
        return torch.full((len(tokens),), torch.nan)
    if level == "token":
        return torch.tensor(value, dtype=torch.float32)
    for part in value:
        last = len(tokens) - 1 if level == "turn" else token_at(int(part[1]), tokens, tokenizer)
        out[last] += part if level == "turn" else part[2]
    return out


def token_at(characters: int, tokens: Sequence[int], tokenizer: Tokenizer) -> int:
    """The first token with which the decoded text has `characters` characters: where a span that ends there is complete."""
    low, high = 0, len(tokens) - 1
    while low < high:
        middle = (low + high) // 2
        if len(tokenizer.decode(tokens[: middle + 1])) >= characters:
            high = middle
        else:
            low = middle + 1
    return low


def group_data(group: CompletionGroup) -> State:
    """A group as a checkpoint holds it."""
    example = group.example
    return {
        "slot": group.slot.index,
        "task_id": group.task_id,
        "prompt": example.prompt if isinstance(example.prompt, str) else [dict(m) for m in example.prompt],
        "answer": example.answer,
        "columns": dict(example.columns),
        "tokens": torch.tensor(group.prompt),
        "tickets": [[k, v] for k, v in group.tickets.items()],
        "replies": [[k, {name: x.clone() for name, x in v.items()}] for k, v in group.replies.items()],
        "asked": [[k, v] for k, v in group.asked.items()],
        "reference": [[k, v.clone()] for k, v in group.reference.items()],
        "rewards": group.rewards,
    }


def group_from(data: State, writer: SampleWriter) -> CompletionGroup:
    """The group that `group_data` saved; its segment comes back by `reclaim`, its tickets by the client."""
    example = Example(data["prompt"], data["answer"], dict(data["columns"]))
    group = CompletionGroup(writer.reclaim(data["slot"]), data["task_id"], example, data["tokens"].tolist())
    group.tickets = {int(k): int(v) for k, v in data["tickets"]}
    group.replies = {int(k): Batch(v) for k, v in data["replies"]}
    group.asked = {int(k): int(v) for k, v in data.get("asked", ())}  # older checkpoints have none of these
    group.reference = {int(k): v for k, v in data.get("reference", ())}
    group.rewards = data.get("rewards")
    return group
