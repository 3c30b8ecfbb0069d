"""Token trajectories: the fields of their streams, and a group of completions from prompt to segment.

Samplers and learner agree on the fields. Rows are ragged: the tokens of all rows of a segment lie one after another along `N`;
`row_start` and `row_length` say where each row lies. A completion is one row. A conversation of several turns is one row as
long as each prompt begins with all that was said before; where it does not (a history that is rewritten), a new row begins,
and `row_owner` says that it belongs to the same trajectory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from runnel.core.contracts.samples import SampleWriter
from runnel.core.records import Batch, FieldSpec, Slot, StreamSpec
from runnel.core.state import State
from runnel.llm.rewards.components import Level, Value
from runnel.llm.rewards.judging import Rewards, scalar
from runnel.llm.tasks.text import Example
from runnel.llm.tokenize import Tokenizer


@dataclass(eq=False)
class CompletionGroup:
    """The completions of one prompt: first waiting (no tickets), then running, then judged (all replies have arrived). If there
    is a reference, its log-probabilities of each finished row are requested meanwhile."""

    slot: Slot
    example: Example
    prompt: list[int]
    tickets: dict[int, int] = field(default_factory=dict)
    """Tickets by row, for rows whose reply has not arrived yet."""
    replies: dict[int, Batch] = field(default_factory=dict)
    """Replies of the engine by row."""
    asked: dict[int, int] = field(default_factory=dict)
    """Tickets by row, for rows whose log-probabilities under the reference have not arrived yet."""
    reference: dict[int, Tensor] = field(default_factory=dict)
    """Log-probabilities of the completion under the reference, by row."""
    rewards: Rewards | None = None
    """The rewards, while the group waits for the reference."""
    attempt: int = 0
    """How often the segment was begun before, and given up."""
    prefix: list[int] = field(default_factory=list)
    """The beginning of the demonstrated answer, behind which the completions go on; nothing is trained of it."""

    @property
    def required(self) -> int:
        return self.slot.header.required_version

    @property
    def waits(self) -> bool:
        """Whether nothing of it has begun."""
        return not self.tickets and not self.replies

    @property
    def runs(self) -> bool:
        """Whether the engine works for it."""
        return bool(self.tickets)

    @property
    def unjudged(self) -> bool:
        """Whether all replies are there, and no rewards."""
        return bool(self.replies) and not self.tickets and self.rewards is None

    @property
    def context(self) -> list[int]:
        """What the engine completes."""
        return [*self.prompt, *self.prefix]

    def versions(self) -> Tensor:
        """The versions that made the tokens of the replies so far; those of demonstrations are left out."""
        found = torch.cat([reply["policy_version"] for reply in self.replies.values()])
        return found[found >= 0]

    def ids(self, row: int) -> list[int]:
        """The tokens of a completion, as the engine made them."""
        found: list[int] = self.replies[row]["tokens"].tolist()
        return found

    def answer(self, row: int) -> list[int]:
        """The tokens of a whole answer: what was given of it, and the completion."""
        return [*self.prefix, *self.ids(row)]


def fill(group: CompletionGroup, levels: Mapping[str, Level], tokenizer: Tokenizer) -> None:
    """Write the rows of a judged group into its segment. A channel that does not apply to a completion is NaN there."""
    assert group.rewards is not None, "it is judged"
    arrays, header, rewards = group.slot.arrays, group.slot.header, group.rewards
    prompt, start = torch.tensor(group.context), 0
    for row in range(len(group.replies)):
        reply = group.replies[row]
        middle, end = start + len(prompt), start + write_row(arrays, row, start, prompt, reply["tokens"])
        by_token = {
            "logprob": reply["logprob"],
            "policy_version": reply["policy_version"],
            "sampling_logprob": reply.get("sampling_logprob", reply["logprob"]),
            "reference_logprob": group.reference.get(row, torch.zeros(())),
        }
        arrays["prompt_length"][row] = len(prompt)
        arrays["terminated"][row] = reply["terminated"][0]
        arrays["truncated"][row] = ~reply["terminated"][0]
        for channel, values in rewards.items():
            into = arrays[f"rewards/{channel}"]
            if levels[channel] == "sequence":
                into[row] = scalar(values[row])
            else:
                into[start:middle], into[middle:end] = 0.0, spread(values[row], levels[channel], group.ids(row), tokenizer)
        for name in by_token.keys() & arrays.keys():
            arrays[name][start:middle] = -1 if name == "policy_version" else 0
            arrays[name][middle:end] = by_token[name]
        start = end
    versions = group.versions()
    header.version_min, header.version_max = int(versions.min()), int(versions.max())
    header.group_id, header.task_id = header.sample_id, group.example.id
    header.used = {"N": start, "R": len(group.replies), "U": len(group.replies)}


def tell_replaced(group: CompletionGroup, given_up: Sequence[tuple[int, float]]) -> None:
    """Write what a segment replaced, as task and mean reward, beside its rows; what failed has no reward and is not told."""
    known = [(task_id, reward) for task_id, reward in given_up if reward == reward]
    for name, i in (("replaced/task_id", 0), ("replaced/reward", 1)):
        if name in group.slot.arrays:
            group.slot.arrays[name][:] = -1
            group.slot.arrays[name][: len(known)] = torch.tensor([pair[i] for pair in known])


def spread(value: Value, level: Level, tokens: Sequence[int], tokenizer: Tokenizer) -> Tensor:
    """Rewards of a level finer than a sequence, by token: that of a segment at its last token, that of a turn at the last token
    of all. NaN if the reward does not apply. `[m]`"""
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
    """The index of the token that completes the first `characters` characters of the decoded text."""
    return bisect_left(range(len(tokens) - 1), characters, key=lambda i: len(tokenizer.decode(tokens[: i + 1])))


def group_data(group: CompletionGroup) -> State:
    """A group as plain data, for a checkpoint."""
    example = group.example
    return {
        "slot": group.slot.index,
        "prompt": example.prompt if isinstance(example.prompt, str) else [dict(m) for m in example.prompt],
        "answer": example.answer,
        "columns": dict(example.columns),
        "tokens": torch.tensor(group.prompt),
        "tickets": [[k, v] for k, v in group.tickets.items()],
        "replies": [[k, {name: x.clone() for name, x in v.items()}] for k, v in group.replies.items()],
        "asked": [[k, v] for k, v in group.asked.items()],
        "reference": [[k, v.clone()] for k, v in group.reference.items()],
        "rewards": group.rewards,
        "attempt": group.attempt,
        "prefix": torch.tensor(group.prefix, dtype=torch.int64),
    }


def group_from(data: State, writer: SampleWriter) -> CompletionGroup:
    """The group that `group_data` saved. The writer still has its segment, and the client its tickets."""
    example = Example(data["prompt"], data["answer"], dict(data["columns"]))
    group = CompletionGroup(writer.reclaim(data["slot"]), example, data["tokens"].tolist())
    group.tickets = {int(k): int(v) for k, v in data["tickets"]}
    group.replies = {int(k): Batch(v) for k, v in data["replies"]}
    group.asked = {int(k): int(v) for k, v in data.get("asked", ())}  # older checkpoints have none of these
    group.reference = {int(k): v for k, v in data.get("reference", ())}
    group.rewards, group.attempt = data.get("rewards"), data.get("attempt", 0)
    group.prefix = [] if "prefix" not in data else data["prefix"].tolist()
    return group


def rollout_stream(
    *,
    group_size: int,
    max_prompt: int,
    max_tokens: int,
    rewards: Sequence[str] = ("reward",),
    token_rewards: Sequence[str] = (),
    turn_rewards: Sequence[str] = (),
    sampling_logprob: bool = False,
    reference_logprob: bool = False,
    num_replaced: int = 0,
    groups_per_batch: int = 1,
    max_turns: int = 1,
    max_rows: int = 1,
    num_agents: int = 1,
    capacity: int = 2,
    num_writers: int = 1,
) -> StreamSpec:
    """A stream of groups: one segment is the `group_size` completions of one prompt.

    Per token: `tokens`, `loss_mask` (the completion), `logprob` (behaviour, at the sampling temperature), `policy_version` (-1
    in prompts). Per row: `row_start`, `row_length`, `prompt_length`. Per trajectory: `terminated` (ended by eos), `truncated`
    (hit `max_tokens`), and one `rewards/<channel>` each, NaN where it does not apply; channels in `token_rewards` are per
    token. `sampling_logprob` per token if sampling is truncated: in the distribution that the tokens were drawn from.
    `reference_logprob` per token if workers of their own compute it with a reference model. `replaced/task_id` and
    `replaced/reward` per segment: tasks that it replaced, up to `num_replaced`, and their mean rewards; -1 where there is none.

    With `max_turns` or `max_rows` above 1 a trajectory is a conversation of up to so many turns, in up to so many rows (`R`)
    with their `row_owner`; a turn (`U`) has its row, where it starts and ends in that, what it earned (`turn_rewards` are
    channels by turn), `turn_key` (equal for turns that saw the same) and its `duration_s` (what tools and environment took). A
    trajectory has `tool_calls` and `tool_errors`: their numbers. Then `max_prompt` and `max_tokens` are sums over a trajectory.

    With several agents that are trained (`num_agents`), a segment has a trajectory for each agent of `group_size`
    conversations, one conversation after another, and `agent` says whose each is.
    """
    several, trajectories = max_turns > 1 or max_rows > 1, group_size * num_agents
    fields = _ragged("R" if several else "B")
    fields["logprob"] = FieldSpec(("N",))
    fields["policy_version"] = FieldSpec(("N",), torch.int64)
    fields["prompt_length"] = FieldSpec(fields["row_length"].dims, torch.int64)
    fields["terminated"] = FieldSpec(("B",), torch.bool)
    fields["truncated"] = FieldSpec(("B",), torch.bool)
    if sampling_logprob:
        fields["sampling_logprob"] = FieldSpec(("N",))
    if reference_logprob:
        fields["reference_logprob"] = FieldSpec(("N",))
    if num_replaced:
        fields |= {"replaced/task_id": FieldSpec((num_replaced,), torch.int64), "replaced/reward": FieldSpec((num_replaced,))}
    for channel in rewards:
        dim = "N" if channel in token_rewards else "U" if channel in turn_rewards else "B"
        fields[f"rewards/{channel}"] = FieldSpec((dim,))
    sizes = {"N": trajectories * (max_prompt + max_tokens), "B": trajectories}
    if num_agents > 1:
        fields["agent"] = FieldSpec(("B",), torch.int64)
    if several:
        fields["row_owner"] = FieldSpec(("R",), torch.int64, index_of=("B",))
        fields["turn_row"] = FieldSpec(("U",), torch.int64, index_of=("R",))
        fields |= {name: FieldSpec(("U",), torch.int64) for name in ("turn_start", "turn_end", "turn_key")}
        fields["duration_s"] = FieldSpec(("U",))
        fields |= {name: FieldSpec(("B",), torch.int64) for name in ("tool_calls", "tool_errors")}
        sizes |= {"R": trajectories * max_rows, "U": trajectories * max_turns}
    return StreamSpec(
        name="rollouts",
        fields=fields,
        sizes=sizes,
        variable=("N", "R", "U") if several else ("N",),
        unit_rows=trajectories,
        capacity=capacity,
        batch_segments=groups_per_batch,
        num_writers=num_writers,
    )


def demo_stream(*, rows: int, max_length: int, capacity: int = 2) -> StreamSpec:
    """A stream of demonstrations: one segment is `rows` pairs of prompt and answer; `loss_mask` marks the answer."""
    sizes = {"N": rows * max_length, "B": rows}
    return StreamSpec("demos", _ragged("B"), sizes, variable=("N",), capacity=capacity)


def pair_stream(*, num_pairs: int, max_length: int, capacity: int = 2) -> StreamSpec:
    """A stream of preferences: one segment is `num_pairs` pairs of rows, the chosen answer to a prompt and then the rejected
    one."""
    spec = demo_stream(rows=2 * num_pairs, max_length=max_length, capacity=capacity)
    return replace(spec, name="pairs", unit_rows=2)


def _ragged(rows: str) -> dict[str, FieldSpec]:
    """Rows of tokens, counted along the dim `rows`."""
    return {
        "tokens": FieldSpec(("N",), torch.int64),
        "loss_mask": FieldSpec(("N",), torch.bool),
        "row_start": FieldSpec((rows,), torch.int64),
        "row_length": FieldSpec((rows,), torch.int64, length_of="N"),
    }


def write_row(arrays: Batch, row: int, start: int, prompt: Tensor, answer: Tensor) -> int:
    """Put one prompt and its answer, the only row and turn of a trajectory, at `start`; returns how many tokens that took."""
    middle, end = start + len(prompt), start + len(prompt) + len(answer)
    arrays["tokens"][start:middle], arrays["tokens"][middle:end] = prompt, answer
    arrays["loss_mask"][start:middle], arrays["loss_mask"][middle:end] = False, True
    arrays["row_start"][row], arrays["row_length"][row] = start, end - start
    if "row_owner" in arrays:
        arrays["row_owner"][row] = arrays["turn_row"][row] = row
        arrays["turn_start"][row], arrays["turn_end"][row] = middle - start, end - start
    return end - start
