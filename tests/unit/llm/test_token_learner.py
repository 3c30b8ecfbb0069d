from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tokens import VOCAB, demos, group, pairs

import runnel.llm.learning.learner as learner_module
from runnel.core.contracts.learning import Learner, SingleProcess
from runnel.core.errors import ConfigError, DataError, NonFiniteError, RunnelError
from runnel.core.worker import num_progressed
from runnel.llm.algorithms.base import POLICY, SFT
from runnel.llm.algorithms.dpo import DPO, DPOConfig, OnlineDPO
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.algorithms.sft import SupervisedFineTuning
from runnel.llm.learning.batches import MicroBatch, join_rows
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.model.causal_lm import ModelConfig, build_model, model_params
from runnel.llm.model.token_model import TokenModel

SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=64)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def learner_of(seed=0, double=False, kl_coef=0.0, clip_low=0.2, clip_high=0.2, sft_coef=1.0, **changes):
    model = build_model(SIZES, VOCAB, seed=seed)
    changes |= {"precision": "float64"} if double else {}
    config = dataclasses.replace(TokenLearnerConfig(max_mismatch=1e9), **changes)
    grpo = GRPOConfig(kl_coef=kl_coef, clip_low=clip_low, clip_high=clip_high)
    rollouts = GRPO(grpo, channels={"exact": 1.0, "style": 0.5})
    algorithms = {"rollouts": rollouts, "demos": SupervisedFineTuning(coef=sft_coef)}
    return TokenLearner(config, model, algorithms=algorithms)


def gradient_of(segments, **changes):
    """The gradient that an update steps on, in float64."""
    learner = learner_of(double=True, max_grad_norm=1e9, **changes)
    learner.update(learner.prepare(segments, progress=0.0))
    return torch.cat([p.grad.flatten() for p in learner.policy.model.parameters()])


def test_annotations_by_hand():
    rng = np.random.default_rng(0)
    segments = [group(rng, [1.0, 0.0]), group(rng, [0.5, 0.5])]
    batch = GRPO(GRPOConfig(normalise="none", aggregation="constant"), channels={"exact": 2.0}, max_tokens=6).annotate(
        join_rows(segments), SingleProcess()
    )
    lengths = torch.cat([s.arrays["row_length"] for s in segments])
    assert batch["row_length"].tolist() == lengths.tolist()
    mask = torch.cat([s.arrays["loss_mask"] for s in segments])
    assert torch.equal(batch["component"], mask.to(torch.int8) * POLICY)
    expected = torch.tensor([1.0, -1.0, 0.0, 0.0]).repeat_interleave(lengths) * mask
    assert torch.equal(batch["advantage"], expected)
    assert batch["denominator/policy"].tolist() == [6.0] * 4
    assert batch["stats/reward/mean"].item() == 1.0
    assert batch["stats/reward/exact"].item() == 0.5
    assert batch["stats/groups_zero_signal"].item() == 0.5
    sft = SupervisedFineTuning().annotate(join_rows([demos(rng, 3)]), SingleProcess())
    assert torch.equal(sft["component"] == SFT, sft["weight"] == 1.0)


def test_rewards_may_be_by_token_or_not_apply():
    segment = group(np.random.default_rng(0), [1.0, 0.0], token_rewards=("style",))
    segment.arrays["rewards/style"][:] = segment.arrays["loss_mask"].float()
    segment.arrays["rewards/exact"][1] = float("nan")
    rows = join_rows([segment])
    lengths = [int(x.sum()) for x in rows["loss_mask"].split(rows["row_length"].tolist())]
    batch = GRPO(GRPOConfig(), channels={"exact": 2.0, "style": 1.0}).annotate(rows, SingleProcess())
    assert batch["stats/reward/mean"].item() == (2.0 + lengths[0] + lengths[1]) / 2
    assert batch["stats/reward/exact"].item() == 1.0
    assert batch["stats/reward/style"].item() == sum(lengths) / 2


def test_missing_channel_and_reader_are_named():
    rng = np.random.default_rng(0)
    with pytest.raises(DataError, match="'speed'"):
        GRPO(GRPOConfig(), channels={"speed": 1.0}).annotate(join_rows([group(rng, [1.0, 0.0])]), SingleProcess())
    with pytest.raises(DataError, match="'trainer'"):
        learner_of().prepare({"trainer": []}, progress=0.0)
    with pytest.raises(ConfigError, match=r"learner\.temperature"):
        TokenLearnerConfig(temperature=0.0)
    with pytest.raises(ConfigError, match=r"learner\.lr"):
        TokenLearnerConfig(lr="quickly")
    both = {name: GRPO(GRPOConfig(), channels={"exact": 1.0}) for name in ("a", "b")}
    with pytest.raises(ConfigError, match="readers 'a' and 'b' both have a loss component 'policy'; names must be unique"):
        TokenLearner(TokenLearnerConfig(), build_model(SIZES, VOCAB, seed=0), algorithms=both)


def test_gradient_equals_a_plain_row_by_row_loss():
    rng = np.random.default_rng(3)
    segments = {"rollouts": [group(rng, [1.0, 0.0, 0.3]), group(rng, [0.0, 0.0, 1.0])], "demos": [demos(rng, 2)]}
    found = gradient_of(segments, temperature=0.7, clip_low=0.1, clip_high=0.3, sft_coef=0.5)
    model = build_model(SIZES, VOCAB, seed=0).double()
    policy, sft, num_policy, num_sft = [], [], 0, 0
    for reader, parts in segments.items():
        for s in parts:
            a = s.arrays
            if reader == "rollouts":
                r = a["rewards/exact"].double()
                advantage = (r - r.mean()) / r.std()
            for row in range(s.num_rows):
                at = slice(int(a["row_start"][row]), int(a["row_start"][row] + a["row_length"][row]))
                tokens, mask = a["tokens"][at], a["loss_mask"][at]
                logp = torch.log_softmax(model(tokens[None]).logits[0] / (0.7 if reader == "rollouts" else 1.0), dim=-1)
                logp = logp[:-1].gather(1, tokens[1:, None])[:, 0][mask[1:]]
                if reader == "demos":
                    sft.append(-logp.sum())
                    num_sft += len(logp)
                    continue
                ratio = torch.exp(logp - a["logprob"][at][mask].double())
                policy.append(-torch.minimum(ratio * advantage[row], ratio.clamp(0.9, 1.3) * advantage[row]).mean())
                num_policy += 1
    (sum(policy) / num_policy + 0.5 * sum(sft) / num_sft).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)  # the head's softmax is in float32


def test_every_micro_batch_is_progress():
    rng = np.random.default_rng(0)
    segments = {"rollouts": [group(rng, [0.0, 1.0, 2.0, 0.0])], "demos": [demos(rng, 2)]}
    counts = []
    for budget in (1_000_000, 1):
        before = num_progressed()
        gradient_of(segments, micro_batch_tokens=budget)
        counts.append(num_progressed() - before)
    assert counts[1] >= counts[0] + 5, "a row each"


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 200), st.sampled_from([0.0, 0.1]))
def test_any_split_into_micro_batches_gives_the_same_gradient(seed, budget, kl_coef):
    rng = np.random.default_rng(seed)
    groups = [group(rng, rng.integers(0, 3, size=4).astype(float)) for _ in range(3)]
    segments = {"rollouts": groups, "demos": [demos(rng, 3)]}
    whole = gradient_of(segments, kl_coef=kl_coef, micro_batch_tokens=1_000_000)
    split = gradient_of(segments, kl_coef=kl_coef, micro_batch_tokens=budget)
    torch.testing.assert_close(split, whole, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_prompts_that_are_computed_once_change_no_gradient(precision, monkeypatch):
    rng = np.random.default_rng(5)
    segments = {"rollouts": [group(rng, rng.normal(size=11)), group(rng, [1.0, 0.0])], "demos": [demos(rng, 2)]}

    def gradient():
        learner = learner_of(precision=precision, max_grad_norm=1e9)
        learner.update(learner.prepare(segments, progress=0.0))
        return torch.cat([p.grad.flatten() for p in learner.policy.model.parameters()])

    once = gradient()
    monkeypatch.setattr(TokenModel, "folds", False)
    close = {"rtol": 1e-4, "atol": 1e-6} if precision == "float32" else {"rtol": 1e-5, "atol": 1e-7}
    torch.testing.assert_close(once, gradient(), **close)


def test_supervised_updates_lower_the_loss_and_use_their_own_rate():
    rng = np.random.default_rng(0)
    learner = learner_of(warmup_updates=1, sft_lr=1e-2, lr=1e-5)
    assert isinstance(learner, Learner)
    data = demos(rng, 8)
    losses = []
    for _ in range(30):
        update = learner.update(learner.prepare({"demos": [data]}, progress=0.0))
        losses.append(update.metrics["loss/sft"])
    assert losses[0] == pytest.approx(math.log(VOCAB), rel=0.1)
    assert losses[-1] < 0.5 * losses[0]
    assert update.metrics["lr"] == pytest.approx(1e-2)
    update = learner.update(learner.prepare({"rollouts": [group(rng, [0.0, 1.0])]}, progress=0.0))
    assert update.metrics["lr"] == pytest.approx(1e-5)
    assert learner.version == 31


def test_good_completions_become_likelier():
    rng = np.random.default_rng(0)
    learner = learner_of(warmup_updates=1, lr=1e-2)
    segment = group(rng, [1.0, 0.0])

    def logprobs():
        batch = learner.prepare({"rollouts": [segment]}, progress=0.0)
        part = MicroBatch.of(batch, torch.tensor([0, 1]), device="cpu")
        with torch.no_grad():
            logprob, _ = learner.policy.logprobs(part, temperature=1.0)
        return [float(logprob[part.row == row].mean()) for row in (0, 1)]

    before = logprobs()
    segment.arrays["logprob"].fill_(before[0])
    learner.update(learner.prepare({"rollouts": [segment]}, progress=0.0))
    after = logprobs()
    assert after[0] - before[0] > after[1] - before[1]


def test_groups_without_signal_leave_the_weights_alone():
    learner = learner_of()
    before = {k: v.clone() for k, v in model_params(learner.policy.model).items()}
    update = learner.update(learner.prepare({"rollouts": [group(np.random.default_rng(0), [1.0, 1.0])]}, progress=0.0))
    assert all(torch.equal(v, before[k]) for k, v in learner.params().items())
    assert update.metrics["groups_zero_signal"] == 1.0
    assert "grad_norm" not in update.metrics
    assert learner.version == 1


def test_what_was_not_computed_is_left_out():
    """A reward channel that judged no row has no mean: 0 would say that it found all of them wrong."""
    learner, segment = learner_of(), group(np.random.default_rng(0), [1.0, 0.0])
    segment.arrays["rewards/style"] = torch.full_like(segment.arrays["rewards/exact"], float("nan"))
    metrics = learner.update(learner.prepare({"rollouts": [segment]}, progress=0.0)).metrics
    assert metrics["reward/exact"] == 0.5
    assert "reward/style" not in metrics
    segment.arrays["rewards/exact"].fill_(1.0)
    metrics = learner.update(learner.prepare({"rollouts": [segment]}, progress=0.0)).metrics
    assert metrics["groups_zero_signal"] == 1.0
    assert metrics["entropy"] > 0.0, "rows without signal have an entropy too"
    assert {"reward/style", "grad_norm", "kl"}.isdisjoint(metrics)


def plain_statistics(segments):
    """Entropy, k3 of policy and behaviour, and effective sample size over every completion token, by transformers."""
    model, entropy, gap = build_model(SIZES, VOCAB, seed=0), [], []
    for a in (s.arrays for s in segments):
        for start, length in zip(a["row_start"].tolist(), a["row_length"].tolist(), strict=True):
            at = slice(start, start + length)
            tokens, mask = a["tokens"][at], a["loss_mask"][at]
            with torch.no_grad():
                logp = torch.log_softmax(model(tokens[None]).logits[0].double(), dim=-1)[:-1][mask[1:]]
            entropy.append(-(logp.exp() * logp).sum(-1))
            gap.append(logp.gather(1, tokens[mask][:, None])[:, 0] - a["logprob"][at][mask])
    gaps = torch.cat(gap)
    ratio = gaps.exp()
    ess = ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())
    found = {"entropy": torch.cat(entropy).mean(), "approx_kl": (ratio - gaps - 1).mean(), "ess": ess}
    return {k: float(v) for k, v in found.items()} | {"mismatch/mean_abs": float(gaps.abs().mean())}


@pytest.mark.parametrize("rewards", [[[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]]])
@pytest.mark.parametrize("budget", [1_000_000, 12])
def test_statistics_are_over_every_completion_whether_it_has_signal_or_not(rewards, budget):
    rng = np.random.default_rng(0)
    segments = [group(rng, some) for some in rewards]
    for segment, shift in zip(segments, (0.0, 0.4, -0.7), strict=False):
        segment.arrays["logprob"] += shift * segment.arrays["loss_mask"]
    learner = learner_of(micro_batch_tokens=budget)
    metrics = learner.update(learner.prepare({"rollouts": segments}, progress=0.0)).metrics
    expected = plain_statistics(segments)
    assert {k: metrics[k] for k in expected} == pytest.approx(expected, rel=1e-4)


def test_a_sample_stands_for_many_completions_without_signal(monkeypatch):
    """Beyond a bound, statistics are estimates: those of completions without signal are weighed by how many they stand for."""
    monkeypatch.setattr(learner_module, "READ_LEAST", 40)
    rng = np.random.default_rng(0)
    segments = [group(rng, [1.0, 0.0]), *(group(rng, [1.0] * 4) for _ in range(10))]
    learner = learner_of(lr=0.0)
    batch = learner.prepare({"rollouts": segments}, progress=0.0)
    read, parts = [], learner._parts

    def spy(batch, rows):
        read.append(int(batch["row_length"][rows].sum()))
        return parts(batch, rows)

    learner._parts = spy
    found = []
    for _ in range(60):
        learner.version += 1  # another sample
        found.append(learner.update(batch).metrics)
    most = max(40, int(batch["row_length"].sum()) // 8)
    assert all(n < most + 12 for n in read)
    expected = plain_statistics(segments)
    for name in ("entropy", "approx_kl"):
        values = [m[name] for m in found]
        assert len(set(values)) > 10
        assert np.mean(values) == pytest.approx(expected[name], rel=0.1), name


def test_the_reference_is_the_model_at_its_first_rollouts():
    rng = np.random.default_rng(0)
    learner = learner_of(kl_coef=0.1, warmup_updates=1, lr=1e-3)
    learner.update(learner.prepare({"demos": [demos(rng, 2)]}, progress=0.0))
    assert learner.state_dict()["reference"] is None
    warm = {k: v.clone() for k, v in learner.params().items()}
    first = learner.update(learner.prepare({"rollouts": [group(rng, [1.0, 0.0])]}, progress=0.0))
    assert first.metrics["kl"] == pytest.approx(0.0, abs=1e-7)
    second = learner.update(learner.prepare({"rollouts": [group(rng, [1.0, 0.0])]}, progress=0.0))
    assert second.metrics["kl"] > 0
    reference = learner.state_dict()["reference"]
    assert all(torch.equal(reference["model"][k], warm[k]) for k in warm)


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_state_dict_goes_on_bit_for_bit(kl_coef):
    rng = np.random.default_rng(0)
    batches = [{"demos": [demos(rng, 2)]}, *({"rollouts": [group(rng, [1.0, 0.0, 0.5])]} for _ in range(3))]
    one = learner_of(kl_coef=kl_coef)
    for segments in batches[:2]:
        one.update(one.prepare(segments, progress=0.0))
    other = learner_of(seed=9, kl_coef=kl_coef)
    other.load_state_dict(one.state_dict())
    saved = {k: v.clone() for k, v in one.params().items()}
    for segments in batches[2:]:
        a, b = (x.update(x.prepare(segments, progress=0.5)).metrics for x in (one, other))
        assert a == b
    assert all(torch.equal(v, other.params()[k]) for k, v in one.params().items())
    assert all(not torch.equal(v, saved[k]) for k, v in one.params().items()), "they went on"


def test_published_parameters_are_live_and_tied_once():
    learner = learner_of()
    params = learner.params()
    assert "lm_head.weight" not in params
    pointers = {p.data_ptr() for p in learner.policy.model.parameters()}
    assert {v.data_ptr() for v in params.values()} == pointers


def test_nan_stops_before_the_step():
    rng = np.random.default_rng(0)
    learner = learner_of()
    segment = group(rng, [1.0, 0.0])
    segment.arrays["logprob"].fill_(float("nan"))
    before = {k: v.clone() for k, v in learner.params().items()}
    with pytest.raises(NonFiniteError, match="loss/policy is not finite at step 0"):
        learner.update(learner.prepare({"rollouts": [segment]}, progress=0.0))
    assert all(torch.equal(v, before[k]) for k, v in learner.params().items())


def test_mismatch_is_measured_on_this_version_only_and_bounded():
    rng = np.random.default_rng(0)
    learner = learner_of(max_mismatch=1e-3)
    metrics = learner.update(learner.prepare({"rollouts": [group(rng, [1.0, 0.0], version=4)]}, progress=0.0)).metrics
    assert "mismatch/kl" not in metrics
    with pytest.raises(RunnelError, match="engine and learner disagree at version 1"):
        learner.update(learner.prepare({"rollouts": [group(rng, [1.0, 0.0], version=1)]}, progress=0.0))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_start_from_another_run_outlives_the_first_step(precision):
    rng = np.random.default_rng(0)
    given, learner = learner_of(seed=5).params(), learner_of(seed=0, precision=precision, lr=0.0)
    learner.start_from(given)
    learner.update(learner.prepare({"rollouts": [group(rng, [1.0, 0.0])]}, progress=0.0))
    for name, value in learner.params().items():
        assert torch.equal(value, given[name].to(value.dtype)), name


def test_alone_demonstrations_are_no_warm_up():
    """Without rollouts to come, the learning rate, passes and minibatches are the learner's own."""
    config = TokenLearnerConfig(lr=1e-2, sft_lr=1e-5, warmup_updates=1, num_epochs=2, num_minibatches=2)
    learner = TokenLearner(config, build_model(SIZES, VOCAB, seed=0), algorithms={"demos": SupervisedFineTuning()})
    steps = []
    original = learner.policy.step
    learner.policy.step = lambda *args, **rest: steps.append(args) or original(*args, **rest)
    update = learner.update(learner.prepare({"demos": [demos(np.random.default_rng(0), 8)]}, progress=0.0))
    assert update.metrics["lr"] == pytest.approx(1e-2)
    assert len(steps) == 4


@pytest.mark.parametrize("beside", [False, True])
def test_supervised_gradients_do_not_know_the_sampling_temperature(beside):
    """Alone, and in one batch with rollouts, whose own gradient does."""
    rng = np.random.default_rng(0)
    segments = {"demos": [demos(rng, 4)]} | ({"rollouts": [group(rng, [1.0, 0.0])]} if beside else {})
    sft, nothing = [{t: gradient_of(segments, temperature=t, sft_coef=coef) for t in (1.0, 0.5)} for coef in (1.0, 0.0)]
    own = {t: sft[t] - nothing[t] for t in (1.0, 0.5)}
    torch.testing.assert_close(own[0.5], own[1.0])
    assert own[1.0].norm() > 0
    assert beside != torch.equal(nothing[1.0], nothing[0.5])


@pytest.mark.parametrize("online", [False, True])
def test_dpo_compares_the_models_own_log_probabilities(online):
    """Policy, reference and so the loss are those of temperature 1; engine and learner are compared at the rollouts'."""
    rng = np.random.default_rng(0)
    segments = {"rollouts": [group(rng, [1.0, 0.0])]} if online else {"pairs": [pairs(rng, 2)]}

    def update(temperature):
        algorithm = OnlineDPO(DPOConfig(), channels={"exact": 1.0}) if online else DPO(DPOConfig())
        config = TokenLearnerConfig(max_mismatch=1e9, temperature=temperature, warmup_updates=1, lr=1e-2, precision="float64")
        learner = TokenLearner(config, build_model(SIZES, VOCAB, seed=0), algorithms={next(iter(segments)): algorithm})
        for _ in range(2):
            metrics = learner.update(learner.prepare(segments, progress=0.0)).metrics
        return metrics, torch.cat([p.flatten() for p in learner.params().values()])

    (plain, weights), (hot, same) = update(1.0), update(2.0)
    assert hot["preference/margin"] == plain["preference/margin"] != 0.0
    assert torch.equal(weights, same)
    assert online == ("ess" in plain) == (plain.get("ess") != hot.get("ess"))
