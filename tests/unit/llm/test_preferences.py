"""Preferences: files of pairs, pairs as a stream, pairs from rollouts, and reward models at work."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from fakes_llm import FakeStream
from made_tokens import group

from runnel.core.batch import Batch
from runnel.core.errors import ConfigError, DataError
from runnel.core.protocols import Inferencer, Learner, ParamSet, Request, Sampler
from runnel.data.preferences import Pair, append_pairs, read_pairs
from runnel.llm.pairs import PairSampler, PairWriter, pair_rows
from runnel.llm.scoring import ScoreEngine, ScoringPolicy
from runnel.llm.streams import pair_stream
from runnel.llm.tasks import Example, TextTask
from runnel.llm.tokenize import CharTokenizer
from runnel.llm.trained import ScalarModel
from runnel.nets.causal_lm import ModelConfig, build_model, model_params

SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=64)
TOKENIZER = CharTokenizer()


def test_pairs_come_back_as_they_were_written(tmp_path):
    chat = [{"role": "user", "content": "hi"}]
    pairs = [Pair("a", "good", "bad"), Pair(chat, "yes", "no")]
    append_pairs(tmp_path / "pairs.jsonl", pairs[:1])
    append_pairs(tmp_path / "pairs.jsonl", pairs[1:])
    assert read_pairs(tmp_path / "pairs.jsonl") == pairs


def test_answers_may_be_messages(tmp_path):
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "well"}]
    line = {"chosen": talk, "rejected": [talk[0], {"role": "assistant", "content": "no"}]}
    (tmp_path / "p.jsonl").write_text(json.dumps(line) + "\n\n")
    assert read_pairs(tmp_path / "p.jsonl") == [Pair(talk[:1], "well", "no")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "line 1 is not JSON"),
        ('{"prompt": "a", "chosen": "b"}', "needs the fields"),
        ('{"prompt": "", "chosen": "b", "rejected": "c"}', "prompt is ''"),
        ('{"prompt": "a", "chosen": "", "rejected": "c"}', "chosen has no text"),
        ('{"prompt": "a", "chosen": "b", "rejected": 3}', "rejected has no text"),
        ('{"prompt": "a", "chosen": "b", "rejected": "b"}', "the same answer"),
        ("", "has no pairs"),
    ],
)
def test_bad_files_are_named(tmp_path, text, says):
    (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(DataError, match=says):
        read_pairs(tmp_path / "p.jsonl")
    with pytest.raises(ConfigError, match="no such file"):
        read_pairs(tmp_path / "q.jsonl")


def test_the_sampler_writes_chosen_then_rejected_and_goes_on_where_it_was():
    pairs = [Pair(f"p{i}", f"good{i}", f"bad{i}") for i in range(5)]
    spec = pair_stream(num_pairs=2, max_length=16)
    sampler, writer = PairSampler(pairs, TOKENIZER, seed=1), FakeStream(spec)
    assert isinstance(sampler, Sampler)
    assert sampler.step({}, {"pairs": writer}) == 4
    arrays = writer.committed[0].arrays
    texts = [TOKENIZER.decode(part.tolist()) for part in arrays["tokens"].split(arrays["row_length"].tolist())]
    assert texts[0][2:6] == "good"
    assert texts[1][2:5] == "bad"
    assert texts[0][:2] == texts[1][:2]
    state, twin = sampler.snapshot(), PairSampler(pairs, TOKENIZER, seed=9)
    twin.restore(state, {})
    other = FakeStream(spec)
    sampler.step({}, {"pairs": writer})
    twin.step({}, {"pairs": other})
    assert torch.equal(writer.committed[-1].arrays["tokens"], other.committed[-1].arrays["tokens"])
    with pytest.raises(DataError, match="do not fit"):
        PairSampler([Pair("p", "x" * 40, "y")], TOKENIZER, seed=1).step({}, {"pairs": FakeStream(spec)})


def test_the_writer_keeps_the_best_and_the_worst(tmp_path):
    task = TextTask("t", [Example("first"), Example("second")], [Example("third")], lambda prompts, completions: [0.0])
    rng = np.random.default_rng(0)
    segments = [group(rng, [0.0, 1.0, 0.5]), group(rng, [1.0, 1.0, 1.0])]
    for i, segment in enumerate(segments):
        segment.header.task_id = 1 - i
        segment.arrays["rewards/reward"] = segment.arrays["rewards/exact"]
        segment.arrays["tokens"] += 90  # letters
        first = int(segment.arrays["row_length"][0])
        segment.arrays["prompt_length"] = (~segment.arrays["loss_mask"][:first]).sum().expand(3)
    model = build_model(SIZES, TOKENIZER.vocab_size, seed=0)
    writer = PairWriter(tmp_path / "pairs.jsonl", model, TOKENIZER, task=task)
    assert isinstance(writer, Learner)
    metrics = writer.update(writer.prepare({"rollouts": segments}, progress=0.0)).metrics
    assert metrics["pairs"] == 1.0
    state = writer.state_dict()
    (pair,) = read_pairs(tmp_path / "pairs.jsonl")
    assert pair.prompt == "second"
    writer.update(writer.prepare({"rollouts": segments}, progress=0.0))
    assert len(read_pairs(tmp_path / "pairs.jsonl")) == 2
    writer.load_state_dict(state)
    assert read_pairs(tmp_path / "pairs.jsonl") == [pair]


def test_scores_are_read_at_the_last_token_whatever_the_neighbours():
    model = ScalarModel(build_model(SIZES, TOKENIZER.vocab_size, seed=0))
    torch.manual_seed(0)
    torch.nn.init.normal_(model.score.weight)
    engine = ScoreEngine(model, max_rows=2)
    assert isinstance(engine, Inferencer)
    engine.load_params(ParamSet(3, model_params(model)))
    rows = [torch.tensor([*p, *a]) for p, a in pair_rows(Pair("abc", "de", "fghi"), TOKENIZER)] * 2
    engine.submit([Request(i, Batch(tokens=row)) for i, row in enumerate(rows)])
    restored = ScoreEngine(model, max_rows=2)
    restored.restore(engine.snapshot())
    assert restored.pending() == 4
    replies = [*engine.step(), *engine.step()]
    assert engine.pending() == 0
    assert [r.id for r in replies] == [0, 1, 2, 3]
    for reply, row in zip(replies, rows, strict=True):
        with torch.no_grad():
            expected = model.score(model.base_model(input_ids=row[None]).last_hidden_state[0, -1])
        torch.testing.assert_close(reply.rows["score"], expected, atol=1e-5, rtol=1e-5)
        assert reply.version == 3
    policy = ScoringPolicy(model, TOKENIZER)
    assert policy.score("abc", "de") == pytest.approx(float(replies[0].rows["score"]), abs=1e-5)
    assert policy.act(("abc", "fghi")) == pytest.approx(float(replies[1].rows["score"]), abs=1e-5)
