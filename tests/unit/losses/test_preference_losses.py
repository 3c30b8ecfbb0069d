"""Losses on pairs of answers against the papers' equations in numpy, written answer by answer, and their gradients against
finite differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from runnel.losses.base import Loss
from runnel.losses.preference import dpo_loss, kto_loss, odds_ratio_loss, pair_regression_loss, rank_loss, simpo_loss

LENGTHS = ((3, 1), (2, 4), (1, 1))
"""Tokens of the chosen and of the rejected answer of each pair."""


class Made:
    """Pairs of ragged answers, as the columns that losses read."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.answers = [[-rng.uniform(0.1, 2.0, n) for n in pair] for pair in LENGTHS]
        self.reference = [[-rng.uniform(0.1, 2.0, n) for n in pair] for pair in LENGTHS]
        self.logprob, self.base = self.flat(self.answers), self.flat(self.reference)
        sides = [(p, side, n) for p, pair in enumerate(LENGTHS) for side, n in zip((1.0, -1.0), pair, strict=True)]
        self.sign = torch.tensor([side for _, side, n in sides for _ in range(n)], dtype=torch.float64)
        self.weight = torch.tensor([1.0 / n for _, _, n in sides for _ in range(n)], dtype=torch.float64)
        self.unit = torch.tensor([p for p, _, n in sides for _ in range(n)])
        self.pairs = {"unit": self.unit, "num_units": len(LENGTHS), "denominator": float(len(LENGTHS))}

    @staticmethod
    def flat(answers: list[list[np.ndarray]]) -> Tensor:
        return torch.from_numpy(np.concatenate([answer for pair in answers for answer in pair]))

    def ratio(self, pair: int) -> float:
        """The chosen answer's log-ratio to the reference less the rejected one's."""
        chosen, rejected = self.ratios(pair)
        return chosen - rejected

    def ratios(self, pair: int) -> tuple[float, float]:
        """Log-ratios of both answers to the reference."""
        chosen, rejected = (float((a - b).sum()) for a, b in zip(self.answers[pair], self.reference[pair], strict=True))
        return chosen, rejected

    def means(self, pair: int) -> tuple[float, float]:
        """Mean log-probabilities of both answers."""
        chosen, rejected = (float(a.mean()) for a in self.answers[pair])
        return chosen, rejected


def softplus(x: float) -> float:
    """`-log sigmoid(-x)`."""
    return float(np.logaddexp(0.0, x))


def value(margin: float) -> float:
    """What KTO's value function leaves of its weight."""
    return 1.0 - 1.0 / (1.0 + float(np.exp(-margin)))


def single_answers(logprob: Tensor) -> Loss:
    """KTO of all answers, the chosen ones as good ones and the rejected ones as bad ones, around z0 = 0.4."""
    unit, point = 2 * MADE.unit + (MADE.sign < 0).long(), torch.full_like(MADE.base, 0.4)
    num, weights = 2 * len(LENGTHS), {"good_weight": 1.5, "bad_weight": 0.7}
    given = {"weight": MADE.weight, "unit": unit, "num_units": num, "beta": 0.3, "denominator": float(num), **weights}
    return kto_loss(logprob, MADE.base, MADE.sign, point, **given)


def odds(mean: float) -> float:
    p = np.exp(mean)
    return float(np.log(p / (1.0 - p)))


MADE = Made()
TARGETS = (0.4, -0.2, 1.5)
CASES: dict[str, tuple[Callable[[Tensor], Loss], Callable[[int], float]]] = {
    "dpo": (
        lambda x: dpo_loss(x, MADE.base, MADE.sign, beta=0.3, **MADE.pairs),
        lambda p: softplus(-0.3 * MADE.ratio(p)),
    ),
    "conservative dpo": (
        lambda x: dpo_loss(x, MADE.base, MADE.sign, beta=0.3, smoothing=0.1, **MADE.pairs),
        lambda p: 0.9 * softplus(-0.3 * MADE.ratio(p)) + 0.1 * softplus(0.3 * MADE.ratio(p)),
    ),
    "hinge": (
        lambda x: dpo_loss(x, MADE.base, MADE.sign, beta=0.3, form="hinge", **MADE.pairs),
        lambda p: max(0.0, 1.0 - 0.3 * MADE.ratio(p)),
    ),
    "regression": (
        lambda x: pair_regression_loss(x, MADE.base, MADE.sign, targets(), scale=2.0, **MADE.pairs),
        lambda p: (2.0 * MADE.ratio(p) - TARGETS[p]) ** 2,
    ),
    "simpo": (
        lambda x: simpo_loss(x, MADE.sign, weight=MADE.weight, beta=2.5, gap=0.7, **MADE.pairs),
        lambda p: softplus(-(2.5 * (MADE.means(p)[0] - MADE.means(p)[1]) - 0.7)),
    ),
    "odds ratio": (
        lambda x: odds_ratio_loss(x, MADE.sign, weight=MADE.weight, **MADE.pairs),
        lambda p: softplus(-(odds(MADE.means(p)[0]) - odds(MADE.means(p)[1]))),
    ),
    "kto": (
        lambda x: single_answers(x),
        lambda p: 0.5 * (1.5 * value(0.3 * (MADE.ratios(p)[0] - 0.4)) + 0.7 * value(0.3 * (0.4 - MADE.ratios(p)[1]))),
    ),
    "rank": (
        lambda x: rank_loss(x, MADE.sign, weight=MADE.weight, **MADE.pairs),
        lambda p: max(0.0, MADE.means(p)[1] - MADE.means(p)[0]),
    ),
}


def targets() -> Tensor:
    """Each pair's target, spread over the tokens of its chosen answer."""
    return torch.tensor(TARGETS, dtype=torch.float64)[MADE.unit] * MADE.weight * (MADE.sign > 0)


@pytest.mark.parametrize("name", list(CASES))
def test_a_loss_is_the_papers_equation_and_its_gradient_is_that_of_finite_differences(name: str) -> None:
    loss, expected = CASES[name]
    logprob = MADE.logprob.clone().requires_grad_()
    found = loss(logprob)
    assert found.value.item() == pytest.approx(np.mean([expected(p) for p in range(len(LENGTHS))]), rel=1e-12)
    found.value.backward()
    slopes = []
    for i in range(len(logprob)):
        step = torch.zeros_like(logprob)
        step[i] = 1e-6
        with torch.no_grad():
            slopes.append(float(loss(logprob + step).value - loss(logprob - step).value) / 2e-6)
    assert np.abs(slopes).max() > 1e-3
    np.testing.assert_allclose(logprob.grad.numpy(), slopes, rtol=1e-6, atol=1e-8)


def test_accuracy_and_margin_are_those_of_the_pairs() -> None:
    found = CASES["simpo"][0](MADE.logprob).metrics
    gaps = [2.5 * np.subtract(*MADE.means(p)) for p in range(len(LENGTHS))]
    assert found["preference/margin"].item() == pytest.approx(np.mean(gaps))
    assert found["preference/accuracy"].item() == pytest.approx(np.mean([gap > 0 for gap in gaps]))


def test_an_answer_that_is_certain_has_finite_odds_and_no_slope() -> None:
    logprob = torch.tensor([0.0, -1.0], dtype=torch.float64, requires_grad=True)
    sign, one = torch.tensor([1.0, -1.0]).double(), torch.ones(2).double()
    found = odds_ratio_loss(logprob, sign, weight=one, unit=torch.zeros(2, dtype=torch.int64), num_units=1, denominator=1.0)
    found.value.backward()
    assert torch.isfinite(found.value)
    assert torch.isfinite(logprob.grad).all()
