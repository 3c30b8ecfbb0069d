"""Random orders of rows, drawn where the rows are."""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.core.rng import make_rng, rng_state, set_rng_state
from runnel.core.state import State

_MOST = 1 << 30


class Shuffle:
    """Permutations from a generator of its own: numpy's for the CPU, the device's elsewhere (never waits for the host)."""

    def __init__(self, seed: int, *, device: str = "cpu") -> None:
        self.generator = None if torch.device(device).type == "cpu" else torch.Generator(device).manual_seed(seed)
        self._rng = make_rng(seed, "shuffle")

    @property
    def generators(self) -> list[torch.Generator]:
        """What a captured graph that draws orders has to move on."""
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
