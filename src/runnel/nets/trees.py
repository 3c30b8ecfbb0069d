"""Gradient-boosted trees as a network: a sum of small trees, to which each step of learning adds one (`agents/gbrl.py`).

Trees are oblivious, as those of GBRL (Fuhrer et al. 2024, arXiv:2407.08250) and CatBoost are: all nodes of a level ask the same
question. So a tree is `depth` questions and `2^depth` leaves, and all trees are arrays of a fixed size, which are published and
saved like weights. A leaf holds a number for each score of the policy and one for the value: one tree serves both.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from runnel.core.errors import ConfigError
from runnel.core.spaces import EnvSpec
from runnel.nets.layers import NetConfig, Torso
from runnel.ops.distributions import make_head


class TreeBody(nn.Module):
    """`scores, value = bias + sum of the leaves that an observation falls into`."""

    feature: Tensor
    """`[M, D]` which number a question is about."""
    threshold: Tensor
    """`[M, D]` the question is whether that number is above it."""
    leaf: Tensor
    """`[M, 2^D, S + 1]`"""
    num_trees: Tensor

    def __init__(self, env_spec: EnvSpec, *, depth: int, max_trees: int) -> None:
        super().__init__()
        self.torso = Torso(env_spec.obs, NetConfig(conv="none"), seed=0)
        num_outputs = make_head(env_spec.action).num_scores + 1
        self.depth, self.max_trees = depth, max_trees
        self.bias = nn.Parameter(torch.zeros(num_outputs))
        self.register_buffer("feature", torch.zeros(max_trees, depth, dtype=torch.int64))
        self.register_buffer("threshold", torch.zeros(max_trees, depth))
        self.register_buffer("leaf", torch.zeros(max_trees, 2**depth, num_outputs))
        self.register_buffer("num_trees", torch.zeros((), dtype=torch.int64))

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Obs leaves `[..., *shape] -> [..., S + 1]`."""
        x, num = self.torso(obs), int(self.num_trees)
        lead, x = x.shape[:-1], x.reshape(-1, x.shape[-1])
        above = x[:, self.feature[:num]] > self.threshold[:num]
        place = leaf_index(above) + torch.arange(num, device=x.device) * 2**self.depth
        found = self.leaf[:num].flatten(0, 1)[place].sum(1)
        return (self.bias + found).view(*lead, -1)

    def policy(self, obs: Mapping[str, Tensor]) -> Tensor:
        return self.forward(obs)[..., :-1]

    def value(self, obs: Mapping[str, Tensor]) -> Tensor:
        return self.forward(obs)[..., -1]

    @torch.no_grad()
    def grow(self, x: Tensor, target: Tensor, *, rates: Tensor, num_bins: int) -> None:
        """Add the tree that fits `target` best, each output times its rate. `[N, I], [N, S + 1], [S + 1]`"""
        num = int(self.num_trees)
        if num >= self.max_trees:
            raise ConfigError("gbrl.max_trees", self.max_trees, "all trees are grown; start a run with more")
        # split by what all outputs gain, each in units of its own spread: else the one with the largest errors would decide
        feature, threshold = fit_questions(x, target / (target.std(0) + 1e-8), depth=self.depth, num_bins=num_bins)
        place = leaf_index(x[:, feature] > threshold)
        counts = torch.zeros(2**self.depth, 1).index_add_(0, place, torch.ones(len(x), 1))
        sums = torch.zeros(2**self.depth, target.shape[1]).index_add_(0, place, target)
        self.feature[num], self.threshold[num] = feature, threshold
        self.leaf[num] = rates * sums / counts.clamp(min=1.0)
        self.num_trees.add_(1)


def leaf_index(above: Tensor) -> Tensor:
    """Answers to questions as the number of a leaf. `[..., D] bool -> [...] int64`

    >>> leaf_index(torch.tensor([[False, True], [True, True]])).tolist()
    [1, 3]
    """
    depth = above.shape[-1]
    powers = torch.tensor([2 ** (depth - 1 - i) for i in range(depth)], device=above.device)
    return (above * powers).sum(-1)


def fit_questions(x: Tensor, target: Tensor, *, depth: int, num_bins: int) -> tuple[Tensor, Tensor]:
    """The questions of an oblivious tree, level by level: each the one that leaves the least squared error. `-> [D], [D]`

        score = sum over leaves |sum of targets in it|^2 / rows in it          (greatest where the squared error is least)

    Candidates are `num_bins - 1` quantiles of each number. `[N, I], [N, O]`
    """
    levels = torch.arange(1, num_bins, device=x.device, dtype=x.dtype) / num_bins
    thresholds = torch.quantile(x, levels, dim=0, interpolation="lower").T.reshape(-1)
    features = torch.arange(x.shape[1], device=x.device).repeat_interleave(num_bins - 1)
    above = (x[:, features] > thresholds).to(x.dtype)
    weighted = torch.cat([target, torch.ones(len(x), 1, device=x.device)], 1)
    place = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    chosen = []
    for level in range(depth):
        by_leaf = torch.zeros(len(x), 2**level, weighted.shape[1], device=x.device, dtype=x.dtype)
        by_leaf[torch.arange(len(x), device=x.device), place] = weighted
        right = torch.einsum("nlo,nc->clo", by_leaf, above)
        sides = torch.stack([right, by_leaf.sum(0) - right])
        score = (sides[..., :-1].square().sum(-1) / sides[..., -1].clamp(min=1.0)).sum((0, 2))
        best = int(score.argmax())
        chosen.append(best)
        place = 2 * place + above[:, best].to(torch.int64)
    return features[chosen], thresholds[chosen]
