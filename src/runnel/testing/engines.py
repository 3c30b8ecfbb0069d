"""The contract of an engine, as a check that any engine's author can run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from runnel.core.batch import Batch
from runnel.core.protocols import ParamSet, Reply, Request


def check_engine(make_engine: Callable[[], Any], params: ParamSet, *, prompts: Sequence[Sequence[int]]) -> None:
    """Raise `AssertionError` with a reason if an engine breaks its contract.

    `make_engine` returns a fresh engine with room for at least two requests at once; `params` is a version to load;
    `prompts` are at least three token sequences that it can complete with eight tokens more.
    """
    _check_replies(make_engine(), params, prompts)
    _check_streams(make_engine, params, prompts)
    _check_order(make_engine(), params, prompts)
    _check_abort(make_engine(), params, prompts)
    _check_pause(make_engine(), params, prompts)
    _check_versions(make_engine(), params, prompts)
    _check_snapshot(make_engine, params, prompts)


def _request(id: int, tokens: Sequence[int], max_tokens: int = 8, seed: int | None = None, version: int = -1) -> Request:
    rows = Batch(
        tokens=torch.tensor(tokens, dtype=torch.int64),
        seed=torch.tensor([id if seed is None else seed], dtype=torch.int64),
        max_tokens=torch.tensor([max_tokens], dtype=torch.int64),
        temperature=torch.tensor([1.0]),
    )
    return Request(id, rows, version)


def _drain(engine: Any, limit: int = 1000) -> list[Reply]:
    """All replies, in the order in which they came."""
    replies: list[Reply] = []
    for _ in range(limit):
        replies += engine.step()
        if not engine.pending():
            return replies
    raise AssertionError(f"{engine.pending()} requests are pending after {limit} steps")


def _same(a: Reply, b: Reply) -> bool:
    return a.rows.keys() == b.rows.keys() and all(torch.equal(a.rows[k], b.rows[k]) for k in a.rows)


def _check_replies(engine: Any, params: ParamSet, prompts: Sequence[Sequence[int]]) -> None:
    engine.load_params(params)
    engine.submit([_request(i, p) for i, p in enumerate(prompts)])
    assert engine.pending() == len(prompts), "pending() must count what was submitted"
    replies = _drain(engine)
    assert sorted(r.id for r in replies) == list(range(len(prompts))), "each request must be answered exactly once"
    for reply in replies:
        m = reply.rows["tokens"].shape[0]
        assert 1 <= m <= 8, "a completion has at least one token and at most max_tokens"
        for name in ("logprob", "policy_version"):
            assert reply.rows[name].shape == (m,), f"{name} must have one entry a token"
        assert bool((reply.rows["logprob"] <= 0).all()), "log-probabilities are at most 0"
        assert bool((reply.rows["policy_version"] == params.version).all()), "policy_version must be the loaded one"
        assert bool(reply.rows["terminated"][0]) or m == 8, "a completion ends by eos or at max_tokens"
    assert engine.step() == [], "an engine without requests has nothing to answer"


def _check_streams(make_engine: Callable[[], Any], params: ParamSet, prompts: Sequence[Sequence[int]]) -> None:
    """A request's tokens are those of its seed, whoever runs beside it."""
    alone, crowd = make_engine(), make_engine()
    for engine in (alone, crowd):
        engine.load_params(params)
    alone.submit([_request(0, prompts[0], seed=5)])
    crowd.submit([_request(1, prompts[1]), _request(0, prompts[0], seed=5), _request(2, prompts[2])])
    one = _drain(alone)[0]
    other = next(r for r in _drain(crowd) if r.id == 0)
    assert one.rows["tokens"].tolist() == other.rows["tokens"].tolist(), "tokens must not depend on neighbours"


def _check_order(engine: Any, params: ParamSet, prompts: Sequence[Sequence[int]]) -> None:
    engine.load_params(params)
    engine.submit([_request(0, prompts[0], max_tokens=8, seed=_long_seed(engine, prompts[0]))])
    engine.step()
    engine.submit([_request(1, prompts[1], max_tokens=1)])
    assert [r.id for r in _drain(engine)] == [1, 0], "a late short request must not wait for an early long one"


def _long_seed(engine: Any, prompt: Sequence[int]) -> int:
    """A seed whose completion is longer than four tokens, so that there is something to overtake."""
    for seed in range(100):
        engine.submit([_request(0, prompt, seed=seed)])
        if _drain(engine)[0].rows["tokens"].shape[0] > 4:
            return seed
    raise AssertionError("no seed of 100 gives a completion of more than four tokens; give another prompt or model")


def _check_abort(engine: Any, params: ParamSet, prompts: Sequence[Sequence[int]]) -> None:
    engine.load_params(params)
    seed = _long_seed(engine, prompts[0])
    engine.submit([_request(0, prompts[0], seed=seed), _request(1, prompts[1])])
    engine.step()
    engine.abort([0])
    assert 0 not in {r.id for r in _drain(engine)}, "an aborted request must not be answered"
    engine.submit([_request(2, prompts[2])])
    engine.abort([2, 99])
    assert engine.pending() == 0, "abort must remove a waiting request, and unknown ids change nothing"


def _check_pause(engine: Any, params: ParamSet, prompts: Sequence[Sequence[int]]) -> None:
    engine.load_params(params)
    engine.submit([_request(0, prompts[0], max_tokens=1)])
    engine.pause()
    assert engine.step() == [], "a paused engine answers nothing"
    engine.resume()
    assert len(_drain(engine)) == 1, "a resumed engine goes on"


def _check_versions(engine: Any, params: ParamSet, prompts: Sequence[Sequence[int]]) -> None:
    engine.load_params(params)
    seed = _long_seed(engine, prompts[0])
    engine.submit([_request(0, prompts[0], seed=seed)])
    engine.step()
    engine.step()
    engine.load_params(ParamSet(params.version + 1, params.params, shared=params.shared))
    versions = _drain(engine)[0].rows["policy_version"].tolist()
    first, later = params.version, params.version + 1
    assert versions[:2] == [first] * 2, "tokens before a change of parameters carry the version that made them"
    assert versions[2:] == [later] * (len(versions) - 2), "tokens after a change of parameters carry the new version"
    engine.submit([_request(1, prompts[1], max_tokens=1, version=params.version + 2)])
    assert engine.step() == [], "a request for an exact version waits for it"
    engine.load_params(ParamSet(params.version + 2, params.params, shared=params.shared))
    assert [r.version for r in _drain(engine)] == [params.version + 2], "a request is answered by the version it asks for"


def _check_snapshot(make_engine: Callable[[], Any], params: ParamSet, prompts: Sequence[Sequence[int]]) -> None:
    engine, resumed = make_engine(), make_engine()
    engine.load_params(params)
    engine.submit([_request(i, p) for i, p in enumerate(prompts)])
    engine.step()
    engine.step()
    state = engine.snapshot()
    expected = _drain(engine) if engine.pending() else []
    resumed.load_params(params)
    resumed.restore(state)
    found = _drain(resumed) if resumed.pending() else []
    assert len(expected) == len(found), "a restored engine must answer what the first one would"
    assert all(_same(a, b) for a, b in zip(expected, found, strict=True)), "a restored engine must go on bit for bit"
