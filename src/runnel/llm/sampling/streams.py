"""The fields of token trajectories, agreed once between samplers and learner.

Rows are ragged: the tokens of all rows of a segment lie one after another along `N`; `row_start` and `row_length` say where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from runnel.core.records import Batch, FieldSpec, StreamSpec


def rollout_stream(
    *,
    group_size: int,
    max_prompt: int,
    max_tokens: int,
    rewards: Sequence[str] = ("reward",),
    token_rewards: Sequence[str] = (),
    sampling_logprob: bool = False,
    reference_logprob: bool = False,
    groups_per_batch: int = 1,
    capacity: int = 2,
    num_writers: int = 1,
    name: str = "rollouts",
    reader: str = "rollouts",
    device: str = "cpu",
) -> StreamSpec:
    """A stream of groups: one segment is the `group_size` completions of one prompt.

    Per token: `tokens`, `loss_mask` (the completion), `logprob` (behaviour, at the sampling temperature), `policy_version` (-1
    in prompts). Per row: `row_start`, `row_length`, `prompt_length`, `terminated` (ended by eos), `truncated` (hit
    `max_tokens`), and one `rewards/<channel>` each, NaN where it does not apply; channels in `token_rewards` are per token.
    `sampling_logprob` per token where sampling is truncated: what the tokens were drawn from. `reference_logprob` per token
    where workers of its own answer for a reference model.
    """
    fields = _ragged()
    fields["logprob"] = FieldSpec(("N",))
    fields["policy_version"] = FieldSpec(("N",), torch.int64)
    fields["prompt_length"] = FieldSpec(("B",), torch.int64)
    fields["terminated"] = FieldSpec(("B",), torch.bool)
    fields["truncated"] = FieldSpec(("B",), torch.bool)
    if sampling_logprob:
        fields["sampling_logprob"] = FieldSpec(("N",))
    if reference_logprob:
        fields["reference_logprob"] = FieldSpec(("N",))
    for channel in rewards:
        fields[f"rewards/{channel}"] = FieldSpec(("N",) if channel in token_rewards else ("B",))
    return StreamSpec(
        name=name,
        fields=fields,
        sizes={"N": group_size * (max_prompt + max_tokens), "B": group_size},
        variable=("N",),
        unit_rows=group_size,
        capacity=capacity,
        batch_segments=groups_per_batch,
        num_writers=num_writers,
        readers=(reader,),
        device=device,
    )


def demo_stream(
    *,
    rows: int,
    max_length: int,
    batch_segments: int = 1,
    capacity: int = 2,
    num_writers: int = 1,
    name: str = "demos",
    reader: str = "demos",
    device: str = "cpu",
) -> StreamSpec:
    """A stream of demonstrations: one segment is `rows` pairs of prompt and answer; `loss_mask` marks the answer."""
    return StreamSpec(
        name=name,
        fields=_ragged(),
        sizes={"N": rows * max_length, "B": rows},
        variable=("N",),
        capacity=capacity,
        batch_segments=batch_segments,
        num_writers=num_writers,
        readers=(reader,),
        source="demonstration",
        device=device,
    )


def pair_stream(
    *, num_pairs: int, max_length: int, capacity: int = 2, num_writers: int = 1, name: str = "pairs", reader: str = "pairs"
) -> StreamSpec:
    """A stream of preferences: one segment is `num_pairs` pairs of rows, the chosen answer to a prompt and then the rejected
    one."""
    rows = 2 * num_pairs
    spec = demo_stream(rows=rows, max_length=max_length, capacity=capacity, num_writers=num_writers, name=name, reader=reader)
    return replace(spec, unit_rows=2)


def _ragged() -> dict[str, FieldSpec]:
    return {
        "tokens": FieldSpec(("N",), torch.int64),
        "loss_mask": FieldSpec(("N",), torch.bool),
        "row_start": FieldSpec(("B",), torch.int64),
        "row_length": FieldSpec(("B",), torch.int64),
    }


def write_row(arrays: Batch, row: int, start: int, prompt: Tensor, answer: Tensor) -> int:
    """Put one prompt and its answer at `start`; returns how many tokens that took."""
    middle, end = start + len(prompt), start + len(prompt) + len(answer)
    arrays["tokens"][start:middle], arrays["tokens"][middle:end] = prompt, answer
    arrays["loss_mask"][start:middle], arrays["loss_mask"][middle:end] = False, True
    arrays["row_start"][row], arrays["row_length"][row] = start, end - start
    return end - start
