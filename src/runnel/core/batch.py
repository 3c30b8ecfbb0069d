"""Batch: named tensors, flat, on any device.

Nesting is in the key (`obs/position`), so a batch maps one to one onto shared memory, a wire and a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor


class Batch(dict[str, Tensor]):
    """A dict of tensors with the few operations that every stage needs.

    >>> b = Batch(obs=torch.zeros(4, 2), reward=torch.ones(4))
    >>> b.map(lambda x: x[:2])["reward"].tolist()
    [1.0, 1.0]
    """

    def map(self, fn: Callable[[Tensor], Tensor]) -> Batch:
        """Apply `fn` to each leaf."""
        return Batch({k: fn(v) for k, v in self.items()})

    def to(self, device: torch.device | str) -> Batch:
        """Each leaf on `device`; leaves that are there already are not copied."""
        return self.map(lambda x: x.to(device, non_blocking=True))

    def under(self, prefix: str) -> Batch:
        """The leaf `prefix`, and every leaf below `prefix/`, under their full names.

        >>> sorted(Batch({"obs/a": torch.zeros(1), "obs/b": torch.zeros(1), "act": torch.zeros(1)}).under("obs"))
        ['obs/a', 'obs/b']
        """
        return Batch({k: v for k, v in self.items() if k == prefix or k.startswith(prefix + "/")})

    @staticmethod
    def cat(batches: Sequence[Mapping[str, Tensor]], dim: int = 0) -> Batch:
        """Concatenate leaf by leaf; one batch is returned as it is, without a copy."""
        if len(batches) == 1:
            return Batch(batches[0])
        return Batch({k: torch.cat([b[k] for b in batches], dim=dim) for k in batches[0]})
