"""What a policy is asked at every step of one segment."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from runnel.core.records import Batch
from runnel.core.state import State
from runnel.envs.spaces import MASK
from runnel.envs.vector import StepOut

_SMALLEST_NOISE = 2.0**-25


class SegmentRequests:
    """The request of each step, made once: observations, mask and recurrent `state` are fixed memory, and the noise of a step
    is a view of that of the segment. Noise is drawn for every row, so that it never depends on what happens."""

    def __init__(self, out: StepOut, noise_size: int, rng: np.random.Generator, state: Mapping[str, Tensor]) -> None:
        self._out, self._noise_size, self.rng, self._state = out, noise_size, rng, state
        self.rows: list[Batch] = []
        self._noise = self._sent = torch.zeros(0)

    def prepare(self, num_steps: int) -> None:
        """Make the requests of `num_steps` steps, where that is still to be done."""
        if self.rows:
            return
        out = self._out
        self._noise = torch.zeros(num_steps, len(out.reward), self._noise_size)
        self._sent = self._noise.to(out.reward.device)
        fixed = {**out.obs, **self._state} if out.action_mask is None else {**out.obs, **self._state, MASK: out.action_mask}
        self.rows = [Batch({**fixed, "noise": noise}) for noise in self._sent.unbind(0)]

    def draw(self) -> None:
        """Uniform numbers in (0, 1) for the whole segment; a policy may take their logarithm."""
        noise = self._noise.numpy()
        self.rng.random(dtype=np.float32, out=noise)
        np.maximum(noise, _SMALLEST_NOISE, out=noise)
        self._send()

    def _send(self) -> None:
        if self._sent is not self._noise:
            self._sent.copy_(self._noise)

    def save(self) -> Tensor:
        """The noise of the segment."""
        return self._noise.clone()

    def load(self, noise: State | Tensor) -> None:
        """Undo `save`."""
        self._noise.copy_(torch.as_tensor(noise))
        self._send()
