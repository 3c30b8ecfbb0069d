"""Prefixes that the native engine keeps between turns, against plain forward passes over whole rows."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.core.contracts.inference import Reply, Request
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError
from runnel.llm.engines import runners
from runnel.llm.engines.choose import EngineConfig
from runnel.llm.engines.hf import HfEngine
from runnel.llm.engines.kept import LEAST_SHARED
from runnel.llm.engines.native import NativeEngine
from runnel.llm.engines.requests import generate, make_request
from runnel.llm.model.causal_lm import ModelConfig, build_model, model_params
from runnel.llm.model.pack import packed
from runnel.llm.model.tiny import tiny_config, tiny_model

SIZES = ModelConfig(layers=2, width=32, heads=4, kv_heads=2, inner=64, max_positions=128)
VOCAB = 40
LONGEST = 96


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@cache
def model_of(version: int) -> Any:
    """Each version has weights of its own."""
    return build_model(SIZES, VOCAB, seed=version)


def engine_of(version: int = 0, num_slots: int = 3, **options: Any) -> NativeEngine:
    engine = NativeEngine(build_model(SIZES, VOCAB, seed=99), num_slots=num_slots, max_length=LONGEST, eos_id=2, **options)
    engine.load_params(ParamSet(version, model_params(model_of(version))))
    return engine


def check(request: Request, reply: Reply, models: Any = model_of) -> None:
    """The reply is what a plain forward pass of the version of each token says: its log-probability, and that the request's
    random number falls on the token, but for rounding at a border."""
    prompt, tokens, versions = request.rows["tokens"], reply.rows["tokens"], reply.rows["policy_version"]
    uniforms = np.random.Generator(np.random.Philox(key=int(request.rows["seed"]))).random(int(request.rows["max_tokens"]))
    for version in versions.unique().tolist():
        with torch.no_grad():
            logits = models(version)(torch.cat((prompt, tokens))[None]).logits[0, len(prompt) - 1 : -1]
        logp = torch.log_softmax(logits.double(), dim=-1)
        mine = versions == version
        expected = logp.gather(1, tokens[:, None])[:, 0]
        torch.testing.assert_close(reply.rows["logprob"][mine].double(), expected[mine], atol=1e-4, rtol=0)
        after = logp.exp().cumsum(dim=-1).gather(1, tokens[:, None])[:, 0]
        uniform = torch.from_numpy(uniforms[: len(tokens)])
        assert bool(((uniform <= after + 1e-4) & (uniform >= after - expected.exp() - 1e-4))[mine].all())


def talk(
    engine: Any, num_turns: int, *, session: int | None = 0, told: int = 4, models: Any = model_of, first: int = 3
) -> list[Reply]:
    """A conversation: in each turn the engine is told `told` new tokens and replies with at most five."""
    row, replies = [first], []
    for turn in range(num_turns):
        row += [3 + (7 * turn + i) % (VOCAB - 3) for i in range(told)]
        request = make_request(turn, row, seed=turn, max_tokens=5, session=session)
        replies += generate(engine, [request])
        check(request, replies[-1], models)
        row = [*row, *replies[-1].rows["tokens"].tolist()]
    return replies


# ------------------------------------------------------------------------------------------------------------- counting
def test_a_conversation_costs_each_of_its_tokens_once():
    kept, whole = engine_of(), engine_of(keep_prefixes=False)
    replies, alone = talk(kept, 8), talk(whole, 8)
    lengths = [len(r.rows["tokens"]) for r in replies]
    prompts = [1 + 4 * (i + 1) + sum(lengths[:i]) for i in range(8)]
    # the newest token of a reply was drawn, but is not in the cache: it is computed with what comes after it
    assert [int(r.rows["num_prefilled"]) for r in replies] == [prompts[0], *[4 + 1] * 7]
    assert kept.num_prefilled == prompts[-1] - sum(lengths[:-1]) + 7
    assert kept.num_prefilled + kept.num_reused == sum(prompts)
    lengths = [len(r.rows["tokens"]) for r in alone]
    assert [int(r.rows["num_prefilled"]) for r in alone] == [1 + 4 * (i + 1) + sum(lengths[:i]) for i in range(8)]
    assert whole.num_reused == 0


def test_requests_without_a_session_keep_nothing_and_say_nothing():
    engine = engine_of()
    replies = talk(engine, 3, session=None)
    assert all("num_prefilled" not in r.rows for r in replies)
    assert (engine.num_reused, engine._kept.all) == (0, [])


def test_a_last_turn_and_an_aborted_answer_leave_nothing():
    engine = engine_of()
    generate(engine, [make_request(0, [5, 6, 7], seed=0, max_tokens=4, session=1)])
    assert [h.session for h in engine._kept.all] == [1]
    engine.abort([0])
    generate(engine, [make_request(1, [5, 6, 7], seed=0, max_tokens=4, session=1, last=True)])
    assert engine._kept.all == []
    assert engine.num_reused == 0


def test_siblings_and_a_common_beginning_are_computed_once():
    """A group with one prompt, some of whom come later, and another conversation with the same instructions."""
    engine, common = engine_of(num_slots=6), list(range(3, 3 + 2 * LEAST_SHARED))
    group = [make_request(i, [*common, 9], seed=i, max_tokens=6, session=i) for i in range(3)]
    late = make_request(3, [*common, 9], seed=3, max_tokens=6, session=3)
    other = make_request(4, [*common, 30, 31], seed=4, max_tokens=6, session=4)
    short = make_request(5, [*common[: LEAST_SHARED - 1], 39, 38], seed=5, max_tokens=6, session=5)
    engine.submit(group)
    replies = engine.step()
    engine.submit([late, other, short])
    while engine.pending():
        replies += engine.step()
    for request, reply in zip([*group, late, other, short], sorted(replies, key=lambda r: r.id), strict=True):
        check(request, reply)
    size = len(common)
    found = [int(r.rows["num_prefilled"]) for r in sorted(replies, key=lambda r: r.id)]
    assert found == [size + 1, 0, 0, 1, 2, LEAST_SHARED + 1]
    assert engine.num_prefilled + engine.num_reused == sum(len(r.rows["tokens"]) for r in [*group, late, other, short])


def test_a_wrong_session_costs_time_and_changes_nothing():
    engine = engine_of()
    for turn, start in enumerate([5, 5, 20, 5]):
        request = make_request(turn, list(range(start, start + 12)), seed=turn, max_tokens=5, session=7)
        reply = generate(engine, [request])[0]
        check(request, reply)
        assert int(reply.rows["num_prefilled"]) == [12, 1, 12, 12][turn]


def test_two_requests_of_one_session_at_once_both_go_on_from_its_prefix():
    engine = engine_of()
    first = make_request(0, [5, 6, 7, 8], seed=0, max_tokens=4, session=1)
    row = [5, 6, 7, 8, *generate(engine, [first])[0].rows["tokens"].tolist()]
    both = [make_request(1 + i, [*row, 9 + i], seed=1 + i, max_tokens=5, session=1) for i in range(2)]
    for request, reply in zip(both, generate(engine, both), strict=True):
        check(request, reply)
        assert int(reply.rows["num_prefilled"]) == 2
    assert len(engine._kept.all) == 1


def test_kept_prefixes_never_hold_up_requests_and_the_oldest_goes_first():
    engine = engine_of(num_slots=2)
    rows = {}
    for session in range(3):
        request = make_request(session, [10 + session] * 4, seed=session, max_tokens=3, session=session)
        rows[session] = [10 + session] * 4 + generate(engine, [request])[0].rows["tokens"].tolist()
    assert [h.session for h in engine._kept.all] == [1, 2]
    engine.submit([make_request(10 + i, [30 + i] * 3, seed=i, max_tokens=20) for i in range(2)])
    engine.step()
    assert (len(engine._running), engine._kept.all, engine.pending()) == (2, [], 2)


# ------------------------------------------------------------------------------------------------------------- versions
def test_new_weights_with_recompute_drop_what_was_kept():
    engine = engine_of(on_update="recompute")
    row = [5, 6, 7, *talk_once(engine, [5, 6, 7])]
    engine.load_params(ParamSet(1, model_params(model_of(1))))
    request = make_request(1, row, seed=1, max_tokens=5, session=1)
    reply = generate(engine, [request])[0]
    check(request, reply)
    assert int(reply.rows["num_prefilled"]) == len(row)


def talk_once(engine: Any, prompt: list[int], *, version: int = -1) -> list[int]:
    request = make_request(0, prompt, seed=0, max_tokens=5, session=1, version=version)
    tokens: list[int] = generate(engine, [request])[0].rows["tokens"].tolist()
    return tokens


@pytest.mark.parametrize("asks", ["exact", "another session", "rewritten"])
def test_keys_of_older_weights_are_for_the_next_turn_of_their_own_conversation_alone(asks):
    """An exact version, another conversation, and one whose history was rewritten are computed by the new weights alone."""
    engine, prompt = engine_of(), list(range(5, 5 + 2 * LEAST_SHARED))
    row = [*prompt, *talk_once(engine, prompt)]
    engine.load_params(ParamSet(1, model_params(model_of(1))))
    row = [*row[:-3], 39, 38, 37] if asks == "rewritten" else row
    version, session = 1 if asks == "exact" else -1, 2 if asks == "another session" else 1
    request = make_request(1, row, seed=1, max_tokens=5, session=session, version=version)
    reply = generate(engine, [request])[0]
    check(request, reply)
    assert int(reply.rows["num_prefilled"]) == len(row)


def test_with_keep_the_next_turn_uses_the_older_keys_as_transformers_would():
    engine, prompt = engine_of(), list(range(5, 16))
    row = [*prompt, *talk_once(engine, prompt)]
    engine.load_params(ParamSet(1, model_params(model_of(1))))
    reply = generate(engine, [make_request(1, [*row, 9, 8], seed=1, max_tokens=5, session=1)])[0]
    assert int(reply.rows["num_prefilled"]) == 3
    tokens = reply.rows["tokens"]
    with torch.no_grad():
        past = model_of(0)(torch.tensor([row[:-1]]), use_cache=True).past_key_values
        new = torch.tensor([[row[-1], 9, 8, *tokens.tolist()]])
        logp = torch.log_softmax(model_of(1)(new, past_key_values=past).logits[0, 2:-1], dim=-1)
    torch.testing.assert_close(reply.rows["logprob"], logp.gather(1, tokens[:, None])[:, 0], atol=1e-5, rtol=0)
    # keys of several versions stay with their conversation: another one with the same beginning computes its own
    other = make_request(2, [*row, 9, 7], seed=2, max_tokens=3, session=2)
    check(other, generate(engine, [other])[0])


@pytest.mark.parametrize("ended", [False, True])
def test_a_row_that_saw_two_versions_gives_nothing_to_others(ended):
    engine, prompt = engine_of(), list(range(5, 5 + 2 * LEAST_SHARED))
    engine.submit([make_request(0, prompt, seed=0, max_tokens=40, session=1)])
    engine.step()
    engine.load_params(ParamSet(1, model_params(model_of(1))))
    while ended and engine.pending():
        engine.step()
    request = make_request(1, [*prompt, 30], seed=1, max_tokens=3, session=2)
    engine.submit([request])
    replies = [reply for _ in range(8) for reply in engine.step()]
    check(request, next(r for r in replies if r.id == 1))
    assert engine.num_reused == 0


def test_rows_of_an_exact_version_take_no_older_keys_from_one_with_the_same_prompt():
    """Both wait together: the first may go on with older keys, the second not."""
    engine, prompt = engine_of(), list(range(5, 5 + 2 * LEAST_SHARED))
    row = [*prompt, *talk_once(engine, prompt), 9]
    engine.load_params(ParamSet(1, model_params(model_of(1))))
    mine = make_request(1, row, seed=1, max_tokens=3, session=1)
    exact = make_request(2, row, seed=2, max_tokens=3, session=2, version=1)
    replies = generate(engine, [mine, exact])
    check(exact, replies[1])
    assert [int(r.rows["num_prefilled"]) for r in replies] == [2, len(row)]


# -------------------------------------------------------------------------------------------------------- every runner
def test_without_compiled_loops_the_same_holds(monkeypatch):
    monkeypatch.setattr(runners, "loops", lambda *_: False)
    assert talk(engine_of(), 4)[-1].rows["num_prefilled"].tolist() == [5]


@pytest.mark.parametrize("family", ["gemma2", "bloom", "mamba"])
def test_families_that_run_through_their_own_modules(family):
    """Windows and keys alone go on from any position. A state cannot: such a model computes each turn whole, and says so."""
    from transformers import CONFIG_MAPPING

    model = tiny_model(tiny_config(CONFIG_MAPPING[family]()))
    reference = copy.deepcopy(model)
    engine = NativeEngine(model, num_slots=3, max_length=48, eos_id=-1)
    engine.load_params(ParamSet(0, model_params(model)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        replies = talk(engine, 4, models=lambda _: reference)
    said = [w for w in caught if "keeps nothing between two turns" in str(w.message)]
    assert len(said) == (1 if family == "mamba" else 0)
    assert replies[-1].rows["num_prefilled"].tolist() == ([4 * 4 + 3 * 5 + 1] if family == "mamba" else [5])


def test_the_hf_engine_takes_sessions_and_says_once_that_it_keeps_nothing():
    engine = HfEngine(build_model(SIZES, VOCAB, seed=0), num_slots=3, max_length=LONGEST, eos_id=2)
    engine.load_params(ParamSet(0, model_params(model_of(0))))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        replies = talk(engine, 3)
    assert len([w for w in caught if "hf engine keeps nothing" in str(w.message)]) == 1
    assert engine.num_prefilled == sum(int(r.rows["num_prefilled"]) for r in replies) > 3 * 5


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
@pytest.mark.parametrize("num_slots", [5, 12])
def test_on_a_gpu_decode_steps_over_more_rows_leave_kept_prefixes_alone(num_slots):
    model = build_model(SIZES, VOCAB, seed=99).cuda()
    packed(model, dtype=torch.float32, device="cuda")
    engine = NativeEngine(model, num_slots=num_slots, max_length=LONGEST, eos_id=2)
    engine.load_params(ParamSet(0, {n: p.cuda() for n, p in model_params(model_of(0)).items()}))
    rows, asked = {i: [5 + i, 6, 7 + 2 * i] for i in range(6)}, dict[int, Request]()
    for turn in range(6):
        for i in range(6):
            asked[i + 6 * turn] = make_request(i + 6 * turn, rows[i], seed=turn, max_tokens=3 + 2 * i, session=i)
        order = [[0, 1, 2, 3, 4, 5], [5, 0, 3], [1], [4, 2]] if turn % 2 else [[0, 1, 2], [3, 4, 5]]
        seen = set()
        for together in order:
            new = [asked[i + 6 * turn] for i in together if i not in seen]
            seen |= set(together)
            for request, reply in zip(new, generate(engine, new), strict=True):
                check(request, reply)
                rows[reply.id % 6] = [*rows[reply.id % 6], *reply.rows["tokens"].tolist(), 3 + turn]
    assert engine.num_reused > 0


# ------------------------------------------------------------------------------------------------------ bits and resume
def test_with_fixed_shapes_nothing_is_kept():
    engine = engine_of(fixed_shapes=True)
    talk(engine, 3)
    assert (engine.num_reused, engine._kept.all) == (0, [])
    with pytest.raises(ConfigError, match="use native"):
        EngineConfig(kind="vllm").deterministic()
    assert "fixed_shapes" in EngineConfig(fixed_shapes=True).unused()["keep_prefixes"]
    assert "keep_prefixes" in EngineConfig(kind="hf").unused()


def scripted(engine: NativeEngine, steps: int, rows: dict[int, list[int]], done: list[Reply]) -> None:
    """Some steps of four conversations on three slots; each reply is the beginning of its next prompt."""
    for _ in range(steps):
        for reply in engine.step():
            done.append(reply)
            rows[reply.id % 4] += [*reply.rows["tokens"].tolist(), 3 + reply.id % 30, 4]
            if len(rows[reply.id % 4]) < 40:
                session = reply.id % 4
                asked = make_request(reply.id + 4, rows[session], seed=reply.id + 4, max_tokens=7, session=session)
                engine.submit([asked])


@pytest.mark.parametrize("cut", [3, 8, 13, 21])
def test_a_restored_engine_goes_on_bit_for_bit_with_what_it_kept(cut):
    engine, done = engine_of(), list[Reply]()
    rows = {i: [5 + i, 6, 7 + 2 * i] for i in range(4)}
    engine.submit([make_request(i, row, seed=i, max_tokens=4 + i, session=i) for i, row in rows.items()])
    scripted(engine, cut, rows, done)
    twin, later = engine_of(version=1), list[Reply]()
    twin.load_params(ParamSet(0, model_params(model_of(0))))
    twin.restore(engine.snapshot())
    twin_rows, num = copy.deepcopy(rows), len(done)
    scripted(engine, 60, rows, done)
    scripted(twin, 60, twin_rows, later)
    assert engine.pending() == twin.pending() == 0
    assert engine.num_reused == twin.num_reused > 0
    assert [r.id for r in done[num:]] == [r.id for r in later]
    for a, b in zip(done[num:], later, strict=True):
        assert a.rows.keys() == b.rows.keys()
        assert all(torch.equal(a.rows[name], b.rows[name]) for name in a.rows)


# ------------------------------------------------------------------------------------------------------------ any order
@dataclass
class Talks:
    """Conversations in any order, beside aborts, restarts and new weights; every reply is checked."""

    recompute: bool
    wide: bool
    """Whether decode steps run over all slots, as on a GPU, where some of them hold prefixes."""
    engine: NativeEngine = field(init=False)
    version: int = 0
    rows: dict[int, list[int]] = field(default_factory=lambda: {i: [3 + i % 2] * 9 for i in range(5)})
    open: dict[int, tuple[int, Request]] = field(default_factory=dict)
    num: int = 0

    def __post_init__(self) -> None:
        self.engine = self.make()

    def make(self) -> NativeEngine:
        engine = engine_of(self.version, on_update="recompute" if self.recompute else "keep", prefill_tokens=11)
        if self.wide:
            engine._num_rows = lambda _: engine.num_slots  # type: ignore[method-assign]
        return engine

    def say(self, session: int, told: int) -> None:
        if any(s == session for s, _ in self.open.values()):
            return
        self.num += 1
        row = self.rows[session] = [*self.rows[session], *[3 + (self.num + i) % (VOCAB - 3) for i in range(told)]]
        version = -1 if self.recompute else self.version
        request = make_request(self.num, row, seed=self.num, max_tokens=1 + told, session=session or None, version=version)
        if len(row) + 1 + told > LONGEST:
            self.rows[session] = [4]
            return
        self.open[self.num] = session, request
        self.engine.submit([request])

    def step(self, session: int, times: int) -> None:
        for _ in range(times):
            for reply in self.engine.step():
                session, request = self.open.pop(reply.id)
                check(request, reply)
                self.rows[session] += reply.rows["tokens"].tolist()

    def abort(self, session: int, _: int) -> None:
        gone = [id for id, (s, _) in self.open.items() if s == session]
        self.engine.abort(gone)
        self.open = {id: x for id, x in self.open.items() if id not in gone}

    def rewrite(self, session: int, size: int) -> None:
        if all(s != session for s, _ in self.open.values()):
            self.rows[session] = [*self.rows[session][: 5 * size], 39]

    def restart(self, *_: int) -> None:
        state = self.engine.snapshot()
        self.engine = self.make()
        self.engine.restore(state)

    def learn(self, *_: int) -> None:
        if not self.recompute:
            self.finish()
        self.version = (self.version + 1) % 8
        self.engine.load_params(ParamSet(self.version, model_params(model_of(self.version))))

    def finish(self) -> None:
        for _ in range(300):
            self.step(0, 1)
        assert not self.open
        assert self.engine.pending() == 0


ACTIONS = st.sampled_from(["say"] * 5 + ["step"] * 3 + ["abort", "rewrite", "restart", "learn"])


@settings(max_examples=25, deadline=None)
@given(
    recompute=st.booleans(),
    wide=st.booleans(),
    script=st.lists(st.tuples(ACTIONS, st.integers(0, 4), st.integers(1, 6)), min_size=15, max_size=40),
)
def test_in_any_order_replies_are_those_of_plain_forward_passes(recompute, wide, script):
    talks = Talks(recompute, wide)
    for name, session, size in script:
        getattr(talks, name)(session, size)
    talks.finish()
    slots = [h.slot for h in talks.engine._kept.all]
    assert len(set(slots)) == len(slots) <= talks.engine.num_slots
