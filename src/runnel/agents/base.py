"""What learners share: segments and transitions merged into batches, orders of minibatches, metrics of the whole batch, and the
state of those from replay."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from runnel.core.contracts.learning import Collective
from runnel.core.errors import NonFiniteError
from runnel.core.live_settings import LiveConfig
from runnel.core.records import Batch, Segment
from runnel.core.rng import make_rng, make_seed, rng_state, set_rng_state
from runnel.core.state import Metrics, State
from runnel.nets.optim import Adam


def of_whole_batch(numbers: Tensor, names: Sequence[str], collective: Collective, *, means: Collection[str]) -> Metrics:
    """Metrics of the whole batch, from `numbers` `[n]` on the device. The host waits for the device once.

    Losses, and whatever else was divided by the count of the whole batch, are of the rank's part alone: they are multiplied by
    the number of ranks. `means` were taken over that part, or are the same on every rank, and stay. The trainer shows the mean
    over ranks, which is then exact.
    """
    if collective.world_size > 1:
        numbers = numbers * numbers.new_tensor([1.0 if name in means else collective.world_size for name in names])
    return dict(zip(names, numbers.tolist(), strict=True))


def read_metrics(numbers: Mapping[str, Tensor], collective: Collective, *, sums: Collection[str], version: int) -> Metrics:
    """`of_whole_batch` for numbers by name `[]`.

    `sums` were divided by the count of the whole batch, all others are means over this rank's part. Raises a `NonFiniteError`
    for a loss that is not finite.
    """
    means = [name for name in numbers if name not in sums]
    metrics = of_whole_batch(torch.stack(list(numbers.values())), list(numbers), collective, means=means)
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


class ReplayState(LiveConfig):
    """The state of a learner that trains an actor and critics from replay: what it publishes, what another run may start from,
    and what ranks and checkpoints need. Its update is on its own page."""

    own_state: tuple[str, ...] = ("generator",)
    seed_name: ClassVar[str]
    exploration: ClassVar[tuple[str, ...]]
    """Buffers of the actor that are published with its weights and follow each run's own schedule."""
    collective: Collective
    version: int
    _seed: int
    _generator: torch.Generator
    _params: Mapping[str, Tensor]
    _nets: dict[str, nn.Module]
    _adams: dict[str, Adam]

    @property
    def generators(self) -> Sequence[torch.Generator]:
        """The generators on the device that an update draws from."""
        return [self._generator]

    def params(self) -> Mapping[str, Tensor]:
        """The actor's weights and its exploration: the same tensors at every call, updated in place."""
        return self._params

    def base_params(self) -> Mapping[str, Tensor]:
        """What another run may start from: the actor's weights, not its exploration."""
        return {name: x for name, x in self._params.items() if name not in self.exploration}

    @torch.no_grad()
    def start_from(self, params: Mapping[str, Tensor]) -> None:
        """Start the actor from the weights of another run."""
        for name, x in self.base_params().items():
            x.copy_(params[name])

    def reseed(self, version: int) -> None:
        """A rank that joins at `version` draws noise of its own."""
        self._generator.manual_seed(make_seed(self._seed, self.seed_name, self.collective.rank, version))

    def state_dict(self) -> State:
        return {
            "nets": {name: {k: v.clone() for k, v in net.state_dict().items()} for name, net in self._nets.items()},
            "adams": {name: adam.state_dict() for name, adam in self._adams.items()},
            "generator": self._generator.get_state(),
            "version": self.version,
        }

    def load_state_dict(self, state: State) -> None:
        for name, net in self._nets.items():
            net.load_state_dict(state["nets"][name])
        for name, adam in self._adams.items():
            adam.load_state_dict(state["adams"][name])
        self._generator.set_state(torch.as_tensor(state["generator"]).cpu())
        self.version = state["version"]


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
