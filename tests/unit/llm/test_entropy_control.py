"""Entropy held at a target: the path of the coefficient, the gradient with it, and what a checkpoint keeps of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from made_tokens import VOCAB, demos, group

from runnel.core.errors import ConfigError
from runnel.llm.algorithms.base import Adapts
from runnel.llm.algorithms.cispo import CISPO, CISPOConfig
from runnel.llm.algorithms.covariance import Covariance, CovarianceConfig
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.algorithms.sft import SupervisedFineTuning
from runnel.llm.learning.in_parts import TokenLearnerInParts
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.model.causal_lm import ModelConfig, build_model

SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=64)
CHANNELS = {"exact": 1.0}
HELD = {"entropy_target": 2.97, "entropy_step": 0.02, "max_entropy_coef": 0.05}
"""Of a new model of 20 tokens: its entropy is below log 20 = 2.996, and falls."""


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def learner_of(config, kind=TokenLearner, algorithm=GRPO, **changes):
    own = dataclasses.replace(TokenLearnerConfig(lr=3e-2, max_mismatch=1e9, precision="float64", warmup_updates=1), **changes)
    algorithms = {"rollouts": algorithm(config, channels=CHANNELS), "mixed": SupervisedFineTuning(coef=0.5, name="imitation")}
    return kind(own, build_model(SIZES, VOCAB, seed=0), algorithms=algorithms)


def batch(seed):
    """Groups of different sizes; one has no signal."""
    rng = np.random.default_rng(seed)
    return {"rollouts": [group(rng, [1.0, 0.0, 0.3]), group(rng, [0.5, 0.5]), group(rng, [0.0, 1.0])]}


def step(learner, seed):
    return learner.update(learner.prepare(batch(seed), progress=0.0)).metrics


def entropies(learner, segments):
    """The entropies of each row's trained tokens, from the model's own logits."""
    found = []
    for segment in segments:
        a = segment.arrays
        for start, length in zip(a["row_start"].tolist(), a["row_length"].tolist(), strict=True):
            with torch.no_grad():
                logits = learner.policy.model(a["tokens"][None, start : start + length]).logits[0].double().numpy()
            p = np.exp(logits - logits.max(-1, keepdims=True))
            p /= p.sum(-1, keepdims=True)
            each = -(p * np.log(p)).sum(-1)
            found.append([each[t - 1] for t in range(1, length) if a["loss_mask"][start + t]])
    return found


@pytest.mark.parametrize(("start", "limit"), [(0.0, 5e-3), (2e-3, 2.5e-3)])
def test_the_coefficient_follows_the_equation(start, limit):
    config = GRPOConfig(entropy_coef=start, entropy_target=1.0, entropy_step=1e-3, max_entropy_coef=limit)
    algorithm, c = GRPO(config, channels=CHANNELS), start
    assert isinstance(algorithm, Adapts)
    assert algorithm.components["entropy"].coef == 0.0, "nothing is known of entropy yet"
    rng = np.random.default_rng(0)
    for e in [0.5] * 8 + [1.5] * 10 + rng.uniform(0.0, 2.0, size=40).tolist():
        algorithm.adapt({"entropy/policy": e, "entropy": 7.0})
        c = min(max(c + (1e-3 if e < 1.0 else -1e-3), 0.0), limit)
        entropy = algorithm.components["entropy"]
        assert entropy.coef == pytest.approx(c if e < 1.0 else 0.0, abs=1e-12)
        assert entropy.by_advantage == (entropy.coef == 0.0), "rows without an advantage have a gradient by their entropy alone"
    algorithm.adapt({"loss/value": 1.0})  # a critic's warm-up measures no entropy
    assert algorithm.components["entropy"] == entropy


def test_the_entropy_is_that_of_rollouts():
    """Demonstrations in the same batch are not what the policy explores."""
    learner = learner_of(GRPOConfig(**HELD))
    mixed = batch(0) | {"mixed": [demos(np.random.default_rng(9), 3)]}
    rows = entropies(learner, mixed["rollouts"])
    metrics = learner.update(learner.prepare(mixed, progress=0.0)).metrics
    assert metrics["entropy/policy"] == pytest.approx(np.mean(np.concatenate(rows)), rel=1e-6)
    assert metrics["entropy"] != pytest.approx(metrics["entropy/policy"], rel=1e-6)
    assert metrics["loss/entropy"] == pytest.approx(-np.mean([np.mean(r) for r in rows]), rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "algorithm", "config"),
    [
        (TokenLearner, GRPO, GRPOConfig()),
        (TokenLearner, CISPO, CISPOConfig()),
        (TokenLearner, Covariance, CovarianceConfig(share=0.1, low=-1.0)),
        (TokenLearnerInParts, GRPO, GRPOConfig()),
    ],
    ids=["grpo", "cispo", "clip_cov", "grpo in parts"],
)
def test_an_update_is_that_of_the_coefficient_alone(kind, algorithm, config):
    """With a target, each update is the update of a learner whose weight is fixed at the one that is shown."""
    held = learner_of(dataclasses.replace(config, **HELD), kind, algorithm)
    seen = []
    for seed in range(6):
        coef = held.algorithms["rollouts"]._bonus
        fixed = learner_of(dataclasses.replace(config, entropy_coef=coef), kind, algorithm)
        fixed.load_state_dict(held.state_dict())
        metrics, plain = _stepped(held, kind, seed), _stepped(fixed, kind, seed)
        assert metrics["entropy/coef"] == coef
        assert metrics["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-12)
        for name, value in held.params().items():
            torch.testing.assert_close(value, fixed.params()[name], rtol=0, atol=1e-12)
        seen.append(coef)
    assert len(set(seen)) > 2, "the weight has moved"


def _stepped(learner, kind, seed):
    if kind is TokenLearner:
        return step(learner, seed)
    for segment in batch(seed)["rollouts"]:
        learner.add_part({"rollouts": [segment]}, progress=0.0)
    return learner.finish_parts().metrics


def test_a_resumed_learner_goes_on_bit_for_bit():
    one = learner_of(GRPOConfig(**HELD))
    for seed in range(3):
        step(one, seed)
    state = one.state_dict()
    assert state["algorithms"]["rollouts"]["moved"] > 0
    other = learner_of(GRPOConfig(**HELD))
    other.load_state_dict(state)
    for seed in range(3, 6):
        a, b = step(one, seed), step(other, seed)
        assert a == b
        assert a["entropy/coef"] > 0
    assert all(torch.equal(x, other.params()[name]) for name, x in one.params().items())


def test_a_checkpoint_from_before_starts_at_the_coefficient_of_the_config():
    one = learner_of(GRPOConfig(**HELD))
    step(one, 0)
    state = one.state_dict()
    del state["algorithms"]
    other = learner_of(GRPOConfig(**HELD))
    other.load_state_dict(state)
    assert step(other, 1)["entropy/coef"] == 0.0


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match=r"max_entropy_coef = 0\.005: .*entropy_coef = 0\.1"):
        GRPO(GRPOConfig(entropy_coef=0.1, entropy_target=1.0), channels=CHANNELS)
    with pytest.raises(ConfigError, match="entropy_target"):
        GRPO(GRPOConfig(entropy_target=0.0), channels=CHANNELS)
    assert "entropy_step" in GRPOConfig().unused()
    assert "entropy_step" not in GRPOConfig(entropy_target=1.0).unused()
