"""AdamW over a few tensors, whose moments may live elsewhere than the gradients.

Kept on the host, moments (and masters, if they lie there too) come to the device a part at a time, so a step needs little room
beside weights and gradients. The arithmetic is the same in either place, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

PART = 1 << 24
"""Most numbers of a tensor that come to the device at once."""


def on_host(x: Tensor, *, fast: bool) -> Tensor:
    """`x` on the host, in pages that a device can read by itself if `fast`."""
    found = x.detach().to("cpu", copy=True)
    return found.pin_memory() if fast else found


class AdamW:
    """Moments of `params`, and the step that they take. `offload` keeps the moments on the host."""

    def __init__(
        self, params: Sequence[Tensor], *, betas: tuple[float, float], weight_decay: float, device: torch.device, offload: bool
    ) -> None:
        self.params, self._betas, self._decay, self._device = list(params), betas, weight_decay, device
        place = torch.device("cpu") if offload else device
        pinned = offload and device.type == "cuda"
        self.mean = [torch.zeros_like(p, device=place, pin_memory=pinned) for p in self.params]
        self.square = [torch.zeros_like(p, device=place, pin_memory=pinned) for p in self.params]
        self.steps = torch.zeros((), device=device)
        self._whole = not offload and all(p.device.type == device.type for p in self.params)  # cuda and cuda:0 are one

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor], lr: float) -> None:
        """One step against `grads`, one for each of the parameters, on the device."""
        self.steps += 1
        if self._whole:
            self._step(self.params, grads, self.mean, self.square, lr)
            return
        for tensors in zip(self.params, grads, self.mean, self.square, strict=True):
            for part in zip(*(torch.split(x.view(-1), PART) for x in tensors), strict=True):
                p, grad, mean, square = here = [x.to(self._device, non_blocking=True) for x in part]
                self._step([p], [grad], [mean], [square], lr)
                for kept, found in zip(part, here, strict=True):
                    if found is not kept:
                        kept.copy_(found, non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # before anyone reads on the host

    def _step(
        self, params: Sequence[Tensor], grads: Sequence[Tensor], mean: Sequence[Tensor], square: Sequence[Tensor], lr: float
    ) -> None:
        torch._fused_adamw_(
            list(params),
            list(grads),
            list(mean),
            list(square),
            [],
            [self.steps] * len(params),
            lr=lr,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=self._decay,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )
