"""How much of a network does hardly anything."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def dormant_share(activations: Sequence[Tensor], *, threshold: float) -> Tensor:
    """The share of dormant units over all layers (Sokar et al. 2023, arXiv:2302.12902, defs. 1 and 2). `[N, H] each -> []`

        s_i = mean_n |h_ni| / mean_k mean_n |h_nk|        of unit i among the units k of its layer
        share = |{i : s_i <= threshold}| / number of units

    In a layer that answers nothing at all, every unit is dormant.

    >>> dormant_share([torch.tensor([[0.0, 1.0], [0.0, -3.0]]), torch.zeros(2, 2)], threshold=0.1).item()
    0.75
    """
    means = [h.abs().mean(0) for h in activations]
    dormant = torch.cat([m <= threshold * m.mean() for m in means])
    return dormant.to(torch.float32).mean()
