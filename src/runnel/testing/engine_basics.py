"""Checks of an engine's requests: one reply each, whatever else runs; abort, pause, versions and snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

from runnel.core.contracts.inference import Reply
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import DataError, RunnelError
from runnel.testing.engine_case import MAX_TOKENS, EngineCase, answer, ask, drain, long_seed, tokens_of
from runnel.testing.expect import raises


def check_replies(case: EngineCase) -> None:
    """Each request gets one reply, with rows of the right shape."""
    with case.engine() as engine:
        engine.submit([ask(i, p) for i, p in enumerate(case.prompts)])
        assert engine.pending() == len(case.prompts), "pending() must count what was submitted"
        replies = drain(engine)
        assert sorted(r.id for r in replies) == list(range(len(case.prompts))), "each request must be answered exactly once"
        for reply in replies:
            _check_rows(reply, case.params.version, MAX_TOKENS)
        assert engine.step() == [], "an engine without requests has nothing to answer"


def _check_rows(reply: Reply, version: int, limit: int) -> None:
    m = reply.rows["tokens"].shape[0]
    assert 1 <= m <= limit, "a completion has at least one token and at most max_tokens"
    for name in ("logprob", "policy_version"):
        assert reply.rows[name].shape == (m,), f"{name} must have one entry a token"
    assert reply.rows["tokens"].dtype == reply.rows["policy_version"].dtype == torch.int64
    assert reply.rows["logprob"].dtype == torch.float32
    assert reply.rows["terminated"].shape == (1,)
    assert bool((reply.rows["logprob"] <= 0).all()), "log-probabilities are at most 0"
    assert bool((reply.rows["policy_version"] == version).all()), "policy_version must be the loaded one"
    assert bool(reply.rows["terminated"][0]) or m == limit, "a completion ends by eos or at max_tokens"


def check_limits(case: EngineCase) -> None:
    """`max_tokens` is each request's own."""
    with case.engine() as engine:
        limits = [1, 2, 5, MAX_TOKENS]
        for limit, reply in zip(
            limits, answer(engine, [ask(i, case.prompts[0], m) for i, m in enumerate(limits)]), strict=True
        ):
            _check_rows(reply, case.params.version, limit)


def check_seeds(case: EngineCase) -> None:
    """The same seed gives the same completion, in a fresh engine and beside any requests. Other seeds give others."""
    with case.engine() as engine:
        alone = answer(engine, [ask(0, case.prompts[0], seed=5)])[0]
        many = answer(engine, [ask(i, case.prompts[0], seed=100 + i) for i in range(16)])
    with case.engine() as engine:
        asked = [ask(1, case.prompts[1]), ask(0, case.prompts[0], seed=5), ask(2, case.prompts[2])]
        crowd = answer(engine, asked)[1]
    assert tokens_of(alone) == tokens_of(crowd), "tokens must not depend on neighbours"
    assert len({tuple(tokens_of(r)) for r in many}) > 1, "sixteen seeds gave one completion: nothing is sampled"


def check_order(case: EngineCase) -> None:
    """Continuous batching: a short request does not wait for a long one."""
    with case.engine() as engine:
        engine.submit([ask(0, case.prompts[0], seed=long_seed(engine, case.prompts[0]))])
        engine.step()
        engine.submit([ask(1, case.prompts[1], max_tokens=1)])
        assert [r.id for r in drain(engine)] == [1, 0], "a late short request must not wait for an early long one"


def check_refusals(case: EngineCase) -> None:
    """A request that can never be answered is refused by `submit`, with all others of that call."""
    with case.engine() as engine:
        long = [1] * engine.max_length
        for bad in (ask(0, long), ask(0, []), ask(0, case.prompts[0], max_tokens=0)):
            both = [ask(1, case.prompts[0]), bad]
            raises(DataError, partial(engine.submit, both), "a request that cannot fit")
            assert engine.pending() == 0, "a refused call of submit must leave nothing behind"


def check_abort(case: EngineCase) -> None:
    """Waiting and running requests can be aborted, and their room is free again."""
    with case.engine() as engine:
        seed = long_seed(engine, case.prompts[0])
        engine.submit([ask(0, case.prompts[0], seed=seed), ask(1, case.prompts[1])])
        engine.step()
        engine.abort([0])
        assert 0 not in {r.id for r in drain(engine)}, "an aborted request must not be answered"
        engine.submit([ask(2, case.prompts[2])])
        engine.abort([2, 99])
        assert engine.pending() == 0, "abort must remove a waiting request, and unknown ids change nothing"
        again = answer(engine, [ask(i, case.prompts[0], max_tokens=2) for i in range(20, 32)])
        assert len(again) == 12, "room of aborted requests must be free again"


def check_pause(case: EngineCase) -> None:
    """`pause` stops all work, and `resume` goes on without a difference."""
    with case.engine() as engine:
        seed = long_seed(engine, case.prompts[0])
        expected = answer(engine, [ask(0, case.prompts[0], seed=seed)])[0]
        engine.submit([ask(0, case.prompts[0], seed=seed)])
        engine.step()
        engine.pause()
        assert engine.step() == [], "a paused engine answers nothing"
        assert engine.pending() == 1, "what is running stays"
        engine.resume()
        found = drain(engine)
        assert len(found) == 1, "a resumed engine goes on"
        assert case.same(expected, found[0]), "a pause must not change a completion"


def check_versions(case: EngineCase) -> None:
    """Tokens carry the version that sampled them. A request for an exact version waits for it."""
    version, prompts = case.params.version, case.prompts
    with case.engine() as engine:
        seed = long_seed(engine, prompts[0])
        engine.submit([ask(0, prompts[0], seed=seed)])
        engine.step()
        engine.step()
        engine.load_params(case.renamed(version + 1))
        versions = drain(engine)[0].rows["policy_version"].tolist()
        cut = versions.index(version + 1) if version + 1 in versions else len(versions)
        assert 0 < cut < len(versions), "parameters that arrive between two steps must be used for the tokens that follow"
        assert versions == [version] * cut + [version + 1] * (len(versions) - cut), "versions inside a sample must be in order"
        engine.submit([ask(1, prompts[1], max_tokens=1, version=version + 2)])
        assert engine.step() == [], "a request for an exact version waits for it"
        engine.load_params(case.renamed(version + 2))
        assert [r.version for r in drain(engine)] == [version + 2], "a request is answered by the version it asks for"


def check_exact_version_held(case: EngineCase) -> None:
    """A running request for an exact version never gets another one."""
    version = case.params.version
    with case.engine() as engine:
        seed = long_seed(engine, case.prompts[0])
        engine.submit([ask(0, case.prompts[0], seed=seed, version=version)])
        engine.step()
        raises(DataError, lambda: engine.load_params(case.renamed(version + 1)), "a version under an exact request")
        assert set(drain(engine)[0].rows["policy_version"].tolist()) == {version}


def check_snapshot(case: EngineCase) -> None:
    """A restored engine gives the replies that the first one would have given."""
    with case.engine() as engine:
        engine.submit([ask(i, p) for i, p in enumerate(case.prompts)])
        engine.step()
        engine.step()
        state = engine.snapshot()
        expected = drain(engine) if engine.pending() else []
    with case.engine() as resumed:
        resumed.restore(state)
        found = drain(resumed) if resumed.pending() else []
    assert {r.id for r in expected} == {r.id for r in found}, "a restored engine must answer what the first one would"
    ordered = {r.id: r for r in found}
    word = "bit for bit" if case.exact else "with the same tokens"
    assert all(case.same(a, ordered[a.id]) for a in expected), f"a restored engine must go on {word}"


def check_wrong_params(case: EngineCase) -> None:
    """Parameters with other names are refused, and the engine goes on with its present ones."""
    names = list(case.params.params)
    missing = ParamSet(case.params.version + 1, {n: case.params.params[n] for n in names[1:]}, shared=case.params.shared)
    with case.engine() as engine:
        expected = answer(engine, [ask(0, case.prompts[0])])[0]
        raises(RunnelError, lambda: engine.load_params(missing), "parameters with a name missing")
        assert case.same(expected, answer(engine, [ask(0, case.prompts[0])])[0]), "refused parameters must change nothing"


BASICS: Mapping[str, Callable[[EngineCase], None]] = {
    "replies": check_replies,
    "limits": check_limits,
    "seeds": check_seeds,
    "order": check_order,
    "refusals": check_refusals,
    "abort": check_abort,
    "pause": check_pause,
    "versions": check_versions,
    "exact version": check_exact_version_held,
    "snapshot": check_snapshot,
}
"""Properties by name: requests, versions and state."""
