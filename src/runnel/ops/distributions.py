"""Action distributions: plain functions of tensors, with few operations and no hidden random state; and a head for each kind.

Sampling is a function of uniform noise that travels with the request. So a reply depends on its own row alone and can be
computed again anywhere. `...` stands for any leading dimensions.

A head turns a network's scores `[..., num_scores]` into actions and log-probabilities; every kind of action has one. It has no
parameters: a network that needs log-deviations owns `num_log_std` of them. No function waits for a device, so a head can be
part of a CUDA graph.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from runnel.core.spaces import ActionSpec

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
LOG_TWO = math.log(2.0)
UNIFORM_MARGIN = 2.0**-24
"""Half a unit in the last place of float32 at 1: the smallest distance of uniform noise from 0 and 1."""


def mask_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits at which actions that `mask` forbids have probability 0. `[..., A], [..., A] bool -> [..., A]`

    The fill is the most negative finite number: `p log p` stays 0, where minus infinity would make it NaN.
    """
    return logits if mask is None else logits.masked_fill(~mask, torch.finfo(logits.dtype).min)


def categorical_sample(logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse of the cumulative distribution at `noise`, and its log-probability. `[..., A], [..., 1] -> [...], [...]`

    `a = min {a : sum_{i <= a} p_i > u * sum_i p_i}`: for u below 1 that is never an action of probability 0.
    """
    probs = logits.softmax(-1)
    cdf = _cumulative(probs)
    # times the last entry, because rounded probabilities do not sum to 1; `right` steps over actions of probability 0
    action = torch.searchsorted(cdf, noise.clamp(max=1.0 - UNIFORM_MARGIN) * cdf[..., -1:], right=True)
    return action.squeeze(-1), probs.gather(-1, action).log().squeeze(-1)


def _cumulative(probs: Tensor) -> Tensor:
    """Sums over the first 1, 2, ... entries."""
    num = probs.shape[-1]
    # a CUDA device scans short rows a hundred times slower than it multiplies them by a triangle of ones
    if not probs.is_cuda or num > 64:
        return probs.cumsum(-1)
    return probs @ torch.ones(num, num, dtype=probs.dtype, device=probs.device).triu()


def categorical_mode(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable action and its log-probability. `[..., A] -> [...], [...]`"""
    logprob, action = logits.log_softmax(-1).max(-1)
    return action, logprob


def categorical_evaluate(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of `action`, and the entropy `-sum_a p_a log p_a`. `[..., A], [...] int -> [...], [...]`"""
    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, action.unsqueeze(-1)).squeeze(-1), entropy


def gaussian_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """`a = mean + std * Phi^-1(u)` and its log-probability. `[..., D], [D], [..., D] -> [..., D], [...]`"""
    z = torch.special.ndtri(noise.clamp(UNIFORM_MARGIN, 1.0 - UNIFORM_MARGIN))
    return mean + log_std.exp() * z, _normal_logprob(z, log_std)


def gaussian_mode(mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and its log-probability. `[..., D], [D] -> [..., D], [...]`"""
    return mean, _normal_logprob(torch.zeros_like(mean), log_std)


def gaussian_evaluate(mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-density of `action` under a diagonal Gaussian, and its entropy. `[..., D], [D], [..., D] -> [...], [...]`

    log p = -sum_i (z_i^2 / 2 + log std_i + log(2 pi) / 2),  H = sum_i (log std_i + (1 + log(2 pi)) / 2)
    """
    logprob = _normal_logprob((action - mean) * (-log_std).exp(), log_std)
    entropy = log_std.sum() + log_std.numel() * (0.5 + HALF_LOG_TWO_PI)
    return logprob, entropy.expand_as(logprob)


def _normal_logprob(z: Tensor, log_std: Tensor) -> Tensor:
    return -0.5 * z.square().sum(-1) - (log_std.sum() + log_std.numel() * HALF_LOG_TWO_PI)


def squashed_gaussian(mean: Tensor, log_std: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """`a = tanh(u)`, `u = mean + std z` with normal noise `z`, and its log-density. `[..., D]` each `-> [..., D], [...]`

    log p(a) = sum_i (log N(u_i) - log(1 - tanh(u_i)^2)): Haarnoja et al. 2018 (arXiv:1812.05905), appendix C. Both results are
    differentiable in `mean` and `log_std` (the noise is fixed). In float32 an action is exactly 1 from u = 9.1 on; its
    log-density stays correct beyond that. The entropy has no closed form; the mean of `-logprob` estimates it.
    """
    u = mean + log_std.exp() * z
    return u.tanh(), _squashed_logprob(z, log_std, u)


def _squashed_logprob(z: Tensor, log_std: Tensor, u: Tensor) -> Tensor:
    """`log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u))`, which neither overflows nor cancels."""
    log_slope = 2.0 * (LOG_TWO - u - softplus(-2.0 * u))
    return -(0.5 * z.square() + log_std + log_slope).sum(-1) - z.shape[-1] * HALF_LOG_TWO_PI


Pair = tuple[Tensor, Tensor]


class DiscreteHead(nn.Module):
    """A categorical distribution; scores are logits. Actions `[...]` int64."""

    num_log_std = 0

    def __init__(self, spec: ActionSpec) -> None:
        super().__init__()
        self.num_scores, self.noise_size = spec.size, spec.noise_size

    def sample(self, scores: Tensor, noise: Tensor, mask: Tensor | None = None, log_std: Tensor | None = None) -> Pair:
        """An action by the noise `[..., noise_size]`, and its log-probability `[...]`."""
        return categorical_sample(mask_logits(scores, mask), noise)

    def probabilities(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """How probable each action is; 0 where the mask forbids it. `[..., A]`"""
        return mask_logits(scores, mask).softmax(-1)

    def mode(self, scores: Tensor, mask: Tensor | None = None, log_std: Tensor | None = None) -> Pair:
        """The most probable action, and its log-probability `[...]`."""
        return categorical_mode(mask_logits(scores, mask))

    def evaluate(self, scores: Tensor, action: Tensor, mask: Tensor | None = None, log_std: Tensor | None = None) -> Pair:
        """Log-probability of `action` and the entropy, `[...]` each."""
        return categorical_evaluate(mask_logits(scores, mask), action)


class ContinuousHead(nn.Module):
    """A diagonal Gaussian; scores are means, `log_std` `[num_log_std]` is the same in every state. Actions `[..., *shape]`."""

    def __init__(self, spec: ActionSpec) -> None:
        super().__init__()
        self.num_scores, self.noise_size, self.num_log_std = spec.size, spec.noise_size, spec.size
        self._shape = spec.shape
        self._flat = len(spec.shape) == 1

    def sample(self, scores: Tensor, noise: Tensor, mask: Tensor | None = None, log_std: Tensor | None = None) -> Pair:
        """An action by the noise `[..., noise_size]`, and its log-density `[...]`."""
        return self._shaped(gaussian_sample(scores, cast(Tensor, log_std), noise))

    def mode(self, scores: Tensor, mask: Tensor | None = None, log_std: Tensor | None = None) -> Pair:
        """The mean, and its log-density `[...]`."""
        return self._shaped(gaussian_mode(scores, cast(Tensor, log_std)))

    def evaluate(self, scores: Tensor, action: Tensor, mask: Tensor | None = None, log_std: Tensor | None = None) -> Pair:
        """Log-density of `action` and the entropy, `[...]` each."""
        flat = action if self._flat else action.reshape(scores.shape)
        return gaussian_evaluate(scores, cast(Tensor, log_std), flat)

    def _shaped(self, pair: Pair) -> Pair:
        if self._flat:
            return pair
        action, logprob = pair
        return action.reshape((*action.shape[:-1], *self._shape)), logprob


class MultiHead(nn.Module):
    """Independent parts: all choices as one batch of categorical distributions, all boxes as one Gaussian.

    Scores, noise and log-deviations come in the order choices, boxes. Actions `[..., K]` and masks `[..., mask_size]` come in
    the order of the parts. Choices `[..., P]` of `n_i` values are padded to `[..., P, max n]`, so the number of operations does
    not grow with the number of parts. Log-probability and entropy are sums over parts.
    """

    _pick: Tensor
    _real: Tensor
    _order: Tensor
    _back: Tensor

    def __init__(self, spec: ActionSpec) -> None:
        super().__init__()
        sizes = [part.num_actions for part in spec.parts if part.kind == "discrete"]
        self.num_scores, self.noise_size = spec.size, spec.noise_size
        self.num_log_std = sum(part.size for part in spec.parts if part.kind == "continuous")
        self._num_logits, self._num_choices, self._widest = sum(sizes), len(sizes), max(sizes, default=0)
        self._ragged = len(set(sizes)) > 1
        pick, real = _padding(sizes)
        order = _stored_order(spec)
        self._moved = order != list(range(len(order)))
        # not persistent: they follow from the spec, so they are not published with the weights
        for name, value in (("_pick", pick), ("_real", real), ("_order", torch.tensor(order))):
            self.register_buffer(name, value, persistent=False)
        self.register_buffer("_back", torch.tensor(order).argsort(), persistent=False)

    def sample(self, scores: Tensor, noise: Tensor, mask: Tensor | None = None, log_std: Tensor | None = None) -> Pair:
        """An action by the noise `[..., noise_size]`, and its log-probability `[...]`."""
        split = self._num_choices
        choice = box = None
        if split:
            choice = categorical_sample(self._logits(scores, mask), noise[..., :split].unsqueeze(-1))
        if self.num_log_std:
            box = gaussian_sample(scores[..., self._num_logits :], cast(Tensor, log_std), noise[..., split:])
        return self._join(choice, box)

    def mode(self, scores: Tensor, mask: Tensor | None = None, log_std: Tensor | None = None) -> Pair:
        """The most probable choice of each part and the means, and their log-probability `[...]`."""
        choice = categorical_mode(self._logits(scores, mask)) if self._num_choices else None
        box = gaussian_mode(scores[..., self._num_logits :], cast(Tensor, log_std)) if self.num_log_std else None
        return self._join(choice, box)

    def evaluate(self, scores: Tensor, action: Tensor, mask: Tensor | None = None, log_std: Tensor | None = None) -> Pair:
        """Log-probability of `action` and the entropy, `[...]` each."""
        ordered = action.index_select(-1, self._order) if self._moved else action
        choice = box = None
        if self._num_choices:
            choices = ordered[..., : self._num_choices].long()
            each, spread = categorical_evaluate(self._logits(scores, mask), choices)
            choice = each.sum(-1), spread.sum(-1)
        if self.num_log_std:
            means, boxes = scores[..., self._num_logits :], ordered[..., self._num_choices :]
            box = gaussian_evaluate(means, cast(Tensor, log_std), boxes)
        if choice is None or box is None:
            return cast(Pair, choice or box)
        return choice[0] + box[0], choice[1] + box[1]

    def _logits(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """Masked logits of all choices, `[..., P, max n]`; padding is as forbidden as a closed action."""
        logits = scores[..., : self._num_logits] if self.num_log_std else scores
        if self._ragged:
            logits = logits.index_select(-1, self._pick)
            allowed = self._real if mask is None else mask.index_select(-1, self._pick) & self._real
            logits = mask_logits(logits, allowed)
        else:
            logits = mask_logits(logits, mask)
        return logits.reshape(*logits.shape[:-1], self._num_choices, self._widest)

    def _join(self, choice: Pair | None, box: Pair | None) -> Pair:
        """One action in stored order, and the sum of log-probabilities."""
        if choice is None or box is None:
            action, logprob = cast(Pair, choice or box)
            return action, logprob.sum(-1) if box is None else logprob
        action = torch.cat([choice[0].to(box[0].dtype), box[0]], -1)
        return action.index_select(-1, self._back) if self._moved else action, choice[1].sum(-1) + box[1]


def _padding(sizes: list[int]) -> tuple[Tensor, Tensor]:
    """The score of each cell of parts of `sizes` choices, padded to the widest, and whether it is real. `[P * max n]` each."""
    widest, first = max(sizes, default=0), 0
    pick = torch.zeros(len(sizes), widest, dtype=torch.int64)
    real = torch.zeros(len(sizes), widest, dtype=torch.bool)
    for row, size in enumerate(sizes):
        pick[row, :size] = torch.arange(first, first + size)
        real[row, :size] = True
        first += size
    return pick.reshape(-1), real.reshape(-1)


def _stored_order(spec: ActionSpec) -> list[int]:
    """The columns of a stored action in the order choices, boxes."""
    choices: list[int] = []
    boxes: list[int] = []
    column = 0
    for part in spec.parts:
        width = part.noise_size
        (choices if part.kind == "discrete" else boxes).extend(range(column, column + width))
        column += width
    return choices + boxes


ActionHead = DiscreteHead | ContinuousHead | MultiHead


def make_head(spec: ActionSpec) -> ActionHead:
    """The head for an action: `num_scores` is the width the network must give, `num_log_std` the parameters it must own."""
    if spec.kind == "discrete":
        return DiscreteHead(spec)
    return ContinuousHead(spec) if spec.kind == "continuous" else MultiHead(spec)
