"""The weight_check that a token learner keeps, and what it proves of every version."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from made_tokens import VOCAB, demos, group

from runnel.core.contracts.learning import HasWeightCheck
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import RunnelError
from runnel.core.records import Batch
from runnel.core.weight_check import MAX_TOKENS
from runnel.flow.params import load
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.algorithms.sft import SupervisedFineTuning
from runnel.llm.engines.hf import HfEngine
from runnel.llm.engines.native import NativeEngine
from runnel.llm.learning.drift import ENOUGH, Canary
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.model.causal_lm import ModelConfig, build_model
from runnel.llm.model.lora import LoraConfig

SIZES = ModelConfig(layers=2, width=16, heads=2, kv_heads=1, inner=32, max_positions=64)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def learner_of(seed: int = 0, **changes) -> TokenLearner:
    config = TokenLearnerConfig(**{"max_mismatch": 1e-5, "lr": 1e-2, "warmup_updates": 0, **changes})
    algorithms = {"rollouts": GRPO(GRPOConfig(), channels={"exact": 1.0}), "demos": SupervisedFineTuning()}
    return TokenLearner(config, build_model(SIZES, VOCAB, seed=seed), algorithms=algorithms)


def advance(learner: TokenLearner, seed: int = 0, version: int = 999) -> None:
    """An update on rows of a version of nobody, so that their made-up log-probabilities are not compared."""
    rng = np.random.default_rng(seed)
    learner.update(learner.prepare({"rollouts": [group(rng, [1.0, 0.0, 0.5], version=version)]}, progress=0.0))


def batch_of(*rows: tuple[int, list[int]]) -> Batch:
    """Rows of so many prompt tokens, then runs of sampled tokens and of others in turn."""
    made, lengths = [], []
    for prompt, runs in rows:
        flags = [-1] * prompt
        for i, size in enumerate(runs):
            flags += [5 if i % 2 == 0 else -1] * size
        made += flags
        lengths.append(len(flags))
    length = torch.tensor(lengths)
    tokens = torch.arange(len(made))
    fields = {"logprob": torch.zeros(len(made)), "policy_version": torch.tensor(made)}
    return Batch(tokens=tokens, row_length=length, row_start=length.cumsum(0) - length, **fields)


def taken(batch: Batch) -> tuple[list[int], list[int]]:
    weight_check = Canary()
    weight_check.take(batch)
    state = weight_check.state_dict()
    return state["prompt"].tolist(), state["tokens"].tolist()


def test_the_first_row_with_enough_sampled_tokens() -> None:
    prompt, tokens = taken(batch_of((2, [3]), (4, [ENOUGH]), (1, [ENOUGH + 9])))
    assert prompt == [5, 6, 7, 8]
    assert tokens == list(range(9, 9 + ENOUGH))
    assert taken(batch_of((2, [3]), (2, [5]), (2, [4])))[1] == list(range(7, 12)), "else the one with most"


def test_long_rows_are_cut_and_another_speaker_ends_it() -> None:
    prompt, tokens = taken(batch_of((100, [100])))
    assert (prompt[0], prompt[-1], tokens[0], len(prompt) + len(tokens)) == (84, 99, 100, MAX_TOKENS)
    assert taken(batch_of((3, [4, 2, 20])))[1] == [3, 4, 5, 6]
    assert taken(batch_of((0, [4]))) == ([0], [1, 2, 3])


def test_it_is_of_the_last_batch_and_never_of_rows_that_no_engine_made() -> None:
    weight_check = Canary()
    demonstrated = batch_of((2, [3]))
    del demonstrated["logprob"]
    for batch in (batch_of((5, [])), batch_of((0, [1])), demonstrated):
        weight_check.take(batch)
        assert weight_check.state_dict() == {"prompt": None, "tokens": None}
    weight_check.take(batch_of((9, [ENOUGH])))
    weight_check.take(batch_of((2, [3])))
    weight_check.take(demonstrated)
    assert weight_check.state_dict()["tokens"].tolist() == [2, 3, 4]


def test_a_learner_has_no_proof_before_it_has_seen_an_engines_tokens() -> None:
    learner = learner_of()
    assert isinstance(learner, HasWeightCheck)
    assert learner.weight_check() is None
    learner.update(learner.prepare({"demos": [demos(np.random.default_rng(0), 2)]}, progress=0.0))
    assert learner.weight_check() is None
    advance(learner)
    assert learner.weight_check() is not None


@pytest.mark.parametrize("lora", [0, 4])
@pytest.mark.parametrize(("precision", "most"), [("float32", 1e-10), ("bfloat16", 1e-3)])
@pytest.mark.parametrize("kind", [NativeEngine, HfEngine])
def test_an_engine_with_the_published_weights_agrees_with_every_version(kind, precision, most, lora) -> None:
    learner = learner_of(precision=precision, max_mismatch=most, lora=LoraConfig(rank=lora))
    seed = 0 if lora else 5  # a version of adapters stands beside the weights that everyone builds from the config
    model = build_model(SIZES, VOCAB, seed=seed).to(torch.bfloat16 if precision == "bfloat16" else torch.float32)
    engine = kind(model, num_slots=2, max_length=32, eos_id=2)
    seen = []
    for version in range(1, 4):
        advance(learner, seed=version)
        weight_check = learner.weight_check()
        (event,) = load(engine, ParamSet(version, learner.params(), weight_check=weight_check))
        assert (event["kind"], event["version"]) == ("proof", version)
        assert 0 <= event["metrics"]["mismatch/canary_kl"] <= most
        seen.append(weight_check.logprobs.tolist())
    assert len({tuple(s) for s in seen}) == 3, "another version says something else"


def test_weights_that_stayed_behind_are_noticed() -> None:
    learner, engine = learner_of(), NativeEngine(build_model(SIZES, VOCAB, seed=5), num_slots=2, max_length=32, eos_id=2)
    advance(learner)
    old = {name: value.clone() for name, value in learner.params().items()}
    load(engine, ParamSet(1, old, weight_check=learner.weight_check()))
    for _ in range(3):
        advance(learner)
    name = "model.embed_tokens.weight"
    with pytest.raises(RunnelError, match="version 4 disagrees with the learner"):
        load(engine, ParamSet(4, {**learner.params(), name: old[name]}, weight_check=learner.weight_check()))
    load(engine, ParamSet(4, learner.params(), weight_check=learner.weight_check()))


def test_a_restored_learner_proves_the_same_and_older_states_have_none() -> None:
    one, other = learner_of(), learner_of(seed=9)
    advance(one)
    other.load_state_dict(one.state_dict())
    a, b = one.weight_check(), other.weight_check()
    assert a.prompt.tolist() == b.prompt.tolist()
    assert torch.equal(a.logprobs, b.logprobs)
    state = {k: v for k, v in one.state_dict().items() if k != "canary"}
    other.load_state_dict(state)
    assert other.weight_check() is None
