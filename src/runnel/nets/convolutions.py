"""Convolutions over images: uint8 `[C, H, W]` (or `[H, W, C]`, turned), or small float boards such as MinAtar's `[C, 10, 10]`.

The shape (`channel_axis`) or `net.channels` gives the axis of the channels. On the CPU images are laid out channels last, and
the first convolution of the Nature network (8 x 8, stride 4) runs as one of 2 x 2, stride 1, over blocks of 4 x 4 pixels. That
trains 1.6 times as fast. Parameters keep their usual shapes.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runnel.core.errors import ConfigError
from runnel.core.spaces import ArraySpec, channel_axis

Kind = Literal["auto", "none", "nature", "small"]
Channels = Literal["auto", "first", "last"]
LAYERS = {"nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)), "small": ((16, 3, 1),)}
"""Output channels, kernel and stride of each convolution."""
SMALLEST_NATURE = 36
BLOCK = 4
"""Stride of the first convolution that runs over blocks of pixels."""
MANY_ROWS = 256
"""Images in one pass on the CPU without gradients; more do not fit into its caches."""


def is_image(leaf: ArraySpec) -> bool:
    """Whether a leaf is convolved: three dimensions, of which two are at least 5 wide."""
    return len(leaf.shape) == 3 and sorted(leaf.shape)[1] >= 5


class Conv(nn.Module):
    """Convolutions with relu over one image leaf, flattened. `[..., C, H, W] -> [..., width]`"""

    def __init__(self, leaf: ArraySpec, kind: Kind = "auto", layout: Channels = "auto", *, key: str, seed: int) -> None:
        super().__init__()
        self._shape, self._bytes = leaf.shape, leaf.dtype == torch.uint8
        self._channels_last_input = _has_channels_last(leaf, layout, key)
        channels, height, width = (leaf.shape[-1], *leaf.shape[:2]) if self._channels_last_input else leaf.shape
        self.kind = kind if kind != "auto" else ("nature" if min(height, width) >= SMALLEST_NATURE else "small")
        generator = torch.Generator().manual_seed(seed)
        self.layers = nn.ModuleList()
        for out, kernel, stride in LAYERS[self.kind]:
            if min(height, width) < kernel:
                raise ConfigError("net.conv", kind, f"images of {leaf.shape} are too small for it; use small, or none")
            # torch's own initialisation would draw from the global generator
            layer = nn.utils.skip_init(nn.Conv2d, channels, out, kernel, stride)  # type: ignore[no-untyped-call]
            nn.init.orthogonal_(layer.weight, gain=2.0**0.5, generator=generator)
            nn.init.zeros_(layer.bias)
            self.layers.append(layer)
            channels, height, width = out, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.width = channels * height * width
        self._convolutions: list[nn.Conv2d] = [layer for layer in self.layers if isinstance(layer, nn.Conv2d)]
        sizes = (*self._convolutions[0].kernel_size, *leaf.shape[1:])
        fits = self._convolutions[0].stride == (BLOCK, BLOCK) and not any(size % BLOCK for size in sizes)
        self._in_blocks = self._bytes and not self._channels_last_input and fits

    def forward(self, image: Tensor) -> Tensor:
        x = image.reshape(-1, *self._shape)
        in_one = torch.is_grad_enabled() or x.is_cuda or torch.compiler.is_exporting() or len(x) <= MANY_ROWS
        y = self._flat(x) if in_one else torch.cat([self._flat(part) for part in torch.split(x, MANY_ROWS)])
        return y if image.dim() == 4 else y.reshape(*image.shape[: image.dim() - 3], self.width)

    def _flat(self, x: Tensor) -> Tensor:
        first, *rest = self._convolutions
        x = self._first(x, first)
        for layer in rest:
            x = _convolve(F.relu(x, inplace=True), layer.weight, layer)
        # flat before the last relu: its backward pass then reads memory in one order
        return F.relu(x.flatten(1), inplace=True)

    def _first(self, x: Tensor, layer: nn.Conv2d) -> Tensor:
        """The first convolution."""
        # bytes are scaled to [0, 1] by the weights, which are far fewer than the pixels
        weight = layer.weight * (1.0 / 255.0) if self._bytes else layer.weight
        if self._in_blocks and not x.is_cuda and not torch.compiler.is_exporting():
            return F.conv2d(_blocks(x), _block_weight(weight), layer.bias)
        if self._channels_last_input:
            x = x.permute(0, 3, 1, 2)
        return _convolve(x.to(torch.float32, memory_format=torch.channels_last), weight, layer)


def _has_channels_last(leaf: ArraySpec, layout: Channels, key: str) -> bool:
    """Whether an image is `[H, W, C]`. Stacks of frames are always made `[C, H, W]`."""
    if layout != "auto":
        return layout == "last"
    axis = 0 if leaf.stack else channel_axis(leaf.shape)
    if axis is None:
        fix = f"{key!r} of shape {leaf.shape} does not tell where its channels are; set net.channels to first or last"
        raise ConfigError("net.channels", "auto", f"{fix}, or net.conv to none")
    return axis == 2


def _convolve(x: Tensor, weight: Tensor, layer: nn.Conv2d) -> Tensor:
    return F.conv2d(x, weight.contiguous(memory_format=torch.channels_last), layer.bias, layer.stride)


def _blocks(x: Tensor) -> Tensor:
    """Each block of 4 x 4 pixels as one float pixel with channels `(c, dy, dx)`: `[N, C, H, W] -> [N, 16 C, H / 4, W / 4]`.

    The result is laid out channels last.
    """
    n, c, h, w = x.shape
    # four bytes of a line move as one int32, which must begin at a multiple of four
    x = x.contiguous() if x.storage_offset() % BLOCK == 0 else x.clone(memory_format=torch.contiguous_format)
    lines = x.view(torch.int32).view(n, c, h // BLOCK, w).transpose(1, 2).contiguous()
    words = lines.view(n, h // BLOCK, BLOCK * c, w // BLOCK).transpose(2, 3).contiguous()
    return words.view(torch.uint8).to(torch.float32).permute(0, 3, 1, 2)


def _block_weight(weight: Tensor) -> Tensor:
    """`weight` for an image of `_blocks`, with the same result. `[O, C, K, K] -> [O, 16 C, K / 4, K / 4]`, channels last"""
    o, c, kernel, _ = weight.shape
    k = kernel // BLOCK
    parts = weight.reshape(o, c, k, BLOCK, k, BLOCK).permute(0, 2, 4, 1, 3, 5)
    return parts.reshape(o, k, k, BLOCK * BLOCK * c).permute(0, 3, 1, 2)
