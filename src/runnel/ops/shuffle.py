"""Random orders of rows, drawn where the rows are."""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.core.protocols import State
from runnel.core.rng import make_rng, rng_state, set_rng_state


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
        return torch.rand(num_rows, generator=self.generator, device=self.generator.device).argsort()

    def state_dict(self) -> State:
        device = None if self.generator is None else self.generator.get_state()
        return {"host": rng_state(self._rng), "device": device}

    def load_state_dict(self, state: State) -> None:
        set_rng_state(self._rng, state["host"])
        if self.generator is not None and state["device"] is not None:
            self.generator.set_state(state["device"].cpu())
