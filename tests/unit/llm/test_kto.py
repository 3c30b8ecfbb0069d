"""KTO from rows to the gradient against the paper's equation, answer by answer; files of rated answers and their stream."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes_llm import FakeStream
from made_tokens import VOCAB, rated

import runnel as rl
from runnel.core.contracts.learning import SingleProcess
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch
from runnel.llm.algorithms.base import PAIR, Part
from runnel.llm.algorithms.kto import KTO, KTOConfig, reference_point
from runnel.llm.learning.batches import MicroBatch, join_rows, merge
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.model.causal_lm import ModelConfig, build_model
from runnel.llm.sampling.groups import rated_stream
from runnel.llm.sampling.rated import RatedSampler, fitting_rated, rated_row
from runnel.llm.tasks.preferences import Pair, Rated, append_pairs, read_pairs, read_rated
from runnel.llm.tokenize import CharTokenizer
from runnel.run import registry

BETA, GOOD, BAD = 0.3, 1.4, 0.6
TOKENIZER = CharTokenizer()


def made(rng: np.random.Generator, *, drift: float) -> Batch:
    """Ragged rows with made-up log-probabilities; the policy is `drift` above the reference on mismatched ones."""
    rows = join_rows([rated(rng, 3), rated(rng, 2, [1.0, 1.0])])
    num = len(rows["tokens"])
    for name in ("reference_logprob", "mismatched_logprob", "now"):
        rows[name] = torch.from_numpy(-rng.uniform(0.1, 2.0, num))
    rows["mismatched_logprob"] = rows["reference_logprob"] + torch.from_numpy(rng.normal(drift, 0.1, num))
    return rows


def by_hand(rows: Batch) -> tuple[float, list[list[float]], float]:
    """Equation 8: the loss, its closed gradient by the tokens of each answer, and z0. `v = sigmoid(s beta (r - z0))`, so the
    slope of `lambda (1 - v)` is `-lambda s beta v (1 - v)` at every token of the answer."""
    starts = np.concatenate([[0], np.cumsum(rows["row_length"].numpy())])
    mask = rows["loss_mask"].numpy()
    places = [[t for t in range(a, b) if mask[t]] for a, b in pairwise(starts)]
    reference, extra = rows["reference_logprob"].numpy(), rows["mismatched_logprob"].numpy()
    z0 = max(0.0, float(np.mean([sum(extra[t] - reference[t] for t in row) for row in places[1::2]])))
    loss, slopes, num = 0.0, [], len(places) // 2
    for i, row in enumerate(places[::2]):
        s, weight = (1.0, GOOD) if rows["rating"][2 * i] == 1.0 else (-1.0, BAD)
        ratio = sum(float(rows["now"][t]) - reference[t] for t in row)
        v = 1.0 / (1.0 + np.exp(-s * BETA * (ratio - z0)))
        loss += weight * (1.0 - v) / num
        slopes.append([-weight * s * BETA * v * (1.0 - v) / num] * len(row))
    return loss, slopes, z0


@pytest.mark.parametrize(("seed", "drift"), [(0, 0.4), (1, 0.4), (2, -0.4)])
@pytest.mark.parametrize("budget", [100, 2, 1])
def test_loss_and_gradient_are_the_papers_on_ragged_rows(seed: int, drift: float, budget: int) -> None:
    """Whatever the split into micro-batches. A policy that lost on mismatched rows has z0 = 0."""
    rows = made(np.random.default_rng(seed), drift=drift)
    algorithm = KTO(KTOConfig(beta=BETA, good_weight=GOOD, bad_weight=BAD))
    batch = merge([algorithm.annotate(rows, SingleProcess())])
    denominator = float(batch["denominator/kto"].sum())
    assert denominator == len(rows["rating"]) / 2
    logprob = rows["now"].clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for some in torch.arange(len(rows["row_length"])).split(budget):
        part = MicroBatch.of(Batch(batch | {"at": torch.arange(len(logprob))}), some, device="cpu")
        if part.kinds:
            outputs = Batch(logprob=logprob[part.fields["at"]])
            total = total + algorithm.loss(Part.of(part, PAIR, outputs, count=0.0, version=0), denominator).value
    total.backward()
    loss, slopes, z0 = by_hand(rows)
    assert (z0 > 0.1) == (drift > 0)
    assert float(batch["stats/preference/point"]) == pytest.approx(z0, rel=1e-9)
    assert total.item() == pytest.approx(loss, rel=1e-6)
    trained = rows["loss_mask"] & (batch["component"] != 0)
    np.testing.assert_allclose(logprob.grad[trained].numpy(), np.concatenate(slopes), rtol=1e-5)
    assert logprob.grad[~trained].abs().max() == 0, "nothing of a mismatched row or of a prompt is trained"


def test_the_reference_point_is_that_of_the_models() -> None:
    """After some updates: log-probabilities by plain forward passes of one row each, as transformers makes them."""
    torch.set_num_threads(1)
    sizes = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=64)
    start = build_model(sizes, VOCAB, seed=0).double()
    config = TokenLearnerConfig(precision="float64", warmup_updates=1, lr=1e-2)
    learner = TokenLearner(config, build_model(sizes, VOCAB, seed=0), algorithms={"rated": KTO(KTOConfig())})
    segment = rated(np.random.default_rng(0), 4, [1.0] * 4)
    assert float(learner.prepare({"rated": [segment]}, progress=0.0)["stats/preference/point"]) == 0.0
    for _ in range(3):
        learner.update(learner.prepare({"rated": [segment]}, progress=0.0))
    found = float(learner.prepare({"rated": [segment]}, progress=0.0)["stats/preference/point"])
    rows, ratios = join_rows([segment]), []
    for row in range(1, 8, 2):
        at = slice(first := int(rows["row_start"][row]), first + int(rows["row_length"][row]))
        tokens, mask = rows["tokens"][at], rows["loss_mask"][at][1:]
        with torch.no_grad():
            pair = [model(tokens[None]).logits[0, :-1].log_softmax(-1) for model in (learner.policy.model.double(), start)]
        now, before = (logprobs.gather(1, tokens[1:, None])[:, 0][mask].sum() for logprobs in pair)
        ratios.append(float(now - before))
    assert found == pytest.approx(max(0.0, np.mean(ratios)), rel=1e-4)
    assert found > 0.01


def test_good_answers_gain_and_bad_ones_lose() -> None:
    sizes = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=64)
    config = TokenLearnerConfig(warmup_updates=1, lr=1e-2)
    learner = TokenLearner(config, build_model(sizes, VOCAB, seed=0), algorithms={"rated": KTO(KTOConfig())})
    segment = rated(np.random.default_rng(3), 6)
    updates = [learner.update(learner.prepare({"rated": [segment]}, progress=0.0)).metrics for _ in range(20)]
    assert updates[0]["loss/kto"] == pytest.approx(0.5, rel=1e-5)
    assert updates[-1]["preference/accuracy"] == 1.0
    assert updates[-1]["loss/kto"] < 0.42
    assert updates[0]["preference/good"] == 0.5


def test_the_point_is_a_mean_over_rows_and_not_over_ranks() -> None:
    """The second of two ranks has one mismatched row, the first three."""
    rows = made(np.random.default_rng(5), drift=0.3)

    class Other:
        rank, world_size = 0, 2

        def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.tensor([9.0, 1.0], dtype=x.dtype)

    whole = float(reference_point(rows, SingleProcess()))
    assert float(reference_point(rows, Other())) == pytest.approx((5 * whole + 9.0) / 6)


# ------------------------------------------------------------------------------------------------------------- rows
def write(path: Path, *lines: object) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_rated_answers_are_read(tmp_path: Path) -> None:
    user, said = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
    lines = [
        {"prompt": "q", "completion": "a", "label": True},
        {"prompt": [user], "completion": [said], "label": False},
        {"completion": [user, said], "label": 1},
    ]
    path = write(tmp_path / "r.jsonl", *lines)
    assert read_rated(path, "label") == [Rated("q", "a", 1.0), Rated([user], "a", 0.0), Rated([user], "a", 1.0)]
    path = write(tmp_path / "s.jsonl", {"prompt": "q", "completion": "a", "score": -2.5})
    assert read_rated(path, "score") == [Rated("q", "a", -2.5)]


@pytest.mark.parametrize(
    ("line", "rating", "says"),
    [
        (
            {"prompt": "q", "completion": "a"},
            "label",
            "fields prompt, completion and label; it has prompt, completion$",
        ),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, "label", r"Pairs of answers are given as --pairs FILE"),
        ({"prompt": "q", "completion": "a", "label": "yes"}, "label", "label is 'yes'; write true"),
        ({"prompt": "q", "completion": "a", "label": 0.5}, "label", "label is 0.5; write true"),
        ({"prompt": "q", "completion": "a", "score": "5"}, "score", "score is '5'; write a number"),
        ({"prompt": "q", "completion": "a", "score": float("nan")}, "score", "score is nan; write a number"),
        ({"prompt": "q", "completion": "a", "label": True}, "score", "needs the fields prompt, completion and score"),
        ({"prompt": "q", "completion": "", "label": True}, "label", "completion has no text"),
        ({"completion": "a", "label": True}, "label", "prompt is None"),
    ],
)
def test_answers_without_a_rating_are_refused_by_their_line(tmp_path: Path, line: object, rating: str, says: str) -> None:
    with pytest.raises(DataError, match=rf"r\.jsonl, line 1.*{says}"):
        read_rated(write(tmp_path / "r.jsonl", line), rating)


def test_single_answers_are_refused_where_pairs_are_compared(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", {"prompt": "q", "completion": "a", "label": True})
    with pytest.raises(DataError, match=r"needs the fields prompt, chosen and rejected.*--rated FILE: labels for kto"):
        read_pairs(path)


TINY = {"lm": {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "inner": 32}, "num_pairs": 2, "eval": {"episodes": 2}}


def build(**settings: object) -> rl.Experiment:
    return registry.build("kto", registry.configure(registry.load_recipe("kto"), TINY | settings))


def test_a_run_is_refused_before_it_starts_or_tells_what_it_leaves_out(tmp_path: Path) -> None:
    good = {"prompt": "q", "completion": "a", "label": True}
    path = write(tmp_path / "r.jsonl", good, good | {"completion": "b"})
    pairs = str(tmp_path / "p.jsonl")
    append_pairs(pairs, [Pair("q", "a", "b")])
    with pytest.raises(ConfigError, match="not both") as found:
        build(rated=path, pairs=pairs)
    assert found.value.field == "rated"
    with pytest.raises(DataError, match="given as --pairs"):
        build(rated=pairs)
    with pytest.raises(ConfigError, match="no such file") as found:
        build(rated=str(tmp_path / "none.jsonl"))
    assert found.value.field == "rated"
    assert build(pairs=pairs).look() == []
    (told,) = build(rated=path).look()
    assert told.startswith("all 2 answers are good ones, and none is bad")


def test_each_row_is_followed_by_its_prompt_with_the_next_answer() -> None:
    some = [Rated("ab", "xyz", 1.0), Rated("c", "w", 0.0), Rated("def", "uvwx", 1.0)]
    kept, longest, told = fitting_rated(some, TOKENIZER, context=None)
    assert (kept, told) == (some, [])
    sizes = [list(map(len, rated_row(one, TOKENIZER))) for one in some]
    assert longest == max(p for p, _ in sizes) + max(a for _, a in sizes)
    spec = rated_stream(num_rows=3, max_length=longest, mismatched=True)
    stream = FakeStream(spec, limit=2)
    sampler = RatedSampler(some, TOKENIZER, seed=1, mismatched=True, max_length=longest)
    for _ in range(2):
        sampler.step({}, {"rated": stream})
    rows = join_rows(stream.take(2))
    texts = [
        (TOKENIZER.decode(part[~mask].tolist()), TOKENIZER.decode(part[mask].tolist()))
        for part, mask in zip(
            rows["tokens"].split(rows["row_length"].tolist()),
            rows["loss_mask"].split(rows["row_length"].tolist()),
            strict=True,
        )
    ]
    for first in (0, 6):
        own, other = texts[first : first + 6 : 2], texts[first + 1 : first + 6 : 2]
        assert [answer for _, answer in other] == [own[1][1], own[2][1], own[0][1]]
        assert [prompt for prompt, _ in other] == [prompt for prompt, _ in own]
        assert sorted(answer for _, answer in own) == ["uvwx", "w", "xyz"]
    assert rows["mismatched"].tolist() == [False, True] * 6
    ratings = {"xyz": 1.0, "w": 0.0, "uvwx": 1.0}
    assert rows["rating"].tolist() == [ratings[answer] for _, answer in texts[::2] for _ in range(2)]


def test_a_mismatched_answer_is_cut_where_a_row_has_no_room() -> None:
    some = [Rated("a" * 10, "b", 1.0), Rated("c", "d" * 10, 0.0)]
    context = max(sum(map(len, rated_row(one, TOKENIZER))) for one in some)
    kept, longest, _ = fitting_rated(some, TOKENIZER, context=context)
    assert longest == context
    stream = FakeStream(rated_stream(num_rows=2, max_length=longest, mismatched=True), limit=1)
    RatedSampler(kept, TOKENIZER, seed=0, mismatched=True, max_length=longest).step({}, {"rated": stream})
    rows = join_rows(stream.take(1))
    assert int(rows["row_length"].max()) == context
    assert rows["loss_mask"].any()
    more = [*some, Rated("e" * 30, "f", 1.0)]
    kept, _, told = fitting_rated(more, TOKENIZER, context=context)
    assert kept == some
    assert told[0].startswith("1 of 3 prompts with their answers are longer")
    with pytest.raises(DataError, match="shorten them"):
        fitting_rated(more, TOKENIZER, context=3)
