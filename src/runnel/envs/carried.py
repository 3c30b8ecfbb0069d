"""The discounted return of episodes that go on from one segment into the next, for learners that scale rewards by it.

Only who plays the environments sees every step of each, in order, whichever learner, rank or batch its segments come to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.core.batch import Batch
from runnel.core.trajectories import CARRIED
from runnel.ops.normalise import returns_so_far


class CarriedReturns:
    """Of the environments of one vector, in the memory of its device; a checkpoint keeps `now` `[B]`."""

    def __init__(self, num_envs: int, *, gamma: float, device: torch.device) -> None:
        self.gamma, self.now = gamma, torch.zeros(num_envs, device=device)

    def begin(self, arrays: Batch) -> None:
        """A segment begins: say what its episodes bring along."""
        arrays[CARRIED].copy_(self.now, non_blocking=True)

    def end(self, arrays: Batch) -> None:
        """All steps of the segment are written."""
        ended = arrays["terminated"] | arrays["truncated"]
        returns: Tensor = returns_so_far(arrays["rewards/env"], ended, arrays[CARRIED], gamma=self.gamma)
        self.now.copy_(returns[-1].masked_fill(ended[-1], 0.0))
