"""A batch taken segment by segment is the step of the whole batch; what cannot be taken so is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from made_tokens import VOCAB, demos, group

from runnel.core.contracts.learning import SingleProcess, TakesParts
from runnel.core.errors import ConfigError
from runnel.llm.algorithms.a_lol import ALoL, ALoLConfig
from runnel.llm.algorithms.aipo import AIPO, AIPOConfig
from runnel.llm.algorithms.cispo import CISPO, CISPOConfig
from runnel.llm.algorithms.covariance import Covariance, CovarianceConfig
from runnel.llm.algorithms.dapo import DAPO, DAPOConfig
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.algorithms.gspo import GSPO, GSPOConfig
from runnel.llm.algorithms.opmd import OPMD, OPMDConfig
from runnel.llm.algorithms.oreal import OREAL, OREALConfig
from runnel.llm.algorithms.p3o import P3O, P3OConfig
from runnel.llm.algorithms.pacs import PACS, PACSConfig
from runnel.llm.algorithms.ppo import TokenPPO, TokenPPOConfig
from runnel.llm.algorithms.raft import RAFT, RAFTConfig
from runnel.llm.algorithms.reinforce import RLOO, ReinforceConfig
from runnel.llm.algorithms.rl_plus import RLPlus, RLPlusConfig
from runnel.llm.algorithms.sft import SupervisedFineTuning
from runnel.llm.learning.in_parts import TokenLearnerInParts
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.learning.sharded import learner_class
from runnel.llm.model.causal_lm import ModelConfig, build_model

SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=64)
CHANNELS = {"exact": 1.0, "style": 0.5}
ALGORITHMS = {
    "grpo": lambda: GRPO(GRPOConfig(), channels=CHANNELS),
    "grpo with a reference and an entropy bonus": lambda: GRPO(GRPOConfig(kl_coef=0.3, entropy_coef=0.1), channels=CHANNELS),
    "dr_grpo": lambda: GRPO(GRPOConfig(normalise="none", aggregation="constant"), channels=CHANNELS, max_tokens=6),
    "dapo": lambda: DAPO(DAPOConfig(overlong_buffer=2), channels=CHANNELS, max_tokens=6),
    "gspo": lambda: GSPO(GSPOConfig(), channels=CHANNELS),
    "rloo": lambda: RLOO(ReinforceConfig(), channels=CHANNELS),
    "aipo": lambda: AIPO(AIPOConfig(), channels=CHANNELS),
    "cispo": lambda: CISPO(CISPOConfig(), channels=CHANNELS),
    "opmd": lambda: OPMD(OPMDConfig(length_coef=0.3), channels=CHANNELS),
    "p3o": lambda: P3O(P3OConfig(), channels=CHANNELS),
    "pacs": lambda: PACS(PACSConfig(), channels=CHANNELS),
    "a_lol": lambda: ALoL(ALoLConfig(), channels=CHANNELS),
    "rl_plus": lambda: RLPlus(RLPlusConfig(), channels=CHANNELS, vocab_size=VOCAB),
    "raft": lambda: RAFT(RAFTConfig(kl_coef=0.3), channels=CHANNELS),
}
OF_THE_BATCH = {
    "ppo": (lambda: TokenPPO(TokenPPOConfig(), channels=CHANNELS), "the advantage of a token"),
    "grpo": (lambda: GRPO(GRPOConfig(normalise="batch"), channels=CHANNELS), "the advantage of a token"),
    "kl_cov": (lambda: Covariance(CovarianceConfig(how="kl"), channels=CHANNELS), "the held of a token"),
    "oreal": (lambda: OREAL(OREALConfig(kl_coef=0.0), channels=CHANNELS), "components policy, wrong are divided by different"),
}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def made(kind, rollouts, **changes):
    config = TokenLearnerConfig(max_mismatch=1e9, precision="float64", warmup_updates=0, **changes)
    algorithms = {"rollouts": rollouts, "demos": SupervisedFineTuning()}
    return kind(config, build_model(SIZES, VOCAB, seed=0), algorithms=algorithms)


def batch(k, demo_first=False):
    """Groups of very different lengths; one has no signal."""
    rng = np.random.default_rng(k)
    rewards = [[1.0, 0.0, 0.5, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0]]
    return {"rollouts": [group(rng, r, index=i, demo_first=demo_first) for i, r in enumerate(rewards)]}


def in_parts(learner, segments, progress=0.0):
    for name, some in segments.items():
        for segment in some:
            learner.add_part({name: [segment]}, progress=progress)
    return learner.finish_parts()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_step_and_its_metrics_are_those_of_the_whole_batch(name):
    whole, parts = made(TokenLearner, ALGORITHMS[name]()), made(TokenLearnerInParts, ALGORITHMS[name](), in_parts=True)
    assert isinstance(parts, TakesParts)
    for k in range(3):
        some = batch(k, demo_first=name == "rl_plus")
        wanted, found = whole.update(whole.prepare(some, progress=k / 3)), in_parts(parts, some, k / 3)
        assert found.metrics.keys() == wanted.metrics.keys()
        for metric, value in wanted.metrics.items():
            assert found.metrics[metric] == pytest.approx(value, rel=1e-4, abs=1e-6), metric
    start = made(TokenLearner, ALGORITHMS[name]()).params()
    moved, apart = (
        sum(float((a - b).square().sum()) for a, b in zip(whole.params().values(), other.values(), strict=True)) ** 0.5
        for other in (start, parts.params())
    )
    assert apart < 1e-4 * moved, "advantages and sums are in float32: no more than their rounding may tell the two apart"
    assert parts.version == whole.version == 3


def test_a_warm_up_and_what_follows_it():
    whole, parts = made(TokenLearner, ALGORITHMS["grpo"]()), made(TokenLearnerInParts, ALGORITHMS["grpo"](), in_parts=True)
    rng = np.random.default_rng(5)
    for segments in ({"demos": [demos(rng, 3)]}, batch(1), {**batch(2), "demos": [demos(rng, 2)]}):
        if len(segments) == 2:  # a phase of both readers: their losses are divided by different numbers
            for name, some in segments.items():
                parts.add_part({name: some}, progress=0.5)
            with pytest.raises(ConfigError, match=r"learner.in_parts = True: components policy, sft are divided by different"):
                parts.finish_parts()
            return
        wanted, found = whole.update(whole.prepare(segments, progress=0.0)), in_parts(parts, segments)
        assert found.metrics["lr"] == wanted.metrics["lr"]
    raise AssertionError("the last batch must be refused")


@pytest.mark.parametrize("name", OF_THE_BATCH)
def test_credit_that_depends_on_the_batch_is_refused(name):
    algorithm, why = OF_THE_BATCH[name]
    parts = made(TokenLearnerInParts, algorithm(), in_parts=True)
    for segment in batch(0)["rollouts"]:
        parts.add_part({"rollouts": [segment]}, progress=0.0)
    with pytest.raises(ConfigError, match=f"learner.in_parts = True.*{why}"):
        parts.finish_parts()


def test_a_batch_that_was_begun_is_forgotten_with_a_restore():
    parts, fresh = (made(TokenLearnerInParts, ALGORITHMS["grpo"](), in_parts=True) for _ in range(2))
    in_parts(parts, batch(0))
    state = parts.state_dict()
    parts.add_part({"rollouts": batch(1)["rollouts"][:2]}, progress=0.0)
    parts.load_state_dict(state)
    fresh.load_state_dict(state)
    assert in_parts(parts, batch(2)).metrics == in_parts(fresh, batch(2)).metrics
    assert all(torch.equal(a, b) for a, b in zip(parts.params().values(), fresh.params().values(), strict=True))


def test_settings_that_need_the_whole_batch_are_refused():
    assert learner_class(TokenLearnerConfig(in_parts=True), SingleProcess(), "cpu") is TokenLearnerInParts
    two = SingleProcess()
    two.world_size = 2
    with pytest.raises(ConfigError, match=r"learner.in_parts = True: ranks take their parts of a whole batch"):
        learner_class(TokenLearnerConfig(in_parts=True), two, "cpu")
    for field in ("num_epochs", "num_minibatches"):
        with pytest.raises(ConfigError, match="several passes or steps need the whole batch"):
            dataclasses.replace(TokenLearnerConfig(in_parts=True), **{field: 2})
