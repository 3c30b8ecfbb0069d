"""AdamW over a few tensors. Its moments may be kept on the host while the gradients are on the device.

Moments on the host (and master weights, if they are there too) come to the device one chunk at a time, so a step needs little
memory beside weights and gradients. The arithmetic is the same in both places, to the last bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

BETAS = (0.9, 0.95)
"""Decay of the two moments: the usual ones of language models, whose second moment forgets faster than Adam's 0.999."""
CHUNK = 1 << 24
"""The most elements of a tensor that come to the device at once."""


def on_host(x: Tensor, *, fast: bool) -> Tensor:
    """A copy of `x` on the host; with `fast` in pinned memory, which the device can read by itself."""
    found = x.detach().to("cpu", copy=True)
    return found.pin_memory() if fast else found


class AdamW:
    """The optimiser of `params`, with their moments. `offload` keeps the moments on the host."""

    def __init__(self, params: list[Tensor], *, weight_decay: float, device: torch.device, offload: bool) -> None:
        self.params, self._decay, self._device = params, weight_decay, device
        place = torch.device("cpu") if offload else device
        pinned = offload and device.type == "cuda"
        self.mean = [torch.zeros_like(p, device=place, pin_memory=pinned) for p in self.params]
        self.square = [torch.zeros_like(p, device=place, pin_memory=pinned) for p in self.params]
        self.steps = torch.zeros((), device=device)
        # device types are compared, because "cuda" and "cuda:0" name one device and are not equal
        self._all_on_device = not offload and all(p.device.type == device.type for p in self.params)

    @torch.no_grad()
    def step(self, grads: list[Tensor], lr: float) -> None:
        """Take one step; `grads` holds one gradient for each parameter, on the device."""
        self.steps += 1
        if self._all_on_device:
            self._step(self.params, grads, self.mean, self.square, lr)
            return
        for tensors in zip(self.params, grads, self.mean, self.square, strict=True):
            for chunk in zip(*(torch.split(x.view(-1), CHUNK) for x in tensors), strict=True):
                p, grad, mean, square = on_device = [x.to(self._device, non_blocking=True) for x in chunk]
                self._step([p], [grad], [mean], [square], lr)
                for stored, changed in zip(chunk, on_device, strict=True):
                    if changed is not stored:  # `to` returns its argument where that is on the device already
                        stored.copy_(changed, non_blocking=True)
        if self._device.type == "cuda":
            # copies to the host are asynchronous: they must have ended before the host reads these tensors
            torch.cuda.current_stream(self._device).synchronize()

    def _step(self, params: list[Tensor], grads: list[Tensor], mean: list[Tensor], square: list[Tensor], lr: float) -> None:
        tensors: tuple[list[Tensor], ...] = (params, grads, mean, square, [], [self.steps] * len(params))
        torch._fused_adamw_(
            *tensors, lr=lr, beta1=BETAS[0], beta2=BETAS[1], weight_decay=self._decay, eps=1e-8, amsgrad=False, maximize=False
        )
