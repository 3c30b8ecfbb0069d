from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import pytest
import torch

from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError, DataError
from runnel.core.worker import num_progressed
from runnel.llm.engines.native import NativeEngine
from runnel.llm.evaluation import TextEvaluation, pass_at_k
from runnel.llm.model.causal_lm import ModelConfig, build_model, model_params
from runnel.llm.rewards.components import RewardComponent
from runnel.llm.tasks import Example, TextTask
from runnel.llm.tokenize import CharTokenizer

sys.path.insert(0, str(Path(__file__).parent))
from fakes_llm import FakeClient

TOKENIZER = CharTokenizer()
SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=64)


@pytest.fixture
def client():
    torch.set_num_threads(1)
    model = build_model(SIZES, TOKENIZER.vocab_size, seed=0)
    client = FakeClient(NativeEngine(model, num_slots=8, max_length=32, eos_id=2))
    client.published[0] = ParamSet(0, model_params(model))
    client.sync()
    return client


def task_of(reward, prompts=("aa", "bb", "cc")):
    return TextTask("t", [Example("train")], [Example(p) for p in prompts], reward)


def evaluation_of(task, **kwargs):
    return TextEvaluation(task, TOKENIZER, num_prompts=3, max_tokens=4, seed=1, **kwargs)


def test_the_estimator_is_the_mean_over_all_subsets():
    for n, c, k in ((5, 2, 1), (5, 2, 3), (6, 1, 4), (4, 0, 2), (4, 4, 2)):
        passed = [1] * c + [0] * (n - c)
        subsets = list(itertools.combinations(passed, k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets))


def test_every_reward_that_an_evaluation_waits_for_is_progress(client):
    """Hundreds of slow rewards take longer than a stage may go without a sign of life; each has a deadline of its own."""
    seen = []

    def slow(prompts, completions):
        seen.append(num_progressed())
        time.sleep(0.12)
        return [1.0]

    evaluation = evaluation_of(task_of([RewardComponent("r", slow, run="thread")]))
    evaluation.run({"policy": client}, round_index=0)
    evaluation.close()
    assert seen == sorted(set(seen)), "between two rewards something came back"


def test_pass_at_k_counts_samples_beside_the_greedy_answer(client):
    seen: dict[str, list[str]] = {}

    def even(prompts, completions):
        seen.setdefault(prompts[0], []).append(completions[0])
        return [float(sum(map(ord, completions[0])) % 2 == 0)]

    evaluation = evaluation_of(task_of(even), samples=6, pass_k=(1, 2, 6))
    result = evaluation.run({"policy": client}, round_index=0)
    assert len(result.returns) == 3
    assert [len(v) for v in seen.values()] == [7, 7, 7]
    assert len(set(seen["aa"][1:])) > 1
    counts = [int(c) for c in result.extra["passed"]]
    expected = [sum(sum(map(ord, text)) % 2 == 0 for text in texts[1:]) for texts in seen.values()]
    assert counts == expected
    for k in (1, 2, 6):
        assert result.extra[f"pass@{k}"] == pytest.approx([pass_at_k(6, c, k) for c in counts])
    assert result.extra["pass@1"] <= result.extra["pass@6"]
    again = evaluation_of(task_of(even), samples=6, pass_k=(1, 2, 6)).run({"policy": client}, round_index=0)
    assert again == result
    other = evaluation.run({"policy": client}, round_index=1)
    assert other.returns == result.returns
    evaluation.close()


def test_samples_without_a_verdict_are_left_out(client):
    calls = itertools.count()

    def shaky(prompts, completions):
        if next(calls) % 3 == 1:
            raise ValueError("no")
        return [1.0]

    result = evaluation_of(task_of(shaky), samples=2, pass_k=(1, 2)).run({"policy": client}, round_index=0)
    assert sum(result.extra["failed"]) == 3
    assert result.extra["judged"] == [1.0, 1.0, 1.0]
    assert result.extra["pass@1"] == [1.0, 1.0, 1.0]
    assert result.extra["pass@2"] == []


def test_bad_settings_and_long_prompts(client):
    task = task_of(lambda p, c: [0.0], ("a", "b" * 40, "c"))
    with pytest.raises(ConfigError, match=r"eval\.pass_k.*from 1 to eval\.samples = 2"):
        evaluation_of(task, samples=2, pass_k=(4,))
    result = evaluation_of(task, max_prompt=20).run({"policy": client}, round_index=0)
    assert (len(result.returns), result.extra["too_long"]) == (2, [0.0, 1.0, 0.0])
    with pytest.raises(DataError, match="all 3 evaluation prompts are longer than 2 tokens"):
        evaluation_of(task, max_prompt=2)
    with pytest.raises(DataError, match="got a reward: no verdict"):
        evaluation_of(task_of(lambda p, c: [None])).run({"policy": client}, round_index=0)
