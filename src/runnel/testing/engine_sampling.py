"""Checks of an engine's sampling: limits, stops, and log-probabilities that are true.

Log-probabilities are compared with a plain forward pass, where the caller gives one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from runnel.core.contracts.inference import Reply
from runnel.core.errors import DataError
from runnel.llm.engines.requests import SamplingConfig, stream
from runnel.testing.engine_case import MAX_TOKENS, EngineCase, answer, ask, drain, long_seed, tokens_of
from runnel.testing.expect import raises

SLACK = 1e-4
"""Relative tolerance for rounding where a token lies at the edge of a limit."""
NUM_SEEDS = 24


def check_greedy(case: EngineCase) -> None:
    """Temperature 0 and top_k 1 take the likeliest token, whatever the seed."""
    with case.engine() as engine:
        greedy = answer(engine, [ask(i, case.prompts[0], sampling=SamplingConfig(0.0)) for i in (1, 2)])
        only = answer(engine, [ask(3, case.prompts[0], sampling=SamplingConfig(1.3, top_k=1))])[0]
    assert tokens_of(greedy[0]) == tokens_of(greedy[1]), "greedy completions must not depend on the seed"
    assert tokens_of(only) == tokens_of(greedy[0]), "top_k = 1 must be greedy"
    assert bool((only.rows["sampling_logprob"].abs() <= case.tolerance).all()), "a choice among one token has probability 1"
    if case.logprobs is not None:
        reference = case.reference(case.params.params, case.prompts[0], tokens_of(greedy[0]), 1.0)
        best, own = reference.max(dim=-1).values, reference.gather(1, greedy[0].rows["tokens"][:, None])[:, 0]
        assert bool((best - own <= SLACK).all()), "a greedy token must be the model's likeliest"


def check_logprobs(case: EngineCase) -> None:
    """`logprob` is that of the model at the sampling temperature."""
    if case.logprobs is None:
        return
    with case.engine() as engine:
        for heat in (1.0, 0.5, 2.0, 0.0):
            asked = [ask(i, p, sampling=SamplingConfig(heat)) for i, p in enumerate(case.prompts)]
            for prompt, reply in zip(case.prompts, answer(engine, asked), strict=True):
                _check_logprob(case, prompt, reply, heat or 1.0)


def _check_logprob(
    case: EngineCase, prompt: Sequence[int], reply: Reply, heat: float, params: Mapping[str, Tensor] | None = None
) -> None:
    reference = case.reference(params or case.params.params, prompt, tokens_of(reply), heat)
    own = reference.gather(1, reply.rows["tokens"][:, None])[:, 0]
    error = float((own - reply.rows["logprob"].double()).abs().max())
    assert error <= case.tolerance, f"logprob is off by {error:.1e} at temperature {heat}: more than {case.tolerance:.0e}"


def check_truncation(case: EngineCase) -> None:
    """Tokens lie inside the limits. `logprob` is from before the limits, `sampling_logprob` from inside them."""
    limits = (SamplingConfig(1.5, top_k=3), SamplingConfig(1.5, top_p=0.5), SamplingConfig(1.5, min_p=0.4))
    with case.engine() as engine:
        for sampling in limits:
            asked = [ask(i, case.prompts[i % 3], sampling=sampling) for i in range(NUM_SEEDS)]
            for request, reply in zip(asked, answer(engine, asked), strict=True):
                _check_limited(case, request.rows["tokens"].tolist(), reply, sampling)


def _check_limited(case: EngineCase, prompt: list[int], reply: Reply, sampling: SamplingConfig) -> None:
    assert "sampling_logprob" in reply.rows, "with top_k, top_p or min_p a reply must carry sampling_logprob"
    sampled, logprob = reply.rows["sampling_logprob"].double(), reply.rows["logprob"].double()
    assert bool((sampled >= logprob - case.tolerance).all()), "a token is at least as likely inside the limits as before them"
    assert bool((sampled <= case.tolerance).all()), "log-probabilities are at most 0"
    if case.logprobs is None:
        return
    _check_logprob(case, prompt, reply, sampling.temperature)
    reference = case.reference(case.params.params, prompt, tokens_of(reply), sampling.temperature).exp()
    for probs, token, own, inside in zip(reference, tokens_of(reply), logprob, sampled, strict=True):
        assert bool(allowed(probs, sampling, 1 + SLACK)[token]), f"token {token} lies outside of {sampling}"
        mass = [float(probs[allowed(probs, sampling, edge)].sum().log()) for edge in (1.0, 1 - SLACK, 1 + SLACK)]
        assert any(abs(float(own - inside) - m) <= 2 * case.tolerance for m in mass), (
            f"sampling_logprob must be logprob less the log of what {sampling} allows"
        )


def allowed(probs: Tensor, sampling: SamplingConfig, edge: float) -> Tensor:
    """Tokens `[vocabulary]` that one limit allows. An `edge` above 1 includes those at the edge.

    >>> probs = torch.tensor([0.5, 0.3, 0.2])
    >>> allowed(probs, SamplingConfig(top_p=0.6), 1.0).tolist(), allowed(probs, SamplingConfig(min_p=0.5), 1.0).tolist()
    ([True, True, False], [True, True, False])
    """
    order = probs.argsort(descending=True)
    before = torch.zeros_like(probs)
    before[order] = probs[order].cumsum(0) - probs[order]
    least = sampling.min_p * probs.max()
    if sampling.top_k:
        least = torch.maximum(least, probs[order[sampling.top_k - 1]])
    return (probs * edge >= least) & ((before < sampling.top_p * edge) if sampling.top_p < 1 else (probs >= 0))


def check_distribution(case: EngineCase) -> None:
    """First tokens of many seeds follow the model: their mean log-probability is minus its entropy."""
    if case.logprobs is None:
        return
    num = 200
    with case.engine() as engine:
        replies = answer(engine, [ask(i, case.prompts[0], max_tokens=1, seed=1000 + i) for i in range(num)])
    logp = case.reference(case.params.params, case.prompts[0], [0], 1.0)[0]
    mean = float((logp.exp() * logp).sum())
    deviation = float((logp.exp() * (logp - mean) ** 2).sum().sqrt())
    found = sum(float(r.rows["logprob"]) for r in replies) / num
    assert abs(found - mean) <= 4 * deviation / num**0.5 + case.tolerance, (
        f"the mean log-probability of {num} first tokens is {found:.3f}; the model's distribution has {mean:.3f}"
    )


def check_stop_tokens(case: EngineCase) -> None:
    """A stop token ends a completion and is part of it."""
    with case.engine() as engine:
        seed = long_seed(engine, case.prompts[0])
        whole = tokens_of(answer(engine, [ask(0, case.prompts[0], seed=seed)])[0])
        stop = SamplingConfig(stop_tokens=(whole[2],))
        reply = answer(engine, [ask(0, case.prompts[0], seed=seed, sampling=stop)])[0]
        cut = whole[: whole.index(whole[2]) + 1]
        assert tokens_of(reply) == cut, "a completion ends behind its first stop token"
        assert bool(reply.rows["terminated"][0]), "a completion that a stop token ends is terminated"
        limited = answer(engine, [ask(0, case.prompts[0], seed=seed, max_tokens=2)])[0]
        assert not bool(limited.rows["terminated"][0]), "one that max_tokens ends is not terminated"


def check_stop_texts(case: EngineCase) -> None:
    """A stop text ends a completion as soon as it is complete, also where it spans several tokens."""
    if case.decode is None:
        return
    with case.engine() as engine:
        seed = long_seed(engine, case.prompts[0])
        whole = tokens_of(answer(engine, [ask(0, case.prompts[0], seed=seed)])[0])
        text = case.decode(whole[1:4])
        end = next(i for i in range(1, len(whole) + 1) if text in case.decode(whole[:i]))
        stop = SamplingConfig(stop=("never seen", text))
        reply = answer(engine, [ask(0, case.prompts[0], seed=seed, sampling=stop)])[0]
        assert tokens_of(reply) == whole[:end], "a completion ends behind the token that completes a stop text"
        assert bool(reply.rows["terminated"][0]), "a completion that a stop text ends is terminated"


def check_streaming(case: EngineCase) -> None:
    """`so_far` returns a running completion's tokens, never one that is removed later."""
    with case.engine() as engine:
        seed = long_seed(engine, case.prompts[0])
        whole = tokens_of(answer(engine, [ask(0, case.prompts[0], seed=seed)])[0])
        made = engine.num_tokens
        pieces = list(stream(engine, ask(0, case.prompts[0], seed=seed)))
        assert [t for piece in pieces for t in piece] == whole, "the pieces of a stream must be the completion"
        assert len(pieces) > 1, "a stream must show tokens before the end"
        assert engine.num_tokens - made == len(whole), "num_tokens counts each token once"
        engine.submit([ask(1, case.prompts[0], seed=seed), ask(2, case.prompts[1], version=case.params.version + 9)])
        engine.step()
        assert engine.so_far(1) == whole[: len(engine.so_far(1))], "so_far must be the beginning of the completion"
        assert engine.so_far(2) == [], "a waiting request has no tokens"
        engine.abort([2])
        drain(engine)


def check_new_weights(case: EngineCase) -> None:
    """New parameters are used: log-probabilities become those of the new model, and with the old parameters the old ones."""
    version = case.params.version
    with case.engine() as engine:
        first = answer(engine, [ask(0, case.prompts[0])])[0]
        seed = long_seed(engine, case.prompts[0])
        engine.submit([ask(1, case.prompts[0], seed=seed)])
        engine.step()
        kept = engine.so_far(1)
        other = case.others(version + 1)
        engine.load_params(other)
        running = drain(engine)[0]
        assert tokens_of(running)[: len(kept)] == kept, "tokens that were made stay when weights change in flight"
        versions = running.rows["policy_version"].tolist()
        assert versions == [version] * len(kept) + [version + 1] * (len(versions) - len(kept))
        fresh = answer(engine, [ask(0, case.prompts[0])])[0]
        assert not torch.equal(first.rows["logprob"], fresh.rows["logprob"]), "new weights must change log-probabilities"
        if case.logprobs is not None:
            _check_logprob(case, case.prompts[0], fresh, 1.0, other.params)
        engine.load_params(case.renamed(version + 2))
        again = answer(engine, [ask(0, case.prompts[0])])[0]
        assert tokens_of(again) == tokens_of(first), "the old weights must give the old completion again"


def check_given_tokens(case: EngineCase) -> None:
    """`logprobs` returns those of any tokens under the present weights, and does not affect running requests."""
    version, prompts = case.params.version, case.prompts
    with case.engine() as engine:
        seed = long_seed(engine, prompts[0])
        alone = answer(engine, [ask(0, prompts[0], seed=seed), ask(1, prompts[1])])
        engine.submit([ask(0, prompts[0], seed=seed), ask(1, prompts[1])])
        replies = engine.step()
        tokens, made = alone[0].rows["tokens"], engine.num_tokens
        found = engine.logprobs(torch.tensor(prompts[0]), tokens)
        assert found.shape == tokens.shape, "logprobs must have one entry a token"
        assert (found.dtype, found.device.type) == (torch.float32, "cpu")
        assert engine.num_tokens == made, "num_tokens counts tokens that were made, not those that were given"
        gap = float((found - alone[0].rows["logprob"]).abs().max())
        assert gap <= case.tolerance, f"logprobs of a completion's own tokens differ from the completion's by {gap:.2g}"
        again = sorted([*replies, *drain(engine)], key=lambda r: r.id)
        assert all(case.same(a, b) for a, b in zip(alone, again, strict=True)), "logprobs must not disturb who is running"
        row = torch.tensor([1 + i % 7 for i in range(engine.max_length)])
        full = engine.logprobs(row[:1], row[1:])
        assert full.shape == (engine.max_length - 1,), "a row may be as long as max_length"
        if case.logprobs is not None:
            other = case.others(version + 1)
            engine.load_params(other)
            for params, now in ((case.params.params, full), (other.params, engine.logprobs(row[:1], row[1:]))):
                expected = case.reference(params, row[:1].tolist(), row[1:].tolist(), 1.0).gather(1, row[1:, None])[:, 0]
                gap = float((now - expected).abs().max())
                assert gap <= 4 * case.tolerance, f"logprobs of given tokens are off by {gap:.2g}"
        for prompt, rest in ((row, row[:1]), (row[:0], row[:1]), (row[:1], row[:0])):
            raises(DataError, partial(engine.logprobs, prompt, rest), "a row that cannot fit")


def check_close(case: EngineCase) -> None:
    """`close` may be called at any time, and twice."""
    with case.engine() as engine:
        engine.submit([ask(0, case.prompts[0], MAX_TOKENS)])
        engine.step()
        engine.close()


SAMPLING: Mapping[str, Callable[[EngineCase], None]] = {
    "greedy": check_greedy,
    "logprob": check_logprobs,
    "truncation": check_truncation,
    "distribution": check_distribution,
    "stop tokens": check_stop_tokens,
    "stop texts": check_stop_texts,
    "streaming": check_streaming,
    "new weights": check_new_weights,
    "given tokens": check_given_tokens,
    "close": check_close,
}
"""Properties by name: distributions, stops, streaming, weights, the end."""
