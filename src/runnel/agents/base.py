"""What learners share: segments and transitions merged into batches, orders of minibatches, metrics of the whole batch."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from runnel.core.contracts.learning import Collective
from runnel.core.errors import NonFiniteError
from runnel.core.records import Batch, Segment
from runnel.core.rng import make_rng, rng_state, set_rng_state
from runnel.core.state import Metrics, State


def of_whole_batch(numbers: Tensor, names: Sequence[str], collective: Collective, *, means: Collection[str]) -> Tensor:
    """A rank's estimate of the numbers of the whole batch; the trainer shows the mean over ranks, which is exact. `[n] -> [n]`

    Losses, and whatever else was divided by the count of the whole batch, are of the rank's part alone: times the number of
    ranks. `means` were taken over that part, or are the same on every rank: they stay.
    """
    if collective.world_size == 1:
        return numbers
    return numbers * numbers.new_tensor([1.0 if name in means else collective.world_size for name in names])


def read_metrics(numbers: Mapping[str, Tensor], collective: Collective, *, sums: Collection[str], version: int) -> Metrics:
    """Metrics of the whole batch, from `numbers` on the device by name `[]`. The host waits for the device once.

    `sums` were divided by the count of the whole batch, all others are means over this rank's part. Raises a `NonFiniteError`
    for a loss that is not finite.
    """
    means = [name for name in numbers if name not in sums]
    found = of_whole_batch(torch.stack(list(numbers.values())), list(numbers), collective, means=means)
    metrics: Metrics = dict(zip(numbers, found.tolist(), strict=True))
    for name, number in metrics.items():
        if name.startswith("loss/") and not math.isfinite(number):
            raise NonFiniteError(name, version)
    return metrics


BEFORE_UPDATES = "the end of the uniform actions before the first update"
"""What a learner that begins with uniform actions does not take from another run (`not_taken`)."""
Sizes = dict[str, list[int]]
"""Rows of each segment, by reader."""


def merge_transitions(
    segments: Mapping[str, Sequence[Segment]], *, home: Batch, device: torch.device, version: int
) -> tuple[Batch, Sizes]:
    """All transitions in one batch `[B]` on `device`, and the sizes by which `split_errors` takes it apart again.

    On an accelerator the batch lies in `home`, at the same address every time, so that an update can be captured in a graph.
    Raises `NonFiniteError` for observations or rewards that are not finite, before anything was trained on them.
    """
    batch = Batch.cat([s.arrays for group in segments.values() for s in group])
    sizes = {name: [s.num_rows for s in group] for name, group in segments.items()}
    for key in (*batch.under("obs"), *batch.under("next_obs"), "rewards/env"):
        # a sum costs a fifth of a full check, and is finite unless an entry is not (or the numbers are absurd)
        if batch[key].is_floating_point() and not math.isfinite(batch[key].sum().item()):
            raise NonFiniteError(key, version)
    if device.type == "cpu":
        return batch, sizes
    for key, x in batch.items():
        if key not in home or home[key].shape != x.shape:
            home[key] = torch.empty(x.shape, dtype=x.dtype, device=device)
        home[key].copy_(x, non_blocking=True)
    return home, sizes


def split_errors(sizes: Sizes, index: Tensor, error: Tensor) -> dict[str, list[Mapping[str, Tensor]]]:
    """Feedback for replay: one mapping per segment, absolute error (`priority`) by transition (`index`). `[B], [B]`"""
    feedback: dict[str, list[Mapping[str, Tensor]]] = {}
    start = 0
    for name, group in sizes.items():
        ends = [start + sum(group[: i + 1]) for i in range(len(group))]
        feedback[name] = [{"index": index[e - n : e], "priority": error[e - n : e]} for n, e in zip(group, ends, strict=True)]
        start += sum(group)
    return feedback


def merge_segments(segments: Sequence[Segment]) -> Batch:
    """Segments side by side along their rows; `final_index` counts in the merged `[T, B]`.

    One segment, or those of one batch that already lie side by side in the stream's memory, are not copied.
    """
    if len(segments) == 1:
        return segments[0].arrays
    spec, width = segments[0].spec, sum(s.num_rows for s in segments)
    merged, left, index = Batch(), 0, []
    for segment in segments:
        step = segment.arrays["final_index"].div(segment.num_rows, rounding_mode="floor")
        index.append(step * width + left + segment.arrays["final_index"].remainder(segment.num_rows))
        left += segment.num_rows
    for name, f in spec.fields.items():
        parts = [s.arrays[name] for s in segments]
        axis = f.dims.index(spec.rows) if spec.rows in f.dims else 0
        whole = _neighbours(parts, axis) if spec.rows in f.dims else None
        merged[name] = torch.cat(parts, dim=axis) if whole is None else whole
    merged["final_index"] = torch.cat(index)
    return merged


def _neighbours(parts: Sequence[Tensor], axis: int) -> Tensor | None:
    """The tensor of which `parts` are the pieces along `axis`, if they lie so in memory; else None."""
    first, at = parts[0], parts[0].storage_offset()
    home = first.untyped_storage().data_ptr()
    for part in parts:
        if part.untyped_storage().data_ptr() != home or part.storage_offset() != at or part.stride() != first.stride():
            return None
        at += part.shape[axis] * part.stride(axis)
    width = sum(p.shape[axis] for p in parts)
    if axis > 0 and first.stride(axis - 1) != width * first.stride(axis):
        return None  # neighbours, but with others between them along time
    return first.as_strided([width if i == axis else n for i, n in enumerate(first.shape)], first.stride())


_MOST = 1 << 30


class Shuffle:
    """Permutations from a generator of its own: numpy's for the CPU, the device's elsewhere (never waits for the host)."""

    def __init__(self, seed: int, *, device: str = "cpu") -> None:
        self.generator = None if torch.device(device).type == "cpu" else torch.Generator(device).manual_seed(seed)
        self._rng = make_rng(seed, "shuffle")

    @property
    def generators(self) -> list[torch.Generator]:
        """Generators that the replay of a CUDA graph has to advance."""
        return [] if self.generator is None else [self.generator]

    def order(self, num_rows: int) -> Tensor:
        """A random order of `num_rows` rows. `-> [N] int64`"""
        if self.generator is None:
            return torch.from_numpy(self._rng.permutation(num_rows))
        return self.orders(1, num_rows)[0].long()

    def orders(self, num: int, num_rows: int) -> Tensor:
        """`num` random orders at once. `-> [num, N]` (int32 or int64)

        On a device, sorting random numbers takes longer than a small network's gradient: a power of 2 is shuffled by `hashed`.
        """
        if self.generator is None:
            return torch.stack([self.order(num_rows) for _ in range(num)])
        if num_rows & (num_rows - 1) or num_rows > _MOST:
            return torch.rand(num, num_rows, generator=self.generator, device=self.generator.device).argsort(-1)
        keys = torch.randint(0, _MOST, (num, 8), generator=self.generator, device=self.generator.device, dtype=torch.int32)
        return hashed(keys, num_rows)

    def state_dict(self) -> State:
        device = None if self.generator is None else self.generator.get_state()
        return {"host": rng_state(self._rng), "device": device}

    def load_state_dict(self, state: State) -> None:
        set_rng_state(self._rng, state["host"])
        if self.generator is not None and state["device"] is not None:
            self.generator.set_state(state["device"].cpu())


def hashed(keys: Tensor, num_rows: int) -> Tensor:
    """A pseudo-random permutation of `num_rows` (a power of 2) numbers for each row of keys. `[E, 8] -> [E, N] int32`

    Four rounds of an odd multiple, a shift and an exclusive or with the upper half of the bits: each of them maps the numbers
    below a power of 2 onto themselves, one to one (as in a linear congruential generator with a permuted output).

    >>> hashed(torch.arange(8, dtype=torch.int32).view(1, 8), 8).sort().values.tolist()
    [[0, 1, 2, 3, 4, 5, 6, 7]]
    """
    bits = num_rows.bit_length() - 1
    x = torch.arange(num_rows, dtype=torch.int32, device=keys.device).expand(len(keys), num_rows)
    factors, offsets = (keys[:, ::2] | 1).unsqueeze(-1), keys[:, 1::2].unsqueeze(-1)
    for i in range(4):
        x = torch.addcmul(offsets[:, i], x, factors[:, i]).bitwise_and_(num_rows - 1)
        x ^= x >> max(bits // 2, 1)
    return x
