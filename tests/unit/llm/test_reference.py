"""A reference on workers of its own: what they answer, what the learner keeps and publishes, what the sampler waits for."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from made_tokens import VOCAB, demos, group
from torch.testing import assert_close

from runnel.core.contracts.inference import Inferencer, Reply, Request
from runnel.core.contracts.learning import HasReference
from runnel.core.contracts.params import ParamSet
from runnel.core.records import Batch
from runnel.flow.inference.codec import packed
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.algorithms.sft import SupervisedFineTuning
from runnel.llm.engines.native import NativeEngine
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.learning.reference import ReferenceEngine, ReferencePlan, message_bytes, reference_rows
from runnel.llm.model.causal_lm import ModelConfig, build_model, model_params
from runnel.llm.model.lora import LoraConfig
from runnel.llm.sampling.groups import rollout_stream
from runnel.llm.sampling.sampler import PromptSampler
from runnel.llm.tasks import TextTask, make_reverse
from runnel.llm.tokenize import CharTokenizer

sys.path.insert(0, str(Path(__file__).parent))
from fakes_llm import FakeClient, FakeStream

SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=64)
TOKENIZER = CharTokenizer()
N = 3


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def learner_of(plan=None, seed=0, **changes):
    algorithms = {"rollouts": GRPO(GRPOConfig(kl_coef=0.1), channels={"exact": 1.0}), "demos": SupervisedFineTuning()}
    config = TokenLearnerConfig(max_mismatch=1e9, warmup_updates=1, lr=1e-2, temperature=0.7, **changes)
    return TokenLearner(config, build_model(SIZES, VOCAB, seed=seed), algorithms=algorithms, reference=plan)


def requests_of(segments):
    """A request for each row, and where its completion lies in the joined tokens."""
    found, at = [], 0
    for s in segments:
        for start, length in zip(s.arrays["row_start"].tolist(), s.arrays["row_length"].tolist(), strict=True):
            tokens, mask = s.arrays["tokens"][start : start + length], s.arrays["loss_mask"][start : start + length]
            prompt = int((~mask).sum())
            rows = reference_rows(tokens[:prompt], tokens[prompt:])
            found.append((Request(len(found), rows, 0), slice(at + prompt, at + length)))
            at += length
    return found


def engine_of(params, **settings):
    engine = ReferenceEngine(build_model(SIZES, VOCAB, seed=9), temperature=0.7, **settings)
    engine.load_params(ParamSet(4, params))
    return engine


def answers(engine, requests):
    engine.submit([r for r, _ in requests])
    passes = []
    while engine.pending():
        passes.append(engine.step())
    replies = {r.id: r for p in passes for r in p}
    assert {r.version for r in replies.values()} == {4}
    return [replies[request.id].rows["logprob"] for request, _ in requests], len(passes)


def test_its_workers_answer_what_the_learner_would_compute():
    rng = np.random.default_rng(0)
    segments = [group(rng, [1.0, 0.0, 0.5]), group(rng, [0.0, 1.0])]
    learner = learner_of()
    expected = learner.prepare({"rollouts": segments}, progress=0.0)["reference_logprob"]
    requests = requests_of(segments)
    engine = engine_of(learner.params())
    assert isinstance(engine, Inferencer)
    together, passes = answers(engine, requests)
    assert passes == 1
    for found, (_, place) in zip(together, requests, strict=True):
        assert found.shape == expected[place].shape
        assert_close(found, expected[place])
    apart, passes = answers(engine_of(learner.params(), apart=True), requests)
    assert passes == len(requests)
    few, passes = answers(engine_of(learner.params(), max_tokens=12), requests)
    assert 1 < passes < len(requests)
    assert_close(few, apart)


def test_messages_have_room_for_the_longest_row():

    for length in (2, 500):
        row = torch.arange(length)
        assert len(packed(reference_rows(row[:1], row[1:]))) <= message_bytes(length)
        assert len(packed(Batch(logprob=torch.zeros(length - 1)))) <= message_bytes(length)


def test_what_waits_can_be_given_up_and_comes_back():
    requests = [r for r, _ in requests_of([group(np.random.default_rng(0), [1.0, 0.0])])]
    engine = engine_of(learner_of().params())
    engine.submit(requests)
    engine.abort([0])
    other = engine_of(learner_of().params())
    other.restore(engine.snapshot())
    assert other.pending() == 1
    assert torch.equal(other.step()[0].rows["logprob"], engine.step()[0].rows["logprob"])


def test_a_learner_uses_what_segments_bring_and_makes_no_pass():
    inside = learner_of()
    expected = inside.prepare({"rollouts": [group(np.random.default_rng(0), [1.0, 0.0])]}, progress=0.0)
    segment = group(np.random.default_rng(0), [1.0, 0.0], reference_logprob=True)
    segment.arrays["reference_logprob"].copy_(expected["reference_logprob"])
    outside = learner_of(ReferencePlan())
    found = outside.prepare({"rollouts": [segment]}, progress=0.0)
    assert outside.reference is None
    assert torch.equal(found["reference_logprob"], expected["reference_logprob"])
    assert outside.update(found).metrics == inside.update(expected).metrics


def step(learner, segments):
    for segment in segments.get("rollouts", ()):
        segment.arrays["reference_logprob"].fill_(-3.0)
    learner.update(learner.prepare(segments, progress=0.0))


def test_the_reference_is_fixed_after_the_warm_up_follows_and_comes_back():
    rng = np.random.default_rng(0)
    learner = learner_of(ReferencePlan(start=1, every=2), reference_every=2)
    assert isinstance(learner, HasReference)
    assert learner.frozen() == {}
    step(learner, {"demos": [demos(rng, 2)]})
    first = {k: v.clone() for k, v in learner.params().items()}
    assert learner.frozen()["reference"].version == 1
    step(learner, {"rollouts": [group(rng, [1.0, 0.0], reference_logprob=True)]})
    assert learner.frozen()["reference"].version == 2
    moved = {k: v.clone() for k, v in learner.params().items()}
    assert any(not torch.equal(moved[k], first[k]) for k in first)
    step(learner, {"rollouts": [group(rng, [0.0, 1.0], reference_logprob=True)]})
    kept = learner.frozen()["reference"]
    assert kept.version == 2
    assert all(torch.equal(kept.params[k], moved[k]) for k in moved)
    other = learner_of(ReferencePlan(start=1, every=2), seed=5, reference_every=2)
    other.load_state_dict(learner.state_dict())
    again = other.frozen()["reference"]
    assert again.version == 2
    assert all(torch.equal(again.params[k], moved[k]) for k in moved)
    inside = learner_of(seed=5)  # the same checkpoint, by a learner that computes it itself
    inside.load_state_dict(learner.state_dict())
    assert inside.reference is not None
    assert all(torch.equal(v, moved[k]) for k, v in inside.reference.params().items())


def test_a_run_that_starts_from_another_refers_to_its_weights():
    learner, other = learner_of(ReferencePlan()), learner_of(seed=7)
    learner.frozen()
    learner.start_from(other.params())
    assert all(torch.equal(v, other.params()[k]) for k, v in learner.frozen()["reference"].params.items())


# ------------------------------------------------------------------------------------------------------------- sampler
class Asked:
    """A reference client that answers when it is told to, with minus the number of the token."""

    def __init__(self):
        self.requests, self.replies, self.aborted, self.next = {}, {}, [], 0

    def submit(self, rows, *, version=-1, affinity=-1):
        self.next += 1
        self.requests[self.next] = (rows, version)
        return self.next

    def answer(self):
        for ticket, (rows, _) in self.requests.items():
            tokens = rows["tokens"][int(rows["prompt_length"]) :]
            self.replies[ticket] = Reply(ticket, Batch(logprob=-tokens.float()), 0)
        self.requests.clear()

    def poll(self):
        return 0

    def ready(self, ticket):
        return self.replies.pop(ticket, None)

    def abort(self, tickets):
        self.aborted += tickets
        for ticket in tickets:
            self.requests.pop(ticket)

    def pending(self):
        return len(self.requests)


def sampler_of(reward=lambda prompts, completions, **columns: [float(i) for i, _ in enumerate(completions)], **settings):
    base = make_reverse(num_words=30, num_eval=5)
    task = TextTask("made", base.train, base.eval, reward)
    plan = ReferencePlan(start=1, every=2)
    return PromptSampler(task, TOKENIZER, group_size=N, max_tokens=5, seed=1, reference=plan, **settings)


def policy():
    model = build_model(SIZES, TOKENIZER.vocab_size, seed=0)
    client = FakeClient(NativeEngine(model, num_slots=8, max_length=32, eos_id=2))
    client.published = {v: ParamSet(v, model_params(model)) for v in (0, 3)}
    return client


def stream_of(required, limit=2):
    spec = rollout_stream(group_size=N, max_prompt=12, max_tokens=5, capacity=2, reference_logprob=True)
    return FakeStream(spec, required=required, limit=limit)


def run(sampler, client, reference, stream, steps):
    return [sampler.step({"policy": client, "reference": reference}, {"rollouts": stream}) for _ in range(steps)]


@pytest.mark.parametrize(("required", "version"), [(0, 1), (3, 2), (-1, -1)])
def test_a_group_waits_for_the_reference_that_belongs_to_it(required, version):
    sampler, reference, stream = sampler_of(), Asked(), stream_of(lambda k: required)
    run(sampler, policy(), reference, stream, 12)
    assert not stream.committed
    assert sampler.waits_for() == f"{2 * N} answers of inference 'reference'"
    assert {v for _, v in reference.requests.values()} == {version}
    reference.answer()
    run(sampler, policy(), reference, stream, 1)
    for segment in stream.take(2):
        a = segment.arrays
        assert torch.equal(a["reference_logprob"], -a["tokens"].float() * a["loss_mask"])


def test_a_group_that_is_judged_and_waits_survives_a_restart():
    sampler, client, reference, stream = sampler_of(), policy(), Asked(), stream_of(lambda k: 0)
    run(sampler, client, reference, stream, 12)
    told = len(sampler.events())
    other = sampler_of(lambda prompts, completions, **columns: 1 / 0)  # it must not be judged again
    other.restore(sampler.snapshot(), {"rollouts": stream})
    reference.answer()
    run(other, client, reference, stream, 1)
    assert [s.arrays["rewards/reward"].tolist() for s in stream.take(2)] == [[0.0, 1.0, 2.0]] * 2
    assert told > 0
    assert other.events() == []


def test_a_group_that_is_given_up_is_not_waited_for():
    sampler, reference = sampler_of(lambda prompts, completions, **columns: [1.0] * N, max_refills=1), Asked()
    stream = stream_of(lambda k: 0, limit=1)
    run(sampler, policy(), reference, stream, 12)
    assert stream.cancelled == ["no_signal"]
    assert len(reference.aborted) == N
    assert not reference.requests


def test_a_baseline_row_is_not_asked_about():
    sampler, reference, stream = sampler_of(greedy_first=True), Asked(), stream_of(lambda k: 0, limit=1)
    run(sampler, policy(), reference, stream, 12)
    assert len(reference.requests) == N - 1
    reference.answer()
    run(sampler, policy(), reference, stream, 1)
    a = stream.take(1)[0].arrays
    assert torch.equal(a["reference_logprob"], -a["tokens"].float() * a["loss_mask"])


@pytest.mark.parametrize("lora", [0, 2])
def test_a_moving_reference_that_is_asked_elsewhere_is_the_average_that_numpy_makes(lora):
    settings = {"reference_every": 1, "reference_decay": 0.99, "precision": "bfloat16", "lora": LoraConfig(rank=lora)}
    learner = learner_of(ReferencePlan(every=1), **settings)
    kept = learner.frozen()["reference"].params
    expected = {name: kept[name].float().numpy().copy() for name in learner.policy.masters()}
    start = {name: value.copy() for name, value in expected.items()}
    learner.policy._master.add_(0.2)
    for _ in range(200):
        for name, value in learner.policy.masters().items():
            expected[name] = 0.99 * expected[name] + 0.01 * value.numpy()
        learner._kept.move_towards(learner.policy, 0.01)
    for name, value in expected.items():
        np.testing.assert_allclose(kept[name].float().numpy(), value, atol=0.004, rtol=0.004)
        assert 0.15 < float((kept[name].float().numpy() - start[name]).mean()) < 0.19
        assert kept[name].dtype == torch.bfloat16, "it is published as the policy is"
    state = learner.state_dict()
    other = learner_of(ReferencePlan(every=1), **settings)
    other.load_state_dict(state)
    for one in (learner, other):
        one._kept.move_towards(learner.policy, 0.01)
    assert all(torch.equal(v, learner._kept._average[n]) for n, v in other._kept._average.items())
    inside = learner_of(**settings)  # the same checkpoint, by a learner that computes it itself
    inside.load_state_dict(state)
    inside.reference.move_towards(learner.policy, 0.01)
    found = inside.reference.params()
    assert all(torch.equal(found[n], v) for n, v in learner._kept.params.items())
    learner_of(ReferencePlan(every=1), **settings).load_state_dict(inside.state_dict())
