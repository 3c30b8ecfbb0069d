"""Values as distributions over a fixed support: targets for a cross-entropy loss."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def c51_target(probs: Tensor, reward: Tensor, discount: Tensor, *, support: Tensor) -> Tensor:
    """The projected distributional target of C51 (Bellemare et al. 2017, arXiv:1707.06887, alg. 1).

        y_i = clip(reward + discount z_i, z_0, z_{N-1}),  b_i = (y_i - z_0) / (z_1 - z_0)
        m_j = sum_i probs_i max(0, 1 - |b_i - j|)

    `[..., N], [...], [...], [N] -> [..., N]`: `probs` is the distribution at the state that is bootstrapped from; atom i moves
    to y_i, and its mass is shared between the two atoms beside it.
    """
    low, width, last = support[0], support[1] - support[0], support.shape[0] - 1
    place = ((reward.unsqueeze(-1) + discount.unsqueeze(-1) * support - low) / width).clamp(0.0, last)
    below = place.floor().clamp(max=last - 1)
    upper = probs * (place - below)
    index = below.nan_to_num(0.0).long()  # what is not a number stays so in the mass, and must not become an index
    target = torch.zeros_like(probs).scatter_add_(-1, index, probs - upper)
    return target.scatter_add_(-1, index + 1, upper)


def hl_gauss_target(value: Tensor, *, support: Tensor, sigma: float) -> Tensor:
    """A value as the histogram of a Gaussian around it (HL-Gauss: Imani & White 2018, arXiv:1806.04613; Farebrother et al.
    2024, arXiv:2403.03950, eq. 7). `[...], [N] -> [..., N]`

        p_i = (Phi((e_{i+1} - v) / s) - Phi((e_i - v) / s)) / (Phi((e_N - v) / s) - Phi((e_0 - v) / s))

    The atoms of `support` are the centres of N bins with the edges e; v is the value, held within the support; s is `sigma`
    times the width of a bin (0.75 in the paper).
    """
    width = support[1] - support[0]
    edges = torch.cat([support - 0.5 * width, support[-1:] + 0.5 * width])
    held = torch.minimum(torch.maximum(value, support[0]), support[-1])
    cdf = torch.erf((edges - held.unsqueeze(-1)) / (sigma * math.sqrt(2.0) * width))
    return cdf.diff(dim=-1) / (cdf[..., -1:] - cdf[..., :1])
