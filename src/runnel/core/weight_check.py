"""Weight check of a published version: a few tokens, and the log-probabilities that the learner computes for them.

A checksum shows that values arrived, but not that they were loaded into the right tensors. The engine that loads the version
computes the same log-probabilities with its own parameters, and compares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from runnel.core.errors import RunnelError

MAX_TOKENS = 32
"""Largest number of tokens, with the prompt. It is fixed, because the first publication fixes a channel's layout."""
ONCE = 100.0
"""Factor by which the mismatch of so few tokens may exceed the bound. In half precision a single token can be off by half; a
parameter that was not loaded, or loaded into the wrong tensor, is off by more."""
PREFIX = "proof/"
SIZES = PREFIX + "sizes"
"""The parameter that says whether a version carries a weight check at all."""


@dataclass(frozen=True)
class WeightCheck:
    """Log-probabilities at temperature 1 of `tokens` after `prompt`. `[n] int64, [m] int64, [m] float32`"""

    prompt: Tensor
    tokens: Tensor
    logprobs: Tensor
    bound: float
    """Largest mean mismatch (KL) of engine and learner, `learner.max_mismatch`."""

    def check(self, found: Tensor, version: int) -> dict[str, float]:
        """Compare with the log-probabilities `found` `[m]` of an engine. Returns the mismatch as metrics, or raises.

        The KL is the mean of `ratio - log ratio - 1` with ratio = learner / engine, never negative, as on rollouts.
        """
        gap = self.logprobs.double() - found.double()
        # clamped before exp, so that a large gap gives a large number and not infinity
        kl = float((torch.exp(gap.clamp(max=30.0)) - gap - 1.0).mean())
        max_ratio = math.exp(min(float(gap.abs().max()), 80.0))
        # `not <=` and not `>`: NaN must fail too
        if not kl <= ONCE * self.bound:
            raise RunnelError(
                f"an engine that loaded version {version} disagrees with the learner about {len(self.tokens)} canary tokens: "
                f"mismatch/canary_kl = {kl:.3g} (largest ratio {max_ratio:.3g}) is above {ONCE:g} times "
                f"learner.max_mismatch = {self.bound:g}. Check that the engine's load_params takes over every parameter and "
                "that both compute the same model; raise the bound only if its arithmetic is meant to differ."
            )
        return {"mismatch/canary_kl": kl, "mismatch/canary_max_ratio": max_ratio}


def pack(weight_check: WeightCheck | None) -> dict[str, Tensor]:
    """A weight check, or none, as tensors whose shapes never change, for a parameter channel."""
    tokens, logprobs = torch.zeros(MAX_TOKENS, dtype=torch.int64), torch.zeros(MAX_TOKENS)
    sizes, bound = torch.zeros(2, dtype=torch.int64), torch.zeros((), dtype=torch.float64)
    if weight_check is not None:
        n, m = len(weight_check.prompt), len(weight_check.tokens)
        tokens[: n + m], logprobs[:m] = torch.cat((weight_check.prompt, weight_check.tokens)), weight_check.logprobs
        sizes[0], sizes[1] = n, m
        bound.fill_(weight_check.bound)
    parts = {"tokens": tokens, "logprobs": logprobs, "sizes": sizes, "bound": bound}
    return {PREFIX + name: value for name, value in parts.items()}


def split(params: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], WeightCheck | None]:
    """Split a published version into parameters and weight check: the inverse of `{**params, **pack(weight_check)}`.

    >>> weight_check = WeightCheck(torch.tensor([1, 5]), torch.tensor([6]), torch.tensor([-0.5]), 1e-5)
    >>> params, found = split({"w": torch.ones(1), **pack(weight_check)})
    >>> list(params), found.prompt.tolist(), found.tokens.tolist(), found.logprobs.tolist()
    (['w'], [1, 5], [6], [-0.5])
    >>> split({"w": torch.ones(1), **pack(None)})[1] is None
    True
    """
    if SIZES not in params:
        return params, None
    plain = {name: value for name, value in params.items() if not name.startswith(PREFIX)}
    n, m = params[SIZES].tolist()
    if not m:
        return plain, None
    tokens, logprobs = params[PREFIX + "tokens"], params[PREFIX + "logprobs"]
    return plain, WeightCheck(tokens[:n], tokens[n : n + m], logprobs[:m], float(params[PREFIX + "bound"]))
