"""Ragged batches of the token learner: rows of many segments joined, cut into micro-batches, and put on the device.

Everything here happens on the host, where segments are, so that a micro-batch knows its sizes without asking the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runnel.core.errors import DataError
from runnel.core.records import Batch, Segment
from runnel.ops.credit import row_index, row_sum, send

PER_ROW = ("row_start", "row_length", "row_owner", "unit", "denominator/")
"""Fields of an annotated batch with one entry a row, by how their name starts."""
SCALARS = ("stats/", "now/")
"""Single numbers: statistics, and settings of the whole update. All other fields have one entry a token."""
NONE, POLICY, SFT, PAIR, SCORE, EXTERNAL = range(6)
"""Kinds of tokens (`component`): not trained, sampled from a policy, demonstrated, in a compared answer, at which a row is
scored, demonstrated in a group of sampled ones."""


def join_rows(segments: Sequence[Segment]) -> Batch:
    """The rows of several segments as those of one: each field that the segments have, places counted anew, and more.

    Per trajectory `[B]`: `group`, the number of its segment, its `task_id`, and its reward in each channel,
    `rewards/<channel>`. Where several agents are trained (`agent`), those of each agent of a segment are a group: roles are
    paid differently, and the mean over both players of a zero-sum game is always 0. Per row `[R]`: `row_owner`, its trajectory;
    where the stream does not say it, each row is one. Per token `[N]`: `token_rewards/<channel>` of channels that reward tokens
    or turns (at a turn's last token); of the latter `turn_rewards/<channel>` `[U]`, too.
    """
    spec, out = segments[0].spec, Batch()
    for name, f in spec.fields.items():
        values = [s.arrays[name] for s in segments]
        if f.index_of:
            (dim,) = f.index_of
            sizes = [s.header.used.get(dim, s.spec.sizes[dim]) for s in segments]
            firsts = [sum(sizes[:i]) for i in range(len(sizes))]
            values = [torch.where(v >= 0, v + first, v) for v, first in zip(values, firsts, strict=True)]
        out[name] = torch.cat(values)
    out["row_start"] = out["row_length"].cumsum(0) - out["row_length"]
    numbers = torch.tensor([s.num_rows for s in segments])
    out["group"] = torch.repeat_interleave(torch.arange(len(segments)), numbers)
    if "agent" in out:
        out["group"] = out["group"] * (int(out["agent"].max()) + 1) + out["agent"]
    out["task_id"] = torch.repeat_interleave(torch.tensor([s.header.task_id for s in segments]), numbers)
    out.setdefault("row_owner", torch.arange(len(out["row_length"])))
    if len(out["row_owner"]) and bool((out["row_owner"].diff() < 0).any()):
        raise DataError(f"stream {spec.name!r}: row_owner must not fall: write the rows of a trajectory one after another")
    for name in [name for name in out if name.startswith("rewards/")]:
        _add_rewards(out, name, spec.fields[name].dims)
    return out


def _add_rewards(rows: Batch, name: str, dims: tuple[str | int, ...]) -> None:
    """Give each trajectory the sum of a channel that rewards tokens or turns, and keep what they got."""
    owner = token_owner(rows)
    if dims == ("U",):
        last = rows["row_start"][rows["turn_row"]] + rows["turn_end"] - 1
        rows["turn_" + name] = rows[name]
        rows[name] = torch.zeros(len(owner)).index_add(0, last, rows[name])
    if dims != ("B",):
        rows["token_" + name] = rows[name]
        rows[name] = row_sum(rows[name], owner, len(rows["group"]))


def token_owner(rows: Mapping[str, Tensor]) -> Tensor:
    """The trajectory of every token of joined rows. `[N]`"""
    return rows["row_owner"][row_index(rows["row_length"])]


def external(rows: Mapping[str, Tensor]) -> Tensor:
    """Which trained tokens of rollouts no policy made: those of demonstrations in their groups. `[N] bool`"""
    return rows["loss_mask"] & (rows["policy_version"] < 0)


def questions(rows: Batch) -> Batch:
    """Rows as a model is asked about them: each is a unit, tokens of `loss_mask` are asked about, and `place` says where in
    `tokens` `[N]` each one lies."""
    out = Batch({k: rows[k] for k in ("tokens", "row_start", "row_length")})
    out |= {"component": rows["loss_mask"].to(torch.int8), "unit": torch.arange(len(rows["row_length"]))}
    return Batch(out | {"place": torch.arange(len(rows["tokens"]))})


def token_places(start: Tensor, length: Tensor) -> Tensor:
    """Places of all tokens of the rows at `start`, one row after another. `[r], [r] -> [n]`

    >>> token_places(torch.tensor([5, 0]), torch.tensor([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    within = torch.arange(int(length.sum())) - torch.repeat_interleave(length.cumsum(0) - length, length)
    return torch.repeat_interleave(start, length) + within


def merge(parts: Sequence[Batch]) -> Batch:
    """Annotated batches of several readers as one: a field that a part does not have is 0 there
    (`policy_version`: -1, made by no policy); units and trajectories stay apart."""
    out = Batch()
    names = {k for part in parts for k in part if not k.startswith(SCALARS)}
    shifted, first = [], dict.fromkeys(("unit", "row_owner"), 0)
    for part in parts:
        shifted.append(Batch(part | {name: part[name] + n for name, n in first.items()}))
        first = {name: n + int(part[name].max()) + 1 if len(part[name]) else n for name, n in first.items()}
    for name in sorted(names):
        like = next(part[name] for part in parts if name in part)
        sizes = [len(part["row_length"] if name.startswith(PER_ROW) else part["tokens"]) for part in shifted]
        missing = -1 if name == "policy_version" else 0
        fields = [part.get(name, like.new_full((n,), missing)) for part, n in zip(shifted, sizes, strict=True)]
        out[name] = torch.cat(fields)
    out["row_start"] = out["row_length"].cumsum(0) - out["row_length"]
    return Batch(out | {k: v for part in parts for k, v in part.items() if k.startswith("stats/")})


@dataclass(frozen=True)
class MicroBatch:
    """Some whole rows, on the device: `n` tokens, of which `M` are trained.

    The hidden state at `position` stands for the trained token `target`: the one before it, which predicts it (at the token
    itself where a score is trained, `SCORE`). `fields` are its annotations, `row` and `unit` number its row and unit within the
    micro-batch, `kinds` gives the places of each component's tokens among the M.
    """

    tokens: Tensor
    lengths: list[int]
    position: Tensor
    target: Tensor
    row: Tensor
    unit: Tensor
    num_rows: int
    num_units: int
    fields: Batch
    kinds: dict[int, Tensor]

    @staticmethod
    def of(batch: Batch, rows: Tensor, *, device: str) -> MicroBatch:
        """Rows `rows` `[r]` of an annotated batch. A row's first token is never trained: nothing predicts it."""
        length = batch["row_length"][rows]
        places = token_places(batch["row_start"][rows], length)
        row = row_index(length)
        start = length.cumsum(0) - length
        component = batch["component"][places]
        at = ((component != 0) & (torch.arange(len(places)) > start[row])).nonzero().squeeze(1)
        kind = component[at]
        names = [k for k in batch if not k.startswith((*PER_ROW, *SCALARS)) and k not in ("tokens", "component")]
        units, unit = torch.unique(batch["unit"][rows], return_inverse=True)
        tokens = batch["tokens"][places]
        kinds = {int(k): (kind == k).nonzero().squeeze(1) for k in torch.unique(kind)}

        return MicroBatch(
            tokens=send(tokens, device),
            lengths=length.tolist(),
            position=send(at - (kind != SCORE).long(), device),
            target=send(tokens[at], device),
            row=send(row[at], device),
            unit=send(unit[row[at]], device),
            num_rows=len(rows),
            num_units=len(units),
            fields=Batch({k: send(batch[k][places[at]], device) for k in names}),
            kinds={k: send(v, device) for k, v in kinds.items()},
        )

    @staticmethod
    def empty(batch: Batch, *, device: str) -> MicroBatch:
        """A row of one token, of which nothing is trained: the pass of a rank that has no rows left."""
        return MicroBatch.of(Batch({**batch, **_NOTHING}), torch.zeros(1, dtype=torch.int64), device=device)


_NOTHING = {"row_start": torch.tensor([0]), "row_length": torch.tensor([1])}


def split_units(rows: Tensor, unit: Tensor, parts: int, *, seed: int) -> list[Tensor]:
    """Rows `[r]` in `parts` mini-batches of nearly as many units each, in a seeded order; one part keeps the order it has."""
    if parts == 1:
        return [rows]
    found = torch.unique(unit[rows])
    order = found[torch.randperm(len(found), generator=torch.Generator().manual_seed(seed))]
    place = torch.zeros(int(unit.max()) + 1, dtype=torch.int64)
    place[order] = torch.arange(len(order)) * parts // max(len(order), 1)
    return [rows[place[unit[rows]] == i] for i in range(parts)]


def sample_rows(batch: Batch, rows: Tensor, *, most: int, seed: int) -> tuple[Tensor, float]:
    """Those of the rows `[r]` in which something trains, or of about `most` tokens a seeded sample of them; and how many tokens
    that train stand behind each one of the sample."""
    trains = row_sum((batch["component"] != 0).float(), row_index(batch["row_length"]), len(batch["row_length"]))
    rows = rows[trains[rows] > 0]
    if int(batch["row_length"][rows].sum()) <= most:
        return rows, 1.0
    order = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
    before = batch["row_length"][order].cumsum(0) - batch["row_length"][order]
    some = order[before < most]
    return some, float(trains[rows].sum() / trains[some].sum())


def split_tokens(rows: Tensor, unit: Tensor, length: Tensor, budget: int) -> list[Tensor]:
    """Rows `[r]` in micro-batches of rows of similar length, and of nearly as many tokens each: at most `budget`, but at least
    one whole unit.

    >>> length = torch.tensor([5, 1, 4, 2, 3])
    >>> [part.tolist() for part in split_tokens(torch.arange(5), torch.arange(5), length, budget=8)]
    [[1, 3, 4], [2], [0]]
    """
    members: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for r, u, size in zip(rows.tolist(), unit[rows].tolist(), length[rows].tolist(), strict=True):
        members.setdefault(u, []).append(r)
        sizes[u] = sizes.get(u, 0) + size
    out: list[list[int]] = []
    total, filled = sum(sizes.values()), 0
    fair = total / max(1, -(-total // budget))
    for u in sorted(members, key=lambda u: (sizes[u] / len(members[u]), u)):
        if not out or filled + sizes[u] > budget or filled >= fair:
            out.append([])
            filled = 0
        out[-1] += members[u]
        filled += sizes[u]
    return [torch.tensor(part) for part in out]
