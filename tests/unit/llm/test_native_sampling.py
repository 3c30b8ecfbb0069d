"""The native engine's sampling limits, stops, hooks, shared prompts, chunks, fixed shapes and changes of weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runnel.core.contracts.params import ParamSet
from runnel.core.errors import DataError
from runnel.llm.engines.native import NativeEngine
from runnel.llm.engines.requests import SamplingConfig, generate, make_request, stream
from runnel.llm.model.causal_lm import ModelConfig, build_model, model_params

SIZES = ModelConfig(layers=2, width=32, heads=4, kv_heads=2, inner=64, max_positions=96)
VOCAB = 40


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def sharp_model(seed=1):
    model = build_model(SIZES, VOCAB, seed=seed)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(4.0)
    return model


def engine_of(model, num_slots=4, eos_id=-5, max_length=64, **kwargs):
    engine = NativeEngine(model, num_slots=num_slots, max_length=max_length, eos_id=eos_id, **kwargs)
    engine.version = 0
    return engine


def prompts(count, seed=0, low=1, high=9):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCAB, size=int(rng.integers(low, high))).tolist() for _ in range(count)]


def text_of(tokens):
    return "".join(chr(60 + t) for t in tokens)


def forward(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize("limits", [{"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.4}, {"top_k": 5, "top_p": 0.8, "min_p": 0.1}])
def test_truncated_tokens_come_from_the_allowed_set_with_both_logprobs(limits):
    model = sharp_model()
    sampling = SamplingConfig(temperature=0.8, **limits)
    asked = [make_request(i, p, seed=i, max_tokens=8, sampling=sampling) for i, p in enumerate(prompts(12))]
    for request, reply in zip(asked, generate(engine_of(model), asked), strict=True):
        full = [*request.rows["tokens"].tolist(), *reply.rows["tokens"].tolist()]
        logp = torch.log_softmax(forward(model, full) / 0.8, dim=-1)
        for i, token in enumerate(reply.rows["tokens"].tolist()):
            row = logp[len(request.rows["tokens"]) - 1 + i]
            kept = allowed_set(row.exp().double().numpy(), limits)
            assert token in kept
            mass = sum(float(row[t].exp()) for t in kept)
            assert float(reply.rows["logprob"][i]) == pytest.approx(float(row[token]), abs=1e-4)
            assert float(reply.rows["sampling_logprob"][i]) == pytest.approx(float(row[token]) - np.log(mass), abs=1e-4)


def allowed_set(p, limits):
    """By plain loops: the likeliest k, of those the likeliest that reach top_p, of those at least min_p of the best."""
    kept = list(np.argsort(-p, kind="stable"))[: limits.get("top_k", 0) or len(p)]
    total, reached, nucleus = sum(p[t] for t in kept), 0.0, []
    for token in kept:
        if reached >= limits.get("top_p", 1.0) * total:
            break
        nucleus.append(token)
        reached += p[token]
    return {t for t in nucleus if p[t] >= limits.get("min_p", 0.0) * p[nucleus[0]]}


def test_requests_with_and_without_limits_run_together_and_only_some_carry_two_logprobs():
    model = sharp_model()
    one = SamplingConfig(top_k=1)
    asked = [make_request(0, [3, 4], seed=1, max_tokens=6), make_request(1, [3, 4], seed=1, max_tokens=6, sampling=one)]
    plain, greedy = generate(engine_of(model), asked)
    assert "sampling_logprob" not in plain.rows
    assert torch.equal(greedy.rows["sampling_logprob"], torch.zeros(6))
    alone = generate(engine_of(model), [make_request(0, [3, 4], seed=1, max_tokens=6)])[0]
    assert plain.rows["tokens"].tolist() == alone.rows["tokens"].tolist()


def test_stop_tokens_and_texts_end_a_completion():
    model = build_model(SIZES, VOCAB, seed=1)
    free = generate(engine_of(model), [make_request(0, [5, 6], seed=3, max_tokens=20)])[0].rows["tokens"].tolist()
    by_token = generate(
        engine_of(model), [make_request(0, [5, 6], seed=3, max_tokens=20, sampling=SamplingConfig(stop_tokens=(free[4],)))]
    )[0]
    end = free.index(free[4])
    assert by_token.rows["tokens"].tolist() == free[: end + 1]
    assert bool(by_token.rows["terminated"])
    needle = text_of(free[7:9])
    engine = engine_of(model, decode_text=text_of)
    stops = SamplingConfig(stop=(needle, "~~"))
    by_text = generate(engine, [make_request(0, [5, 6], seed=3, max_tokens=20, sampling=stops)])[0]
    assert text_of(by_text.rows["tokens"].tolist()) == text_of(free)[: text_of(free).index(needle) + 2]
    assert bool(by_text.rows["terminated"])
    assert engine.num_tokens == len(by_text.rows["tokens"])
    with pytest.raises(DataError, match="decode_text"):
        engine_of(model).submit([make_request(0, [5], seed=0, max_tokens=2, sampling=SamplingConfig(stop=("x",)))])


def test_a_hook_bans_tokens_and_logprobs_stay_the_models():
    model = build_model(SIZES, VOCAB, seed=1)

    def odd_only(logits, requests):
        assert len(requests) == len(logits)
        banned = logits.clone()
        banned[:, ::2] = -torch.inf
        return banned

    asked = [make_request(i, p, seed=i, max_tokens=6) for i, p in enumerate(prompts(6))]
    for request, reply in zip(asked, generate(engine_of(model, logits_hook=odd_only), asked), strict=True):
        assert all(t % 2 for t in reply.rows["tokens"].tolist())
        full = [*request.rows["tokens"].tolist(), *reply.rows["tokens"].tolist()]
        logp = torch.log_softmax(forward(model, full), dim=-1)[len(request.rows["tokens"]) - 1 : -1]
        expected = logp.gather(1, reply.rows["tokens"][:, None])[:, 0]
        torch.testing.assert_close(reply.rows["logprob"], expected, atol=1e-5, rtol=0)
        assert bool((reply.rows["sampling_logprob"] > reply.rows["logprob"]).all())


def test_a_group_shares_one_prefill():
    model = build_model(SIZES, VOCAB, seed=1)
    engine = engine_of(model, num_slots=8)
    seen = []
    inner = engine._runner.prefill
    engine._runner.prefill = lambda pieces: seen.extend(len(p.tokens) for p in pieces) or inner(pieces)
    prompt = prompts(1, low=8, high=9)[0]
    asked = [make_request(i, prompt, seed=i, max_tokens=5) for i in range(8)]
    together = generate(engine, asked)
    assert seen == [8]
    for request, reply in zip(asked, together, strict=True):
        alone = generate(engine_of(model), [request])[0]
        assert reply.rows["tokens"].tolist() == alone.rows["tokens"].tolist()
        torch.testing.assert_close(reply.rows["logprob"], alone.rows["logprob"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_prompts_in_chunks_give_the_same_completions_while_others_decode(chunk):
    model = build_model(SIZES, VOCAB, seed=2)
    asked = [make_request(i, p, seed=i, max_tokens=6) for i, p in enumerate(prompts(7, low=2, high=30))]
    whole = generate(engine_of(model, num_slots=3), asked)
    parts = generate(engine_of(model, num_slots=3, prefill_tokens=chunk), asked)
    for a, b in zip(whole, parts, strict=True):
        assert a.rows["tokens"].tolist() == b.rows["tokens"].tolist()
        torch.testing.assert_close(a.rows["logprob"], b.rows["logprob"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("prefill", [8192, 24, 7])
def test_with_fixed_shapes_neighbours_change_not_one_bit(prefill):
    """Also where prompts go into the cache in pieces: where one is cut depends on itself alone."""
    model = build_model(SIZES, VOCAB, seed=1)
    asked = [make_request(i, p, seed=i, max_tokens=12) for i, p in enumerate(prompts(9, high=20))]
    fixed = {"num_slots": 16, "fixed_shapes": True, "prefill_tokens": prefill}
    together = generate(engine_of(model, **fixed), asked)
    alone = [generate(engine_of(model, **fixed), [r])[0] for r in asked]
    for a, b in zip(together, alone, strict=True):
        assert all(torch.equal(a.rows[k], b.rows[k]) for k in a.rows)


@pytest.mark.parametrize("on_update", ["keep", "recompute"])
def test_new_weights_inside_a_completion(on_update):
    first, second = build_model(SIZES, VOCAB, seed=1), build_model(SIZES, VOCAB, seed=2)
    engine = engine_of(build_model(SIZES, VOCAB, seed=3), on_update=on_update)
    engine.load_params(ParamSet(1, model_params(first)))
    engine.submit([make_request(0, [5, 6, 7], seed=0, max_tokens=10)])
    for _ in range(4):
        engine.step()
    engine.load_params(ParamSet(2, model_params(second)))
    replies = []
    while engine.pending():
        replies += engine.step()
    rows = replies[0].rows
    assert rows["policy_version"].tolist() == [1] * 4 + [2] * 6
    full = [5, 6, 7, *rows["tokens"].tolist()]
    before = torch.log_softmax(forward(first, full), dim=-1)[2:6].gather(1, rows["tokens"][:4, None])[:, 0]
    torch.testing.assert_close(rows["logprob"][:4], before, atol=1e-5, rtol=0)
    after = torch.log_softmax(forward(second, full), dim=-1)[6:-1].gather(1, rows["tokens"][4:, None])[:, 0]
    gap = float((rows["logprob"][4:] - after).abs().max())
    assert gap < 1e-5 if on_update == "recompute" else gap > 1e-4, "recomputed keys are those of the new weights, kept ones not"


def test_snapshot_in_the_middle_of_a_prompt_and_of_a_recompute():
    model = build_model(SIZES, VOCAB, seed=1)
    make = lambda: engine_of(model, num_slots=3, prefill_tokens=4, on_update="recompute")  # noqa: E731
    first, second = make(), make()
    first.submit([make_request(i, p, seed=i, max_tokens=7) for i, p in enumerate(prompts(5, low=5, high=12))])
    for _ in range(6):
        first.step()
    first.load_params(ParamSet(1, model_params(model)))
    first.step()
    second.load_params(ParamSet(1, model_params(model)))
    second.restore(first.snapshot())
    while first.pending():
        for a, b in zip(first.step(), second.step(), strict=True):
            assert a.id == b.id
            assert all(torch.equal(a.rows[k], b.rows[k]) for k in a.rows)
    assert second.pending() == 0


def test_abort_of_the_row_that_holds_a_shared_prompt():
    model = build_model(SIZES, VOCAB, seed=1)
    engine = engine_of(model, num_slots=4, prefill_tokens=3)
    prompt = prompts(1, low=8, high=9)[0]
    asked = [make_request(i, prompt, seed=i, max_tokens=4) for i in range(3)]
    engine.submit(asked)
    engine.step()
    engine.abort([0])
    found = {}
    while engine.pending():
        found |= {r.id: r for r in engine.step()}
    assert sorted(found) == [1, 2]
    for i in (1, 2):
        alone = generate(engine_of(model), [asked[i]])[0]
        assert found[i].rows["tokens"].tolist() == alone.rows["tokens"].tolist()


def test_streaming_gives_the_tokens_as_they_come():
    model = build_model(SIZES, VOCAB, seed=1)
    whole = generate(engine_of(model), [make_request(0, [5], seed=2, max_tokens=9)])[0].rows["tokens"].tolist()
    parts = list(stream(engine_of(model), make_request(0, [5], seed=2, max_tokens=9)))
    assert len(parts) > 3
    assert [t for part in parts for t in part] == whole


def block_attention(turned, keys, values, blocks, *, scale):
    """What the Triton kernel does, by loops."""
    kv, heads = keys.shape[1], turned.shape[1] - keys.shape[1]
    out = torch.full((turned.shape[0], heads * keys.shape[3]), float("nan"))
    for first, size, slot, position in blocks.tolist():
        for i in range(size):
            for h in range(heads):
                k, v = keys[slot, h * kv // heads, : position + i + 1], values[slot, h * kv // heads, : position + i + 1]
                p = torch.softmax(k @ turned[first + i, h] * scale, dim=0)
                out[first + i, h * keys.shape[3] : (h + 1) * keys.shape[3]] = p @ v
    return out.nan_to_num(0.0)


@pytest.mark.parametrize("chunk", [8192, 70, 7])
def test_prompts_in_shapes_of_a_few_sizes_give_the_same_completions(chunk, monkeypatch):
    """The bookkeeping of a recorded prefill, with its kernel in plain torch."""
    from runnel.kernels.lm.triton import cache_kernels

    model = build_model(SIZES, VOCAB, seed=2)
    asked = [make_request(i, p, seed=i, max_tokens=4) for i, p in enumerate(prompts(9, low=2, high=60))]
    expected = generate(engine_of(model, num_slots=4), asked)
    monkeypatch.setattr(cache_kernels, "prefill_attention", block_attention)
    engine = engine_of(model, num_slots=4, prefill_tokens=chunk)
    engine._runner._prefill = engine._runner._prefill_graphed
    for a, b in zip(expected, generate(engine, asked), strict=True):
        assert a.rows["tokens"].tolist() == b.rows["tokens"].tolist()
        torch.testing.assert_close(a.rows["logprob"], b.rows["logprob"], atol=1e-5, rtol=0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("chunk", [8192, 70])
def test_a_cuda_engine_completes_as_the_cpu_does(chunk):
    """Recorded prefill and decode, rows that come and go, a group that shares its prompt."""
    asked = [make_request(i, p, seed=i, max_tokens=3 + 5 * (i % 4)) for i, p in enumerate(prompts(12, low=2, high=40))]
    asked += [make_request(20 + i, asked[3].rows["tokens"].tolist(), seed=50 + i, max_tokens=6) for i in range(5)]
    expected = generate(engine_of(build_model(SIZES, VOCAB, seed=2), num_slots=4), asked)
    engine = engine_of(build_model(SIZES, VOCAB, seed=2).cuda(), num_slots=4, prefill_tokens=chunk, window=3)
    for a, b in zip(expected, generate(engine, asked), strict=True):
        assert a.rows["tokens"].tolist() == b.rows["tokens"].tolist()
        torch.testing.assert_close(a.rows["logprob"], b.rows["logprob"], atol=1e-4, rtol=0)
    for request, reply in zip(asked, expected, strict=True):
        found = engine.logprobs(request.rows["tokens"], reply.rows["tokens"])
        torch.testing.assert_close(found, reply.rows["logprob"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("max_length", [64, 40])
def test_given_tokens_in_a_recorded_shape_that_is_longer_than_a_slot(max_length, monkeypatch):
    """What fills the shape up must not touch the row that is asked about: both lie in the spare slot."""
    from runnel.kernels.lm.triton import cache_kernels

    model = build_model(SIZES, VOCAB, seed=2)
    row = torch.tensor(prompts(1, low=max_length, high=max_length + 1)[0])
    plain, engine = (engine_of(model, num_slots=2, max_length=max_length) for _ in range(2))
    monkeypatch.setattr(cache_kernels, "prefill_attention", block_attention)
    engine._runner._prefill = engine._runner._prefill_graphed
    torch.testing.assert_close(engine.logprobs(row[:3], row[3:]), plain.logprobs(row[:3], row[3:]), atol=1e-5, rtol=0)
