from __future__ import annotations

import numpy as np
import pytest
import torch

from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError, DataError, NonFiniteError
from runnel.llm.engines.native import NativeEngine
from runnel.llm.engines.requests import SamplingConfig, generate, make_request
from runnel.llm.model.causal_lm import ModelConfig, build_model, model_params

SIZES = ModelConfig(layers=2, width=32, heads=4, kv_heads=2, inner=64, max_positions=64)
VOCAB = 40


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def engine_of(model, num_slots=4, eos_id=2, **kwargs):
    engine = NativeEngine(model, num_slots=num_slots, max_length=40, eos_id=eos_id, **kwargs)
    engine.version = 0
    return engine


def prompts(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCAB, size=int(rng.integers(1, 9))).tolist() for _ in range(count)]


def test_greedy_equals_plain_forward_passes():
    model = build_model(SIZES, VOCAB, seed=1)
    replies = generate(
        engine_of(model, num_slots=3),
        [make_request(i, p, seed=i, max_tokens=12, sampling=SamplingConfig(0.0)) for i, p in enumerate(prompts(7))],
    )
    for prompt, reply in zip(prompts(7), replies, strict=True):
        tokens = list(prompt)
        while len(tokens) < len(prompt) + 12 and (len(tokens) == len(prompt) or tokens[-1] != 2):
            with torch.no_grad():
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        assert reply.rows["tokens"].tolist() == tokens[len(prompt) :]
        assert bool(reply.rows["terminated"]) == (tokens[-1] == 2)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_equal_the_full_forward_pass(temperature):
    model = build_model(SIZES, VOCAB, seed=1)
    asked = [make_request(i, p, seed=i, max_tokens=10, sampling=SamplingConfig(temperature)) for i, p in enumerate(prompts(9))]
    for request, reply in zip(asked, generate(engine_of(model), asked), strict=True):
        full = torch.cat([request.rows["tokens"], reply.rows["tokens"]])
        with torch.no_grad():
            logp = torch.log_softmax(model(full[None]).logits[0] / temperature, dim=-1)
        n = len(request.rows["tokens"])
        expected = logp[n - 1 : -1].gather(1, reply.rows["tokens"][:, None])[:, 0]
        torch.testing.assert_close(reply.rows["logprob"], expected, atol=1e-5, rtol=0)


def test_sampling_follows_the_seed_and_the_distribution():
    model = build_model(SIZES, VOCAB, seed=1)
    engine = engine_of(model, num_slots=512)
    replies = generate(engine, [make_request(i, [1, 5, 6], seed=i, max_tokens=1) for i in range(4000)])
    counts = np.bincount([int(r.rows["tokens"][0]) for r in replies], minlength=VOCAB) / 4000
    with torch.no_grad():
        p = torch.softmax(model(torch.tensor([[1, 5, 6]])).logits[0, -1], dim=-1).numpy()
    assert np.abs(counts - p).max() < 4 * np.sqrt(p.max() / 4000)
    uniform = np.random.Generator(np.random.Philox(key=17)).random(1)[0]
    assert int(replies[17].rows["tokens"][0]) == int(np.searchsorted(np.cumsum(p.astype(np.float64)), uniform, side="right"))


def test_requests_wait_for_slots_and_all_are_answered_in_turn():
    engine = engine_of(build_model(SIZES, VOCAB, seed=1), num_slots=2, eos_id=-5)
    engine.submit([make_request(i, [1, 2 + i], seed=i, max_tokens=3) for i in range(5)])
    finished = []
    for _ in range(20):
        finished += [r.id for r in engine.step()]
    assert finished == [0, 1, 2, 3, 4]
    assert engine.pending() == 0
    assert engine.num_tokens == 15


def test_holes_are_filled_without_touching_the_others():
    model = build_model(SIZES, VOCAB, seed=3)
    lengths = [3, 12, 5, 12, 1, 9, 12, 2]
    asked = [make_request(i, p, seed=i, max_tokens=m) for i, (p, m) in enumerate(zip(prompts(8, seed=4), lengths, strict=True))]
    together = generate(engine_of(model, num_slots=3, eos_id=-5), asked)
    alone = [generate(engine_of(model, num_slots=1, eos_id=-5), [r])[0] for r in asked]
    for a, b in zip(together, alone, strict=True):
        assert a.rows["tokens"].tolist() == b.rows["tokens"].tolist()
        torch.testing.assert_close(a.rows["logprob"], b.rows["logprob"], atol=1e-5, rtol=0)


def test_shared_parameters_are_bound_and_copied_ones_are_not():
    learner, model = build_model(SIZES, VOCAB, seed=1), build_model(SIZES, VOCAB, seed=2)
    engine = engine_of(model)
    engine.load_params(ParamSet(1, model_params(learner), shared=True))
    learned, own = dict(learner.named_parameters()), dict(model.named_parameters())
    assert all(own[n].data_ptr() == learned[n].data_ptr() for n in own)
    with torch.no_grad():
        learner.model.norm.weight.mul_(2.0)
    engine.load_params(ParamSet(2, model_params(learner), shared=True))
    assert torch.equal(model.model.norm.weight, learner.model.norm.weight)
    engine.load_params(ParamSet(3, {n: torch.zeros_like(p) for n, p in learned.items()}))
    assert float(learner.model.norm.weight.detach().abs().sum()) > 0, "a copy must not write into the learner's tensors"
    assert float(model.lm_head.weight.detach().abs().sum()) == 0, "the tied head follows"
    assert engine.version == 3


def test_exact_versions_are_kept_apart():
    model = build_model(SIZES, VOCAB, seed=1)
    engine = engine_of(model, eos_id=-5)
    engine.submit([make_request(1, [1, 2], seed=0, max_tokens=4, version=0)])
    engine.step()
    with pytest.raises(DataError, match="exact older version"):
        engine.load_params(ParamSet(1, model_params(model)))


def test_mid_generation_snapshot_with_a_queue_is_bit_exact():
    model = build_model(SIZES, VOCAB, seed=1)
    first, second = engine_of(model, num_slots=3, eos_id=-5), engine_of(model, num_slots=3, eos_id=-5)
    first.submit([make_request(i, p, seed=i, max_tokens=4 + i) for i, p in enumerate(prompts(6))])
    for _ in range(5):
        first.step()
    second.restore(first.snapshot())
    for _ in range(30):
        for a, b in zip(first.step(), second.step(), strict=True):
            assert a.id == b.id
            assert all(torch.equal(a.rows[k], b.rows[k]) for k in a.rows)
    assert first.pending() == second.pending() == 0


def test_bad_requests_and_models_are_refused():
    model = build_model(SIZES, VOCAB, seed=1)
    with pytest.raises(ConfigError, match="max_length"):
        NativeEngine(model, num_slots=1, max_length=65, eos_id=2)
    with pytest.raises(DataError, match="do not fit max_length"):
        engine_of(model).submit([make_request(0, [1] * 39, seed=0, max_tokens=2)])
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(NonFiniteError, match=r"engine\.logprob"):
        generate(engine_of(model), [make_request(0, [1], seed=0, max_tokens=2)])


def test_where_launches_are_dear_rows_are_given_out_some_at_a_time():
    model = build_model(SIZES, VOCAB, seed=1)
    engine = engine_of(model, num_slots=4, eos_id=-5)
    engine._admit_from = 2
    asked = [make_request(i, [1, 2 + i], seed=i, max_tokens=3 + 2 * i) for i in range(6)]
    engine.submit(asked)
    seen = []
    while engine.pending():
        engine.step()
        seen.append(len(engine._running))
    assert seen[:5] == [4, 4, 3, 3, 4], "one free row waits for another one before two more start"
    assert engine.num_tokens == sum(3 + 2 * i for i in range(6))
