"""Every algorithm on tokens: its annotations by hand, and one gradient whatever the split into micro-batches or ranks."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest
import torch
from fakes_llm import FakeClient, FakeStream
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tokens import VOCAB, demos, group, pairs

from runnel.core.contracts.learning import SingleProcess
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError, DataError
from runnel.llm.algorithms.a_lol import ALoL, ALoLConfig
from runnel.llm.algorithms.aipo import AIPO, AIPOConfig
from runnel.llm.algorithms.base import PAIR, SCORE
from runnel.llm.algorithms.cispo import CISPO, CISPOConfig
from runnel.llm.algorithms.contrast import CPO, ORPO, RRHF, CPOConfig, ORPOConfig, RRHFConfig, SimPO, SimPOConfig
from runnel.llm.algorithms.covariance import Covariance, CovarianceConfig
from runnel.llm.algorithms.dapo import DAPO, DAPOConfig
from runnel.llm.algorithms.decoupled import DecoupledConfig, DecoupledPPO
from runnel.llm.algorithms.dpo import DPO, DPOConfig, OnlineDPO
from runnel.llm.algorithms.gigpo import GiGPO, GiGPOConfig
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.algorithms.grpo_roc import GRPORoC, GRPORoCConfig
from runnel.llm.algorithms.gspo import GSPO, GSPOConfig
from runnel.llm.algorithms.loop import LOOP, LOOPConfig
from runnel.llm.algorithms.opmd import OPMD, OPMDConfig
from runnel.llm.algorithms.oreal import OREAL, OREALConfig
from runnel.llm.algorithms.p3o import P3O, P3OConfig
from runnel.llm.algorithms.pacs import PACS, PACSConfig
from runnel.llm.algorithms.ppo import TokenPPO, TokenPPOConfig
from runnel.llm.algorithms.ppo_max import PPOMax, PPOMaxConfig
from runnel.llm.algorithms.raft import RAFT, RAFTConfig
from runnel.llm.algorithms.regression import INPO, REBEL, INPOConfig, REBELConfig
from runnel.llm.algorithms.reinforce import RLOO, Reinforce, ReinforceConfig, ReMax
from runnel.llm.algorithms.reinforce_plus_plus import ReinforcePlusPlus, ReinforcePPConfig
from runnel.llm.algorithms.reward_model import RewardModelling
from runnel.llm.algorithms.rl_plus import RLPlus, RLPlusConfig
from runnel.llm.algorithms.sft import SupervisedFineTuning
from runnel.llm.algorithms.spa import SPA, SPAConfig
from runnel.llm.algorithms.topr import TOPR, TOPRConfig
from runnel.llm.algorithms.turn_ppo import TurnPPO, TurnPPOConfig
from runnel.llm.engines.native import NativeEngine
from runnel.llm.engines.requests import SamplingConfig, generate, make_request
from runnel.llm.learning.batches import join_rows
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.model.causal_lm import ModelConfig, ScalarModel, build_model, model_params
from runnel.llm.model.lora import LoraConfig
from runnel.llm.sampling.groups import rollout_stream
from runnel.llm.sampling.sampler import PromptSampler
from runnel.llm.tasks import Example, TextTask
from runnel.llm.tokenize import CharTokenizer

SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=64)
BOTH = {"channels": {"exact": 1.0}, "max_tokens": 6}
ALGORITHMS = {
    "grpo": lambda: GRPO(GRPOConfig(kl_coef=0.1, entropy_coef=0.01), **BOTH),
    "grpo, KL in reward": lambda: GRPO(GRPOConfig(kl_coef=0.1, kl_in="reward"), **BOTH),
    "dr_grpo": lambda: GRPO(GRPOConfig(normalise="none", aggregation="constant"), **BOTH),
    "dapo": lambda: DAPO(DAPOConfig(overlong_buffer=3), **BOTH),
    "gspo": lambda: GSPO(GSPOConfig(clip_low=0.2, clip_high=0.2), **BOTH),
    "reinforce": lambda: Reinforce(ReinforceConfig(), **BOTH),
    "rloo": lambda: RLOO(ReinforceConfig(), **BOTH),
    "remax": lambda: ReMax(ReinforceConfig(), **BOTH),
    "aipo": lambda: AIPO(AIPOConfig(), **BOTH),
    "decoupled": lambda: DecoupledPPO(DecoupledConfig(), **BOTH),
    "decoupled, loglinear": lambda: DecoupledPPO(DecoupledConfig(proximal="loglinear", behaviour="mask"), **BOTH),
    "decoupled, reuse": lambda: DecoupledPPO(DecoupledConfig(proximal="reuse"), **BOTH),
    "ppo": lambda: TokenPPO(TokenPPOConfig(kl_coef=0.1, kl_in="reward"), **BOTH),
    "gigpo": lambda: GiGPO(GiGPOConfig(kl_coef=0.1, kl_in="reward"), **BOTH),
    "turn_ppo": lambda: TurnPPO(TurnPPOConfig(kl_coef=0.1, kl_in="reward"), **BOTH),
    "turn_ppo, raw": lambda: TurnPPO(TurnPPOConfig(normalise=False), **BOTH),
    "loop": lambda: LOOP(LOOPConfig(), **BOTH),
    "loop, turns": lambda: LOOP(LOOPConfig(ratio="turn"), **BOTH),
    "loop, trajectories": lambda: LOOP(LOOPConfig(ratio="trajectory"), **BOTH),
    "grpo_roc": lambda: GRPORoC(GRPORoCConfig(keep=0.7), **BOTH),
    "spa": lambda: SPA(SPAConfig(), **BOTH),
    "grpo, by the batch": lambda: GRPO(GRPOConfig(normalise="batch", dual_clip=1.5), **BOTH),
    "decoupled, sequences": lambda: DecoupledPPO(DecoupledConfig(behaviour_of="sequence"), **BOTH),
    "reinforce_plus_plus": lambda: ReinforcePlusPlus(ReinforcePPConfig(baseline="group", max_advantage=1.0), **BOTH),
    "cispo": lambda: CISPO(CISPOConfig(normalise="batch"), **BOTH),
    "topr": lambda: TOPR(TOPRConfig(), **BOTH),
    "opmd": lambda: OPMD(OPMDConfig(length_coef=0.5), **BOTH),
    "p3o": lambda: P3O(P3OConfig(), **BOTH),
    "pacs": lambda: PACS(PACSConfig(), channels={"exact": 0.25}),
    "oreal": lambda: OREAL(OREALConfig(), **BOTH),
    "a_lol": lambda: ALoL(ALoLConfig(), **BOTH),
    "raft": lambda: RAFT(RAFTConfig(kl_coef=0.1), **BOTH),
    "clip_cov": lambda: Covariance(CovarianceConfig(share=0.2, low=-1.0), **BOTH),
    "kl_cov": lambda: Covariance(CovarianceConfig(how="kl", share=0.2), **BOTH),
    "rl_plus": lambda: RLPlus(RLPlusConfig(kl_coef=0.1), **BOTH, vocab_size=VOCAB),
    "ppo_max": lambda: PPOMax(PPOMaxConfig(macro=2, keep="best_worst"), **BOTH),
    "online_dpo": lambda: OnlineDPO(DPOConfig(), channels={"exact": 1.0}),
    "rebel": lambda: REBEL(REBELConfig(eta=0.5), channels={"exact": 1.0}),
    "inpo": lambda: INPO(INPOConfig(eta=0.5, tau=0.2), channels={"exact": 1.0}),
    "dpo": lambda: DPO(DPOConfig(beta=0.5, chosen_coef=0.3)),
    "dpo, noisy": lambda: DPO(DPOConfig(smoothing=0.2)),
    "dpo, ipo": lambda: DPO(DPOConfig(loss="ipo")),
    "simpo": lambda: SimPO(SimPOConfig()),
    "cpo": lambda: CPO(CPOConfig()),
    "orpo": lambda: ORPO(ORPOConfig()),
    "rrhf": lambda: RRHF(RRHFConfig()),
    "reward_model": RewardModelling,
    "sft": SupervisedFineTuning,
}
ON_PAIRS = ("dpo", "dpo, noisy", "dpo, ipo", "simpo", "cpo", "orpo", "rrhf", "reward_model")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def segments_of(name, rng, num):
    """`num` segments for one reader of an algorithm."""
    if name in ON_PAIRS:
        return {"pairs": [pairs(rng, 2) for _ in range(num)]}
    if name == "sft":
        return {"demos": [demos(rng, 3) for _ in range(num)]}
    made = [rng.integers(0, 3, size=3).astype(float) for _ in range(num)]
    return {"rollouts": [group(rng, rewards, greedy_first=name == "remax", demo_first=name == "rl_plus") for rewards in made]}


def learner_of(name, segments, **changes):
    model = build_model(SIZES, VOCAB, seed=0)
    if name == "reward_model":
        model = ScalarModel(model)
        torch.manual_seed(0)
        torch.nn.init.normal_(model.score.weight)
    config = TokenLearnerConfig(max_mismatch=1e9, precision="float64", max_grad_norm=1e9)
    (reader,) = segments
    return TokenLearner(dataclasses.replace(config, **changes), model, algorithms={reader: ALGORITHMS[name]()})


def wake_critic(learner, name):
    """A critic starts at 0 everywhere, where nothing reaches its body: give it a head."""
    if "value" in ALGORITHMS[name]().needs:
        weight = learner._critic().model.score.weight.data
        weight.copy_(torch.empty(weight.shape).normal_(generator=torch.Generator().manual_seed(1)))


def gradients(learner):
    models = [m for m in (learner.policy, learner.critic) if m is not None]
    return torch.cat([p.grad.flatten() for m in models for p in m.model.parameters()]).clone()


def gradient_of(name, segments, **changes):
    learner = learner_of(name, segments, **changes)
    wake_critic(learner, name)
    learner.update(learner.prepare(segments, progress=0.0))
    return gradients(learner)


@pytest.mark.parametrize("name", list(ALGORITHMS))
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000), budget=st.integers(1, 100))
def test_any_split_into_micro_batches_gives_the_same_gradient(name, seed, budget):
    segments = segments_of(name, np.random.default_rng(seed), 3)
    whole = gradient_of(name, segments, micro_batch_tokens=1_000_000)
    split = gradient_of(name, segments, micro_batch_tokens=budget)
    torch.testing.assert_close(split, whole, rtol=1e-5, atol=1e-7)


class TwoRanks:
    """One end of an all-reduce between two threads."""

    world_size = 2

    def __init__(self, rank, shared, barrier):
        self.rank, self._shared, self._barrier = rank, shared, barrier

    def all_reduce(self, x):
        self._shared[self.rank] = x.clone()
        self._barrier.wait(timeout=30)
        total = self._shared[0] + self._shared[1]
        self._barrier.wait(timeout=30)
        return total


@pytest.mark.parametrize("name", list(ALGORITHMS))
@pytest.mark.parametrize("seed", [2, 3])
def test_rows_over_ranks_give_the_same_gradient(name, seed):
    segments = segments_of(name, np.random.default_rng(seed), 2)
    ((reader, both),) = segments.items()
    whole = gradient_of(name, segments)
    shared, barrier = [None, None], threading.Barrier(2)
    learners = [learner_of(name, segments) for _ in range(2)]

    def run(rank):
        learner = learners[rank]
        learner._collective = TwoRanks(rank, shared, barrier)
        learner.update(learner.prepare({reader: [both[rank]]}, progress=0.0))

    for learner in learners:
        wake_critic(learner, name)
    other = threading.Thread(target=run, args=(1,))
    other.start()
    run(0)
    other.join()
    for learner in learners:
        torch.testing.assert_close(gradients(learner), whole, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_an_update_says_what_its_components_promise_and_changes_weights(name):
    segments = segments_of(name, np.random.default_rng(1), 3)
    learner = learner_of(name, segments, warmup_updates=1)
    before = {k: v.clone() for k, v in learner.params().items()}
    metrics = learner.update(learner.prepare(segments, progress=0.0)).metrics
    for component, part in learner._components.items():
        assert {f"loss/{component}", *part.metrics} <= metrics.keys()
    assert all(np.isfinite(v) for v in metrics.values())
    assert any(not torch.equal(v, before[k]) for k, v in learner.params().items())


def annotated(name, segments, **fields):
    rows = join_rows(segments)
    rows |= {k: v(rows) for k, v in fields.items()}
    return ALGORITHMS[name]().annotate(rows, SingleProcess()), rows


def by_row(batch, rows, name="advantage"):
    """The value of each row's trained tokens, which must be one."""
    out = []
    for part, mask in zip(
        batch[name].split(rows["row_length"].tolist()), rows["loss_mask"].split(rows["row_length"].tolist()), strict=True
    ):
        values = set(part[mask].tolist())
        assert len(values) <= 1
        out.append(values.pop() if values else None)
    return out


def test_credit_by_hand():
    rng = np.random.default_rng(0)
    groups = [group(rng, [1.0, 0.0, 0.5]), group(rng, [0.0, 3.0, 0.0])]
    assert by_row(*annotated("reinforce", groups)) == [0.25, -0.75, -0.25, -0.75, 2.25, -0.75]
    assert by_row(*annotated("rloo", groups)) == [0.75, -0.75, 0.0, -1.5, 3.0, -1.5]
    assert by_row(*annotated("aipo", groups)) == [0.75, -0.75, 0.0, -1.5, 3.0, -1.5]
    greedy = [group(rng, [1.0, 0.0, 0.5], greedy_first=True), group(rng, [0.0, 3.0, 0.0], greedy_first=True)]
    batch, rows = annotated("remax", greedy)
    assert by_row(batch, rows) == [None, -1.0, -0.5, None, 3.0, 0.0]
    assert batch["denominator/policy"].tolist() == [0.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    assert batch["stats/reward/mean"].item() == pytest.approx(3.5 / 4)  # the greedy rows are no rollouts
    with pytest.raises(DataError, match="one greedy row"):
        annotated("remax", groups)


def test_means_by_hand():
    rows = join_rows([group(np.random.default_rng(0), [1.0, 0.0])])
    lengths = [float(m.sum()) for m in rows["loss_mask"].split(rows["row_length"].tolist())]
    for name, share, weights in (
        ("grpo", [1.0, 1.0], [1 / n for n in lengths]),
        ("dapo", lengths, [1.0, 1.0]),
        ("dr_grpo", [6.0, 6.0], [1.0, 1.0]),
        ("rloo", [1.0, 1.0], [1.0, 1.0]),
    ):
        fields = {"reference_logprob": lambda rows: torch.zeros(len(rows["tokens"]))}
        batch, rows = annotated(name, [group(np.random.default_rng(0), [1.0, 0.0])], **fields)
        assert batch["denominator/policy"].tolist() == share, name
        assert by_row(batch, rows, "weight") == pytest.approx(weights), name


def test_overlong_answers_lose_by_their_length():
    batch = join_rows([group(np.random.default_rng(0), [0.0] * 6)])
    lengths = [int(m.sum()) for m in batch["loss_mask"].split(batch["row_length"].tolist())]
    found = DAPO(DAPOConfig(overlong_buffer=3, overlong_penalty=2.0), **BOTH).penalty(batch).tolist()
    assert found == pytest.approx([-2.0 * min(max((n - 3) / 3, 0.0), 1.0) for n in lengths])
    with pytest.raises(ConfigError, match="overlong_buffer"):
        DAPO(DAPOConfig(overlong_buffer=7), **BOTH)


def test_kl_in_the_reward_is_the_rows_log_ratio():
    segments = [group(np.random.default_rng(0), [1.0, 1.0])]
    algorithm = GRPO(GRPOConfig(kl_coef=0.5, kl_in="reward"), **BOTH)
    rows = join_rows(segments)
    rows["reference_logprob"] = rows["logprob"] - 0.2 * rows["loss_mask"]
    lengths = torch.tensor([m.sum() for m in rows["loss_mask"].split(rows["row_length"].tolist())])
    torch.testing.assert_close(algorithm.shaped(torch.tensor([1.0, 1.0]), rows), 1.0 - 0.5 * 0.2 * lengths)
    assert "kl" not in algorithm.components


def test_ppo_annotates_tokens_with_gae():
    rows = join_rows([group(np.random.default_rng(0), [1.0, 0.0])])
    rows["value"] = torch.where(rows["loss_mask"], 0.25, 0.0)
    config = TokenPPOConfig(gamma=1.0, gae_lambda=1.0, normalise=False)
    batch = TokenPPO(config, channels={"exact": 2.0}).annotate(rows, SingleProcess())
    assert by_row(batch, rows) == [1.75, -0.25]
    assert by_row(batch, rows, "return") == [2.0, 0.0]
    normal = TokenPPO(TokenPPOConfig(gae_lambda=1.0), channels={"exact": 2.0}).annotate(rows, SingleProcess())
    kept = normal["advantage"][rows["loss_mask"]]
    assert kept.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert kept.std(correction=0).item() == pytest.approx(1.0, rel=1e-5)


def test_critic_warm_up_leaves_the_policy_alone_and_is_checkpointed():
    rng = np.random.default_rng(0)
    batches = [segments_of("ppo", rng, 2) for _ in range(4)]

    def fresh():
        algorithm = TokenPPO(TokenPPOConfig(critic_warmup=2), **BOTH)
        config = TokenLearnerConfig(max_mismatch=1e9, warmup_updates=1, critic_lr=1e-2)
        return TokenLearner(config, build_model(SIZES, VOCAB, seed=0), algorithms={"rollouts": algorithm})

    one = fresh()
    start = {k: v.clone() for k, v in one.params().items()}
    for segments in batches[:2]:
        metrics = one.update(one.prepare(segments, progress=0.0)).metrics
        assert "loss/policy" not in metrics
        assert "critic_grad_norm" in metrics
    assert all(torch.equal(v, start[k]) for k, v in one.params().items())
    other = fresh()
    other.load_state_dict(one.state_dict())
    for segments in batches[2:]:
        a, b = (x.update(x.prepare(segments, progress=0.0)).metrics for x in (one, other))
        assert a == b
        assert "loss/policy" in a
    assert any(not torch.equal(v, start[k]) for k, v in one.params().items())


def test_a_critic_learns_the_returns():
    segments = {"rollouts": [group(np.random.default_rng(0), [1.0, 0.0, 1.0])]}
    algorithm = TokenPPO(TokenPPOConfig(critic_warmup=100, gae_lambda=1.0, value_clip=None), **BOTH)
    config = TokenLearnerConfig(max_mismatch=1e9, warmup_updates=1, critic_lr=1e-2)
    learner = TokenLearner(config, build_model(SIZES, VOCAB, seed=0), algorithms={"rollouts": algorithm})
    losses = [learner.update(learner.prepare(segments, progress=0.0)).metrics["loss/value"] for _ in range(40)]
    assert losses[-1] < 0.15 * losses[0], "what is left: the first token's value, before the answers differ"


def test_pairs_by_hand():
    segments = [pairs(np.random.default_rng(0), 2)]
    batch, rows = annotated("dpo", segments, reference_logprob=lambda rows: torch.zeros(len(rows["tokens"])))
    assert by_row(batch, rows) == [1.0, -1.0, 1.0, -1.0]
    assert batch["unit"].tolist() == [0, 0, 2, 2]
    assert batch["denominator/dpo"].tolist() == [1.0, 0.0, 1.0, 0.0]
    lengths = [float(m.sum()) for m in rows["loss_mask"].split(rows["row_length"].tolist())]
    assert batch["denominator/chosen"].tolist() == [lengths[0], 0.0, lengths[2], 0.0]
    assert torch.equal(batch["component"] == PAIR, rows["loss_mask"])
    scored, rows = annotated("reward_model", segments)
    ends = (rows["row_start"] + rows["row_length"] - 1).tolist()
    assert (scored["component"] == SCORE).nonzero().squeeze(1).tolist() == ends
    assert scored["advantage"][ends].tolist() == [1.0, -1.0, 1.0, -1.0]


def test_online_pairs_are_the_best_and_the_worst():
    rng = np.random.default_rng(0)
    segments = [group(rng, [0.5, 1.0, 0.0]), group(rng, [1.0, 1.0, 1.0])]
    batch, rows = annotated("online_dpo", segments, reference_logprob=lambda rows: torch.zeros(len(rows["tokens"])))
    assert by_row(batch, rows) == [0.0, 1.0, -1.0, 0.0, 0.0, 0.0]
    assert batch["stats/pairs"].item() == 1.0
    assert batch["denominator/dpo"].sum().item() == 1.0


def test_dpo_prefers_what_was_chosen():
    segments = {"pairs": [pairs(np.random.default_rng(0), 4)]}
    learner = learner_of("dpo", segments, warmup_updates=1, lr=1e-2, precision="float32")
    updates = [learner.update(learner.prepare(segments, progress=0.0)).metrics for _ in range(15)]
    assert updates[0]["loss/dpo"] == pytest.approx(np.log(2.0), rel=1e-4)
    assert updates[-1]["preference/accuracy"] == 1.0
    assert updates[-1]["loss/dpo"] < 0.5 * updates[0]["loss/dpo"]


def test_a_reward_model_scores_at_the_last_token():
    """Answers that differ in their last token alone can be told apart only there."""
    segment = pairs(np.random.default_rng(0), 1)
    learner = learner_of("reward_model", {"pairs": [segment]}, warmup_updates=1, lr=1e-2, precision="float32")
    updates = [learner.update(learner.prepare({"pairs": [segment]}, progress=0.0)).metrics for _ in range(20)]
    assert updates[-1]["preference/accuracy"] == 1.0
    assert updates[-1]["preference/margin"] > 1.0


def test_minibatches_share_out_the_batch_and_count_their_own():
    rng = np.random.default_rng(0)
    segments = segments_of("grpo", rng, 4)
    learner = learner_of("grpo", segments, num_minibatches=3, num_epochs=2)
    batch = learner.prepare(segments, progress=0.0)
    seen = []
    step = learner._step

    def spy(batch, rows, rates, **kwargs):
        seen.append(rows.tolist())
        return step(batch, rows, rates, **kwargs)

    learner._step = spy
    learner.update(batch)
    assert len(seen) == 6
    for epoch in (seen[:3], seen[3:]):
        assert sorted(r for part in epoch for r in part) == list(range(12))
        assert {len(part) for part in epoch} == {4}
    assert seen[:3] != seen[3:]


def test_the_reference_may_follow():
    rng = np.random.default_rng(0)
    for decay, expected in ((0.0, 1.0), (0.75, 0.25)):
        segments = segments_of("grpo", rng, 2)
        learner = learner_of("grpo", segments, reference_every=2, reference_decay=decay, warmup_updates=1, lr=1e-3)
        start = {k: v.clone() for k, v in learner.params().items()}
        for update in range(2):
            if update == 1:
                assert all(torch.equal(v, start[k]) for k, v in learner.reference.params().items())
            learner.update(learner.prepare(segments, progress=0.0))
        for name, value in learner.reference.params().items():
            wanted = torch.lerp(start[name], learner.params()[name], expected)
            torch.testing.assert_close(value, wanted)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_the_same_gradient_on_a_cuda_device(name):
    segments = segments_of(name, np.random.default_rng(4), 3)
    expected = gradient_of(name, segments, precision="float32")
    (reader,) = segments
    model = build_model(SIZES, VOCAB, seed=0)
    if name == "reward_model":
        model = ScalarModel(model)
        torch.manual_seed(0)
        torch.nn.init.normal_(model.score.weight)
    config = TokenLearnerConfig(max_mismatch=1e9, precision="float32", max_grad_norm=1e9)
    learner = TokenLearner(config, model, algorithms={reader: ALGORITHMS[name]()}, device="cuda")
    wake_critic(learner, name)
    metrics = learner.update(learner.prepare(segments, progress=0.0)).metrics
    assert all(np.isfinite(v) for v in metrics.values())
    torch.testing.assert_close(gradients(learner).cpu(), expected, rtol=1e-2, atol=1e-4)


def test_the_first_row_of_a_greedy_group_is_greedy_and_not_trained():
    tokenizer = CharTokenizer()
    model = build_model(SIZES, tokenizer.vocab_size, seed=0)
    engine = NativeEngine(model, num_slots=4, max_length=32, eos_id=tokenizer.eos_id)
    client = FakeClient(engine)
    client.published[0] = ParamSet(0, model_params(model))
    task = TextTask("t", [Example("ab")], [Example("cd")], lambda prompts, completions: [float(len(c)) for c in completions])
    sampler = PromptSampler(task, tokenizer, group_size=3, max_tokens=6, seed=1, greedy_first=True)
    spec = rollout_stream(group_size=3, max_prompt=8, max_tokens=6)
    stream = FakeStream(spec, limit=1)
    while not stream.committed:
        sampler.step({"policy": client}, {"rollouts": stream})
    rows = join_rows(stream.take(1))
    masks = rows["loss_mask"].split(rows["row_length"].tolist())
    assert [bool(m.any()) for m in masks] == [False, True, True]
    prompt = tokenizer.render([{"role": "user", "content": "ab"}])
    greedy = generate(engine, [make_request(1, prompt, seed=5, max_tokens=6, sampling=SamplingConfig(0.0))])[0]
    first = int(rows["row_length"][0])
    assert rows["tokens"][len(prompt) : first].tolist() == greedy.rows["tokens"].tolist()
    sampler.close()


def test_adapters_of_policy_critic_and_moving_reference_come_back():
    """With adapters, a critic has its own beside a copy of the policy's body, and its head is trained whole."""
    changes = {"lora": LoraConfig(rank=2), "precision": "bfloat16", "reference_every": 1, "reference_decay": 0.9, "lr": 1e-2}
    rng = np.random.default_rng(0)
    made = [segments_of("ppo", rng, 2) for _ in range(3)]
    one, other = (learner_of("ppo", made[0], critic_lr=1e-2, warmup_updates=1, **changes) for _ in range(2))

    def advance(learner, some):
        return learner.update(learner.prepare(some, progress=0.0)).metrics

    advance(one, made[0])
    start = {n: v.clone() for n, v in one.critic.masters().items()}
    advance(one, made[1])
    other.load_state_dict(one.state_dict())
    assert advance(one, made[2]) == advance(other, made[2])
    trained = one.critic.masters()
    assert all("lora" in name or name == "score.weight" for name in trained)
    assert any(not torch.equal(trained[n], start[n]) for n in trained if "lora_B" in n)
    for kind in ("policy", "critic"):
        mine, theirs = getattr(one, kind).masters(), getattr(other, kind).masters()
        assert all(torch.equal(v, theirs[n]) for n, v in mine.items())
