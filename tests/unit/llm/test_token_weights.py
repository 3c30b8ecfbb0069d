"""Weights of parts of demonstrations: which tokens they reach, the loss against its equation, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_tokenizers import family
from made_tokens import demos

import runnel as rl
from runnel.core.contracts.learning import SingleProcess
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch
from runnel.llm.algorithms.base import SFT, Part
from runnel.llm.algorithms.sft import SupervisedFineTuning
from runnel.llm.learning.batches import MicroBatch, join_rows, merge
from runnel.llm.sampling.token_weights import weights_of
from runnel.llm.tasks import Example
from runnel.llm.tokenize import CharTokenizer, make_tokenizer
from runnel.run import registry

TOKENIZER = CharTokenizer()


def weights(answer: str, parts: object) -> list[float]:
    return weights_of(Example("q", answer, {"w": parts}), "w", TOKENIZER.answer(answer), TOKENIZER)


def test_parts_reach_their_tokens_and_no_others() -> None:
    assert weights("abcab", [["ab", 2.0], ["ab", 0.5]]) == [2.0, 2.0, 1.0, 0.5, 0.5, 1.0]
    assert weights("abc", [["c", 0]]) == [1.0, 1.0, 0.0, 1.0]
    assert weights("abc", None) == [1.0] * 4
    # a character of two bytes is two tokens, and has one weight
    assert weights("xéy", [["é", 3.0]]) == [1.0, 3.0, 3.0, 1.0, 1.0]
    assert weights("xéy", [["xé", 3.0]]) == [3.0, 3.0, 3.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ("abc", r"is a list of \[text, weight\].*it is 'abc'"),
        ([["a", -1.0]], r"weights of at least 0; one part is \"\['a', -1.0\]\""),
        ([["a", True]], "one part is"),
        ([["", 1.0]], "one part is"),
        (["a"], "one part is 'a'"),
        ([["a", float("nan")]], "one part is"),
        ([["b", 1.0], ["a", 1.0]], "'a' does not stand in the answer 'abc' behind the part before it"),
    ],
)
def test_parts_that_have_no_place_are_refused(parts: object, says: str) -> None:
    with pytest.raises(DataError, match=says):
        weights("abc", parts)


@pytest.mark.parametrize("budget", [1, 5])
def test_the_loss_is_the_weighted_mean(budget: int) -> None:
    rng = np.random.default_rng(0)
    rows = join_rows([demos(rng, 3), demos(rng, 2)])
    num = len(rows["tokens"])
    rows["weight"] = torch.from_numpy(rng.choice([0.0, 1.0, 2.5], size=num)).float()
    values = -rng.uniform(0.1, 2.0, num)
    algorithm, logprob = SupervisedFineTuning(), torch.tensor(values, requires_grad=True)
    batch = merge([algorithm.annotate(rows, SingleProcess())])
    total, denominator = torch.zeros((), dtype=torch.float64), float(batch["denominator/sft"].sum())
    for some in torch.arange(len(rows["row_length"])).split(budget):
        part = MicroBatch.of(Batch(batch | {"at": torch.arange(num)}), some, device="cpu")
        outputs = Batch(logprob=logprob[part.fields["at"]])
        tokens = Part.of(part, SFT, outputs, count=0.0, version=0)
        total = total + algorithm.components["sft"].loss(tokens, denominator).value
    total.backward()
    mask = rows["loss_mask"].numpy()
    own = np.where(mask, rows["weight"].numpy(), 0.0)
    assert total.item() == pytest.approx(-(own * values).sum() / own.sum(), rel=1e-6)
    np.testing.assert_allclose(logprob.grad.numpy(), -own / own.sum(), rtol=1e-6)


def rows_file(path: Path, parts: list[Any]) -> str:
    rows = [{"prompt": f"p{i}", "answer": "abcd", "w": part} if part else {"prompt": f"p{i}", "answer": "abcd"}
            for i, part in enumerate(parts)]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


TINY = {"lm": {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "inner": 32}, "demo_rows": 4, "eval": {"episodes": 0}}


def build(**settings: object) -> rl.Experiment:
    return registry.build("sft", registry.configure(registry.load_recipe("sft"), TINY | settings))


def test_a_run_without_such_a_column_is_refused_before_it_starts(tmp_path: Path) -> None:
    path = rows_file(tmp_path / "d.jsonl", [[["ab", 2.0]]] * 30 + [None] * 30)
    with pytest.raises(ConfigError, match="no train example has such a column") as found:
        build(task=path, token_weights="other")
    assert found.value.field == "token_weights"
    with pytest.raises(DataError, match="'x' does not stand in the answer 'abcd'"):
        build(task=rows_file(tmp_path / "e.jsonl", [[["x", 2.0]]] * 30), token_weights="w")
    told = build(task=path, token_weights="w").look()
    assert any("have no column 'w': all their tokens count 1" in text for text in told)
    assert "weight" not in build(task=path).streams[0].fields


def test_what_counts_for_nothing_is_not_learned(tmp_path: Path) -> None:
    """The answer's second half has the weight 0: a model learns to say the first half, and no more."""
    path = rows_file(tmp_path / "d.jsonl", [[["ab", 4.0], ["cd", 0.0]]] * 30)
    own = {"total_updates": 30, "learner": {"lr": 1e-2, "warmup_updates": 1}, "track": (), "token_weights": "w"}
    run = rl.train("sft", out=str(tmp_path), task=path, **{**TINY, **own})
    said = run.policy().act("p3")
    assert said.startswith("ab")
    assert not said.startswith("abcd")


class Pieces(CharTokenizer):
    """Tokens of several letters."""

    pieces = ("the", " ha", "t i", "s on", "</s>")

    def spell(self, tokens: Sequence[int]) -> str:
        return "".join(self.pieces[t] for t in tokens)


def test_a_token_counts_as_the_part_that_it_says_anything_of() -> None:
    def of(part: str) -> list[float]:
        return weights_of(Example("q", "the hat is on", {"w": [[part, 2.0]]}), "w", range(5), Pieces())

    assert of("hat is") == [1.0, 2.0, 2.0, 2.0, 1.0]
    assert of("he") == [2.0, 1.0, 1.0, 1.0, 1.0]
    assert of("n") == [1.0, 1.0, 1.0, 2.0, 1.0]
    with pytest.raises(DataError, match="the tokenizer changes the answer 'The hat'"):
        weights_of(Example("q", "The hat", {"w": [["hat", 2.0]]}), "w", range(5), Pieces())


def test_control_tokens_are_part_of_the_text(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(str(family(tmp_path, "qwen")))
    tokens = tokenizer.answer("<|im_start|>ab")
    found = weights_of(Example("q", "<|im_start|>ab", {"w": [["ab", 2.0]]}), "w", tokens, tokenizer)
    assert found == [1.0, 2.0, 2.0, *[1.0] * (len(tokens) - 3)]
    assert len(tokens) < 6
