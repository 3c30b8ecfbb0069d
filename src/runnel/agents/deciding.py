"""Batches of rows that do not decide at every step (`core/trajectories.ACTIVE`): which of them are trained on.

Without a recurrent network a batch has the decisions alone. With one, a row is an agent's whole segment: steps at which it does
not decide leave the state as it is and count in no loss, and nothing that stands there reaches a loss or a gradient.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from runnel.core.errors import ConfigError
from runnel.core.records import Batch, StreamSpec
from runnel.core.trajectories import ACTIVE, BURN_IN


def rows_that_count(counts: Tensor, *, at_least: int) -> Tensor:
    """The places of the rows that count in `counts` `[N]`, in their order. `-> [n] int64`

    Where there are fewer than `at_least`, rows that do not count fill up: every minibatch has a row, and every rank has as many
    minibatches. The batch says which those are (`ACTIVE`), and losses leave them out.
    """
    first = torch.argsort(counts.to(torch.uint8), descending=True, stable=True)
    return first[: max(int(counts.sum()), at_least)]


def single_steps(columns: Mapping[str, Tensor], counts: Tensor, *, at_least: int) -> Batch:
    """A batch of the decisions `[N, ...]` in `columns` `[T, B, ...]`, and of enough rows that do not count, which are zeros."""
    flat = {key: x.flatten(0, 1) for key, x in columns.items()} | {ACTIVE: counts.flatten()}
    if bool(counts.all()) and counts.numel() >= at_least:
        return Batch(flat)  # every row is a decision, as in most teams: no copy is needed
    rows = rows_that_count(flat[ACTIVE], at_least=at_least)
    batch = Batch({key: x[rows] for key, x in flat.items()})
    return batch if bool(batch[ACTIVE].all()) else _cleaned(batch, batch[ACTIVE])


DECIDES = "decides"
"""Steps that move the recurrent state, `[B, burn-in + T]`."""


def part_burn_in(data: Batch, spec: StreamSpec) -> tuple[Batch, Batch]:
    """The burn-in of a segment, and the segment without it; an empty batch where the stream has none.

    The burn-in has observations, `ACTIVE` and the state before it, and `resets` `[burn-in + 1, B]`: whether the state is zero
    before each of its steps, and before the step behind it.
    """
    num = spec.sizes.get(BURN_IN, 0)
    if not num:
        return Batch(), data
    by_step = {key for key, field in spec.fields.items() if field.dims[0] in ("T", "T1")}
    rest = Batch({key: x[num:] if key in by_step else x for key, x in data.items()})
    rest["final_index"] = data["final_index"] - num * data["action"].shape[1]
    before = Batch({key: x[:num] for key, x in data.items() if key in by_step and spec.fields[key].dims[0] == "T1"})
    before |= {key: x for key, x in data.items() if key.startswith("state/")}
    over = (data["terminated"] | data["truncated"])[:num]
    before["resets"] = torch.cat([torch.zeros_like(over[:1]), over])
    return before, rest


def sequences(columns: Mapping[str, Tensor], data: Batch, before: Batch, counts: Tensor, *, obs: Collection[str]) -> Batch:
    """A batch of whole segments `[B, T, ...]`, from `columns` `[T, B, ...]` and the state before them.

    `obs` names the observations, which go on from those of the burn-in (`before`). Entries that do not count are zeros, and
    their masks allow everything.
    """
    over = data["terminated"] | data["truncated"]
    clean: dict[str, Tensor] = _cleaned(columns, counts) | {ACTIVE: counts}
    resets, decides = torch.cat([torch.zeros_like(over[:1]), over[:-1]]), counts
    if before:
        early = {key: _where(before[ACTIVE], before[key], 0) for key in obs}
        clean |= {key: torch.cat([early[key], clean[key]]) for key in obs}
        resets, decides = torch.cat([before["resets"], over[:-1]]), torch.cat([before[ACTIVE], counts])
    clean |= {"resets": resets, DECIDES: decides}
    state = {key: x for key, x in (before or data).items() if key.startswith("state/")}
    return Batch({key: x.transpose(0, 1) for key, x in clean.items()} | state)


def _cleaned(columns: Mapping[str, Tensor], flags: Tensor) -> Batch:
    """Columns `[..., *]` where `flags` `[...]` are true; elsewhere zeros, and masks that allow everything."""
    return Batch({key: _where(flags, x, 1 if key == "action_mask" else 0) for key, x in columns.items()})


def _where(flags: Tensor, x: Tensor, other: int) -> Tensor:
    """`x` `[..., *]` where `flags` `[...]` are true. No product: NaN times 0 is NaN, also in a gradient."""
    return x.masked_fill(~flags.view(*flags.shape, *[1] * (x.dim() - flags.dim())), other)


def refuse_idle_rows(data: Batch, learner: object) -> None:
    """Refuse segments with rows that do not decide at every step, for a learner that would train on all of them."""
    if ACTIVE in data:
        fix = "it would train on rows in which nobody decides; PPOLearner knows which rows count"
        raise ConfigError("learner", type(learner).__name__, fix)
