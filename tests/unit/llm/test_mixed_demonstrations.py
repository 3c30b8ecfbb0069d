"""Demonstrations in the batches of rollouts (`--mix demos=0.2`): their share, and what they weigh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from made_tokens import VOCAB, demos, group

import runnel as rl
from runnel.core.records import Segment
from runnel.graphs.mix import rows_of, share_of
from runnel.llm.algorithms.base import Algorithm
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.algorithms.sft import SupervisedFineTuning
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.model.causal_lm import ModelConfig, build_model
from runnel.run import registry

SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=2, inner=32)
TINY: dict[str, Any] = {"lm": {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "inner": 32}, "track": ()}


def step(segments: Mapping[str, Sequence[Segment]], algorithms: dict[str, Algorithm]) -> tuple[torch.Tensor, dict[str, float]]:
    """The gradient that an update steps on, in float64, and its metrics."""
    config = TokenLearnerConfig(precision="float64", max_grad_norm=1e9, warmup_updates=1, max_mismatch=1e9)
    learner = TokenLearner(config, build_model(SIZES, VOCAB, seed=0).double(), algorithms=algorithms)
    metrics = learner.update(learner.prepare(segments, progress=0.0)).metrics
    return torch.cat([p.grad.flatten() for p in learner.policy.model.parameters()]), metrics


def grpo() -> GRPO:
    return GRPO(GRPOConfig(), channels={"exact": 1.0})


def imitation(weight: float) -> SupervisedFineTuning:
    return SupervisedFineTuning(coef=weight, name="imitation")


def test_the_gradient_is_that_of_the_rollouts_and_the_weighted_one_of_the_demonstrations() -> None:
    rng = np.random.default_rng(0)
    rollouts, shown, weight = [group(rng, [1.0, 0.0]), group(rng, [0.0, 1.0])], [demos(rng, 1)], 0.25
    whole, metrics = step({"rollouts": rollouts, "mixed_demos": shown}, {"rollouts": grpo(), "mixed_demos": imitation(weight)})
    alone, of_rollouts = step({"rollouts": rollouts}, {"rollouts": grpo()})
    other, of_demos = step({"mixed_demos": shown}, {"mixed_demos": imitation(1.0)})
    torch.testing.assert_close(whole, alone + weight * other, rtol=1e-9, atol=1e-12)
    assert other.norm() > 0
    assert metrics["loss/imitation"] == pytest.approx(of_demos["loss/imitation"])
    assert metrics["loss/policy"] == pytest.approx(of_rollouts["loss/policy"])
    for name in ("reward/mean", "completion_length", "staleness/mean"):
        assert metrics[name] == of_rollouts[name], "what is said of rollouts is of rollouts alone"


def test_so_weighted_each_row_counts_as_much_as_any_other() -> None:
    """The mean over eight rows and 2 / 8 of the mean over two others is (times 8 / 10) the mean over all ten, in gradients. All
    answers are equally long, so that rows and tokens are the same."""
    rng = np.random.default_rng(1)
    many, few = equal_answers(demos(rng, 8)), equal_answers(demos(rng, 2))
    of_many, of_few, of_all = (
        step({"demos": rows}, {"demos": SupervisedFineTuning(coef=weight)})[0]
        for rows, weight in (([many], 1.0), ([few], 2 / 8), ([many, few], 1.0))
    )
    torch.testing.assert_close(of_many + of_few, of_all * 10 / 8, rtol=1e-5, atol=1e-7)


def equal_answers(segment: Segment) -> Segment:
    """The same rows, of each of which two tokens are answers."""
    arrays = segment.arrays
    arrays["loss_mask"].zero_()
    for start, length in zip(arrays["row_start"].tolist(), arrays["row_length"].tolist(), strict=True):
        assert length > 2
        arrays["loss_mask"][start + length - 2 : start + length] = True
    return segment


def build(recipe: str = "grpo", **settings: Any) -> rl.Experiment:
    return registry.build(recipe, registry.configure(registry.load_recipe(recipe), {**TINY, **settings}))


def test_batches_after_the_warm_up_have_the_share() -> None:
    made = build(mix=("demos=0.2",), num_prompts=4, group_size=8, warmup_updates=3, demo_rows=10)
    assert [dict(phase.segments) for phase in made.leader.phases] == [{"demos": 1}, {"rollouts": 4, "mixed_demos": 1}]
    assert made.stream("demos").num_rows == 10
    rows = made.stream("mixed_demos").num_rows
    assert rows / (rows + 4 * 8) == 0.2
    assert made.staleness["mixed_demos"].version_for(0) == 3, "none is made during the warm-up"


def test_without_a_mix_nothing_changes() -> None:
    made = build(warmup_updates=3)
    assert {stream.name for stream in made.streams} == {"demos", "rollouts"}
    assert [actor.name for actor in made.actors] == ["demos-0", "actor-0"]


@pytest.mark.parametrize(("share", "others"), [(0.2, 64), (0.5, 10), (0.9, 8), (0.001, 4)])
def test_rows_are_the_nearest_whole_number_and_at_least_one(share: float, others: int) -> None:
    rows = rows_of(share, others)
    assert rows >= 1
    assert rows == 1 or abs(rows - share * (rows + others)) <= 1.0


REFUSED = {
    "no name": (("0.2",), "give one NAME=SHARE; the name is demos"),
    "another stream": (("offline=0.2",), "the name is demos"),
    "two": (("demos=0.2", "demos=0.3"), "give one NAME=SHARE"),
    "all": (("demos=1",), "between 0 and 1"),
    "none": (("demos=0",), "between 0 and 1"),
    "nan": (("demos=nan",), "between 0 and 1"),
    "a word": (("demos=many",), "'many' is no share of a batch"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_share_is_refused(case: str) -> None:
    mix, match = REFUSED[case]
    with pytest.raises(rl.ConfigError, match=rf"^mix = .*{match}"):
        share_of(mix, "demos")
    with pytest.raises(rl.ConfigError, match=rf"^mix = .*{match}"):
        build(mix=mix)


def test_what_cannot_be_mixed_is_refused() -> None:
    with pytest.raises(rl.ConfigError, match=r"^mix = .*this recipe's learner takes rollouts alone"):
        build("make_pairs", mix=("demos=0.2",))
    with pytest.raises(rl.ConfigError, match=r"^learner.in_parts = True: .*divided by different numbers"):
        build(mix=("demos=0.2",), learner={"in_parts": True})


@pytest.mark.parametrize("recipe", ["dapo", "dr_grpo", "rloo", "token_ppo", "online_dpo", "aipo"])
def test_every_algorithm_on_rollouts_takes_demonstrations(recipe: str, tmp_path: Any) -> None:
    small = {"num_prompts": 2, "group_size": 3, "total_updates": 2, "eval": {"episodes": 0}, "checkpoint": {"every": 0}}
    run = rl.train(recipe, mix=("demos=0.25",), out=str(tmp_path), **small, **TINY)
    assert [row["metrics"]["loss/imitation"] > 0 for row in run.rows()] == [True, True]
    assert run.rows("end")[-1]["streams"]["mixed_demos"]["consumed"] == 2 * 2
