"""Reward models with margins and weights of pairs, and of scores, against the papers' equations in numpy on ragged rows; what
rows need is refused by name; whole runs learn what margins and scores say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from made_tokens import pairs, rated

import runnel as rl
from runnel.core.contracts.learning import SingleProcess
from runnel.core.errors import ConfigError, DataError, UnusedSettingError
from runnel.core.records import Batch, FieldSpec
from runnel.llm.algorithms.base import SCORE, Part
from runnel.llm.algorithms.reward_model import RewardModelConfig, RewardModelling, ScoreRegression
from runnel.llm.learning.batches import MicroBatch, join_rows, merge
from runnel.llm.tasks.preferences import Pair, append_pairs, read_pairs
from runnel.run import registry

MARGINS, WEIGHTS = (0.5, 0.0, 2.0), (1.0, 0.25, 3.0)


def strong_pairs(rng: np.random.Generator) -> Batch:
    rows = join_rows([pairs(rng, 3)])
    rows["margin"] = torch.tensor(MARGINS).repeat_interleave(2)
    rows["weight"] = torch.tensor(WEIGHTS).repeat_interleave(2)
    return rows


def joined(algorithm: RewardModelling | ScoreRegression, rows: Batch, score: torch.Tensor, budget: int) -> torch.Tensor:
    """The loss that the learner sums over micro-batches of `budget` pairs; `score` `[R]` is that of each row."""
    batch = merge([algorithm.annotate(rows, SingleProcess())])
    row = torch.repeat_interleave(torch.arange(len(score)), rows["row_length"])
    (component,) = algorithm.components.values()
    denominator = float(batch[f"denominator/{algorithm.name}"].sum())
    total = torch.zeros((), dtype=torch.float64)
    for some in torch.arange(len(score)).split(2 * budget):
        part = MicroBatch.of(Batch(batch | {"of": row}), some, device="cpu")
        outputs = Batch(score=score[part.fields["of"]])
        assert len(part.target) == len(some), "one score a row"
        total = total + component.loss(Part.of(part, SCORE, outputs, count=0.0, version=0), denominator).value
    return total


@pytest.mark.parametrize(("coef", "weighted"), [(0.0, False), (0.7, False), (0.0, True), (1.3, True)])
@pytest.mark.parametrize("budget", [1, 3])
def test_margins_and_weights_are_those_of_the_equation(coef: float, weighted: bool, budget: int) -> None:
    """`-w log sigmoid(d - c m)` has the slope `-w sigmoid(c m - d)` in the chosen score, and the opposite in the other."""
    rng = np.random.default_rng(0)
    rows, scores = strong_pairs(rng), rng.normal(size=6)
    score = torch.tensor(scores, requires_grad=True)
    found = joined(RewardModelling(RewardModelConfig(coef, weighted)), rows, score, budget)
    found.backward()
    loss, slopes = 0.0, []
    for p, (m, w) in enumerate(zip(MARGINS, WEIGHTS, strict=True)):
        ahead, counts = scores[2 * p] - scores[2 * p + 1] - coef * m, w if weighted else 1.0
        loss += counts * np.log1p(np.exp(-ahead)) / 3
        slope = -counts / (1.0 + np.exp(ahead)) / 3
        slopes += [slope, -slope]
    assert found.item() == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(score.grad.numpy(), slopes, rtol=1e-6)


@pytest.mark.parametrize("budget", [1, 3])
def test_scores_are_fitted_by_least_squares(budget: int) -> None:
    rng = np.random.default_rng(1)
    targets, scores = [3.0, -1.0, 0.5, 4.0, 0.0, 2.0], rng.normal(size=6)
    rows = join_rows([rated(rng, 6, targets, mismatched=False)])
    score = torch.tensor(scores, requires_grad=True)
    found = joined(ScoreRegression(), rows, score, budget)
    found.backward()
    assert found.item() == pytest.approx(float(np.mean((scores - targets) ** 2)), rel=1e-6)
    np.testing.assert_allclose(score.grad.numpy(), 2.0 * (scores - targets) / 6, rtol=1e-6)


def test_a_stream_without_what_is_asked_for_is_refused() -> None:
    rows = join_rows([pairs(np.random.default_rng(0), 2)])
    for config, says in ((RewardModelConfig(margin_coef=1.0), "no margin"), (RewardModelConfig(weighted=True), "no weight")):
        with pytest.raises(DataError, match=says):
            RewardModelling(config).annotate(rows, SingleProcess())
    RewardModelling().annotate(rows, SingleProcess())


# -------------------------------------------------------------------------------------------------------------- files
def write(path: Path, *lines: object) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


PAIR = {"prompt": "q", "chosen": "a", "rejected": "b"}
ASKED = RewardModelConfig(margin_coef=1.0, weighted=True).asked


def test_strengths_are_read_where_they_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", PAIR | {"margin": 2, "weight": 0.5, "other": "x"})
    assert read_pairs(path, ASKED) == [Pair("q", "a", "b", margin=2.0, weight=0.5)]
    assert read_pairs(write(tmp_path / "q.jsonl", PAIR | {"margin": "much"})) == [Pair("q", "a", "b")]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"weight": 1.0}, "needs the field margin for reward_model.margin_coef; it has prompt, chosen, rejected, weight"),
        ({"margin": 1.0}, "needs the field weight for reward_model.weighted"),
        ({"margin": "much", "weight": 1.0}, "margin is 'much'; write a number of at least 0"),
        ({"margin": 1.0, "weight": -1}, "weight is -1; write a number of at least 0"),
        ({"margin": True, "weight": 1}, "margin is True; write a number"),
        ({"margin": float("nan"), "weight": 1}, "margin is nan; write a number"),
    ],
)
def test_a_pair_without_the_strength_that_is_needed_is_refused_by_its_line(tmp_path: Path, more: object, says: str) -> None:
    whole = {"margin": 1.0, "weight": 1.0}
    path = write(tmp_path / "p.jsonl", PAIR | whole, {**PAIR, **more})
    with pytest.raises(DataError, match=rf"p\.jsonl, line 2.*{says}"):
        read_pairs(path, ASKED)


TINY = {"lm": {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "inner": 32}, "num_pairs": 4, "eval": {"episodes": 8}}


def build(**settings: object) -> rl.Experiment:
    recipe = registry.load_recipe("reward_model")
    config = registry.configure(recipe, TINY | settings)
    config.check()
    return registry.build("reward_model", config)


def test_settings_that_the_rows_have_no_use_for_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "s.jsonl", *({"prompt": p, "completion": "a", "score": 1.0} for p in "abcdefghijklm"))
    pair_file = str(tmp_path / "p.jsonl")
    append_pairs(pair_file, [Pair("q", "a", "b")])
    for settings, field in (
        ({"reward_model": {"margin_coef": 1.0}}, "reward_model.margin_coef"),
        ({"reward_model": {"weighted": True}, "rated": path}, "reward_model.weighted"),
        ({"record": {"groups_every": 5}, "rated": path}, "record.groups_every"),
    ):
        with pytest.raises(UnusedSettingError) as found:
            build(**settings)
        assert found.value.field == field
    with pytest.raises(ConfigError, match="not both"):
        build(rated=path, pairs=pair_file)
    with pytest.raises(DataError, match=r"line 1 needs the field margin for reward_model\.margin_coef"):
        build(pairs=pair_file, reward_model={"margin_coef": 1.0})
    stream = build(rated=path).streams[0]
    assert (stream.name, stream.fields["rating"], stream.unit_rows) == ("rated", FieldSpec(("B",)), 1)
    assert "mismatched" not in stream.fields


LEARNS = {"total_updates": 40, "learner": {"lr": 1e-2, "warmup_updates": 1}, "track": (), "name": "run"}


def test_a_run_fits_scores_of_unseen_prompts(tmp_path: Path) -> None:
    """The score says how many of the answer's four letters are an `a`. A model that said the mean of all scores would have a
    squared error of 1, their variance."""
    rng = np.random.default_rng(0)
    lines = []
    for i in range(120):
        answer = "".join(rng.choice(list("ab"), size=4))
        lines.append({"prompt": f"p{i}", "completion": answer, "score": answer.count("a")})
    path = write(tmp_path / "s.jsonl", *lines)
    run = rl.train("reward_model", out=str(tmp_path), rated=path, **{**TINY, **LEARNS})
    assert run.eval is not None
    assert -0.3 < run.eval["mean"] < 0.0, "minus the squared error"
    errors = [row["metrics"]["preference/error"] for row in run.rows()]
    assert errors[-1] < 0.1 * errors[0]


def test_margins_and_weights_go_from_the_file_into_the_loss(tmp_path: Path) -> None:
    """Scores start at 0, so a pair of margin 2 and weight 3 costs `3 log(1 + e^(2 c))` in the first update."""
    path = write(tmp_path / "p.jsonl", *({**PAIR, "prompt": f"p{i}", "margin": 2.0, "weight": 3.0} for i in range(8)))
    own = {"reward_model": {"margin_coef": 0.5, "weighted": True}, "total_updates": 2}
    run = rl.train("reward_model", out=str(tmp_path), pairs=path, **{**TINY, **LEARNS, **own})
    losses = [row["metrics"]["loss/reward_model"] for row in run.rows()]
    assert losses[0] == pytest.approx(3.0 * np.log1p(np.e), rel=1e-5)
    assert losses[1] < losses[0]
