"""Action heads: what a network's scores mean for an action, as one object for every kind of action.

A head turns scores `[..., num_scores]` into actions and log-probabilities. It has no parameters: a network that needs a
log-deviation owns `num_log_std` of them. Nothing here waits for a device, so a head can be part of a CUDA graph. `...` stands
for any leading dimensions.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from runnel.core.spaces import ActionSpec
from runnel.ops import distributions as dist

Pair = tuple[Tensor, Tensor]


class DiscreteHead(nn.Module):
    """A categorical distribution; scores are logits. Actions `[...]` int64."""

    num_log_std = 0

    def __init__(self, spec: ActionSpec) -> None:
        super().__init__()
        self.num_scores, self.noise_size = spec.size, spec.noise_size

    def sample(self, scores: Tensor, noise: Tensor, mask: Tensor | None = None, log_std: Tensor | None = None) -> Pair:
        """An action by the noise `[..., noise_size]`, and its log-probability `[...]`."""
        return dist.categorical_sample(dist.mask_logits(scores, mask), noise)

    def mode(self, scores: Tensor, mask: Tensor | None = None, log_std: Tensor | None = None) -> Pair:
        """The most probable action, and its log-probability `[...]`."""
        return dist.categorical_mode(dist.mask_logits(scores, mask))

    def evaluate(self, scores: Tensor, action: Tensor, mask: Tensor | None = None, log_std: Tensor | None = None) -> Pair:
        """Log-probability of `action` and the entropy, `[...]` each."""
        return dist.categorical_evaluate(dist.mask_logits(scores, mask), action)


class ContinuousHead(nn.Module):
    """A diagonal Gaussian; scores are means, `log_std` `[num_log_std]` is the same in every state. Actions `[..., *shape]`."""

    def __init__(self, spec: ActionSpec) -> None:
        super().__init__()
        self.num_scores, self.noise_size, self.num_log_std = spec.size, spec.noise_size, spec.size
        self._shape = spec.shape
        self._flat = len(spec.shape) == 1

    def sample(self, scores: Tensor, noise: Tensor, mask: Tensor | None = None, log_std: Tensor | None = None) -> Pair:
        """An action by the noise `[..., noise_size]`, and its log-density `[...]`."""
        return self._shaped(dist.gaussian_sample(scores, cast(Tensor, log_std), noise))

    def mode(self, scores: Tensor, mask: Tensor | None = None, log_std: Tensor | None = None) -> Pair:
        """The mean, and its log-density `[...]`."""
        return self._shaped(dist.gaussian_mode(scores, cast(Tensor, log_std)))

    def evaluate(self, scores: Tensor, action: Tensor, mask: Tensor | None = None, log_std: Tensor | None = None) -> Pair:
        """Log-density of `action` and the entropy, `[...]` each."""
        flat = action if self._flat else action.reshape(scores.shape)
        return dist.gaussian_evaluate(scores, cast(Tensor, log_std), flat)

    def _shaped(self, answer: Pair) -> Pair:
        if self._flat:
            return answer
        action, logprob = answer
        return action.reshape((*action.shape[:-1], *self._shape)), logprob


class MultiHead(nn.Module):
    """Independent parts: all choices as one batch of categorical distributions, all boxes as one Gaussian.

    Scores, noise and log-deviations stand in the order choices, boxes; actions `[..., K]` and masks `[..., mask_size]` in the
    order of the parts. Choices `[..., P]` of `n_i` values are padded to `[..., P, max n]`, so the number of operations does not
    grow with the number of parts. Log-probability and entropy are sums over parts.
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
        for name, value in (("_pick", pick), ("_real", real), ("_order", torch.tensor(order))):
            self.register_buffer(name, value, persistent=False)
        self.register_buffer("_back", torch.tensor(order).argsort(), persistent=False)

    def sample(self, scores: Tensor, noise: Tensor, mask: Tensor | None = None, log_std: Tensor | None = None) -> Pair:
        """An action by the noise `[..., noise_size]`, and its log-probability `[...]`."""
        split = self._num_choices
        choice = box = None
        if split:
            choice = dist.categorical_sample(self._logits(scores, mask), noise[..., :split].unsqueeze(-1))
        if self.num_log_std:
            box = dist.gaussian_sample(scores[..., self._num_logits :], cast(Tensor, log_std), noise[..., split:])
        return self._join(choice, box)

    def mode(self, scores: Tensor, mask: Tensor | None = None, log_std: Tensor | None = None) -> Pair:
        """The most probable choice of each part and the means, and their log-probability `[...]`."""
        choice = dist.categorical_mode(self._logits(scores, mask)) if self._num_choices else None
        box = dist.gaussian_mode(scores[..., self._num_logits :], cast(Tensor, log_std)) if self.num_log_std else None
        return self._join(choice, box)

    def evaluate(self, scores: Tensor, action: Tensor, mask: Tensor | None = None, log_std: Tensor | None = None) -> Pair:
        """Log-probability of `action` and the entropy, `[...]` each."""
        ordered = action.index_select(-1, self._order) if self._moved else action
        choice = box = None
        if self._num_choices:
            choices = ordered[..., : self._num_choices].long()
            each, spread = dist.categorical_evaluate(self._logits(scores, mask), choices)
            choice = each.sum(-1), spread.sum(-1)
        if self.num_log_std:
            means, boxes = scores[..., self._num_logits :], ordered[..., self._num_choices :]
            box = dist.gaussian_evaluate(means, cast(Tensor, log_std), boxes)
        if choice is None or box is None:
            return cast(Pair, choice or box)
        return choice[0] + box[0], choice[1] + box[1]

    def _logits(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """Masked logits of all choices, `[..., P, max n]`; padding is as forbidden as a closed action."""
        logits = scores[..., : self._num_logits] if self.num_log_std else scores
        if self._ragged:
            logits = logits.index_select(-1, self._pick)
            allowed = self._real if mask is None else mask.index_select(-1, self._pick) & self._real
            logits = dist.mask_logits(logits, allowed)
        else:
            logits = dist.mask_logits(logits, mask)
        return logits.reshape(*logits.shape[:-1], self._num_choices, self._widest)

    def _join(self, choice: Pair | None, box: Pair | None) -> Pair:
        """One action in stored order, and the sum of log-probabilities."""
        if choice is None or box is None:
            action, logprob = cast(Pair, choice or box)
            return action, logprob.sum(-1) if box is None else logprob
        action = torch.cat([choice[0].to(box[0].dtype), box[0]], -1)
        return action.index_select(-1, self._back) if self._moved else action, choice[1].sum(-1) + box[1]


def _padding(sizes: list[int]) -> tuple[Tensor, Tensor]:
    """For parts of `sizes` choices, padded to the widest: the score of each cell, and whether it is one. `[P * max n]` each."""
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
