"""Preferences: files of pairs, pairs as a stream, pairs from rollouts, and reward models at work."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes_llm import FakeStream
from made_tokenizers import messages_in
from made_tokens import group

from runnel.core.contracts.inference import Inferencer, Request
from runnel.core.contracts.learning import Learner
from runnel.core.contracts.params import ParamSet
from runnel.core.contracts.samples import Sampler
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch
from runnel.graphs.run_config import EvalConfig
from runnel.llm.model.causal_lm import ModelConfig, ScalarModel, build_model, model_params
from runnel.llm.sampling.groups import pair_stream
from runnel.llm.sampling.pairs import PairSampler, PairWriter, fitting, pair_rows, parsed_order
from runnel.llm.scoring import ScoreEngine, ScoringPolicy
from runnel.llm.tasks import Example, TextTask, make_reverse
from runnel.llm.tasks.preferences import Pair, append_pairs, read_pairs, split_pairs
from runnel.llm.tokenize import CharTokenizer
from runnel.ops.credit import compared_in_order

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
        ("{", "line 1: not JSON"),
        ('{"prompt": "a", "chosen": "b"}', "needs the fields"),
        ('{"prompt": "", "chosen": "b", "rejected": "c"}', "prompt is ''"),
        ('{"prompt": "a", "chosen": "", "rejected": "c"}', "chosen has no text"),
        ('{"prompt": "a", "chosen": "b", "rejected": 3}', "rejected has no text"),
        ('{"prompt": "a", "chosen": "b", "rejected": "b"}', "the same answer"),
        ('{"prompt": "a", "chosen": "b", "rejected": "\\ud83d"}', "line 1: the column 'rejected' has half a character"),
        ("", "has no pairs"),
    ],
)
def test_bad_files_are_named(tmp_path, text, says):
    (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(DataError, match=says):
        read_pairs(tmp_path / "p.jsonl")
    with pytest.raises(ConfigError, match="no such file"):
        read_pairs(tmp_path / "q.jsonl")


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"chosen": [user("q"), said("a"), user("thx")], "rejected": [user("q"), said("b")]}, "chosen ends with the turn of"),
        ({"prompt": "q", "chosen": "a", "rejected": [user("b")]}, "rejected ends with the turn of 'user'"),
        ({"chosen": [user("q"), said("a")], "rejected": [user("p"), said("b")]}, "different turns before"),
        ({"prompt": "x", "chosen": [user("q"), said("a")], "rejected": [user("q"), said("b")]}, "prompt is another than"),
        ({"prompt": [user("q"), said("a")], "chosen": "b", "rejected": "c"}, "prompt ends with the assistant's turn"),
        ({"prompt": [{"role": "user"}], "chosen": "b", "rejected": "c"}, "needs a role and a content"),
        ({"prompt": "q", "chosen": {"from": "gpt"}, "rejected": "c"}, "needs a role and a content"),
    ],
)
def test_pairs_that_are_none_are_refused_by_their_line(tmp_path, line, says):
    good = {"prompt": "q", "chosen": "a", "rejected": "b"}
    (tmp_path / "p.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(line))
    with pytest.raises(DataError, match=r"p\.jsonl, line 2.*" + says):
        read_pairs(tmp_path / "p.jsonl")


def test_pairs_of_other_kinds_are_taken(tmp_path):
    human, gpt = {"from": "human", "value": "q"}, [{"from": "gpt", "value": v} for v in "ab"]
    system = {"role": "system", "content": "s"}
    kinds = [
        {"conversations": [human], "chosen": gpt[0], "rejected": gpt[1]},
        {"chosen": [human, gpt[0]], "rejected": [human, gpt[1]]},
        {"prompt": "q", "chosen": [user("q"), said("a")], "rejected": [user("q"), said("b")]},
        {"prompt": "q", "chosen": [system, user("q"), said("a")], "rejected": [system, user("q"), said("b")]},
        {"prompt": "q\u2028r", "chosen": "a", "rejected": "b"},
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps(k, ensure_ascii=False) for k in kinds), encoding="utf-8")
    shared = Pair([user("q")], "a", "b")
    assert read_pairs(tmp_path / "p.jsonl") == [
        *[shared] * 3,
        Pair([system, user("q")], "a", "b"),
        Pair("q\u2028r", "a", "b"),
    ]
    (tmp_path / "p.jsonl").write_bytes('{"prompt": "é", "chosen": "a", "rejected": "b"}'.encode("latin-1"))
    with pytest.raises(DataError, match="line 1: not UTF-8"):
        read_pairs(tmp_path / "p.jsonl")


def test_a_prompt_is_trained_on_or_held_out_and_never_both():
    pairs = [Pair(f"p{i % 40}", f"a{i}", f"b{i}") for i in range(200)]
    train, held = split_pairs(pairs)
    assert len(train) + len(held) == 200
    assert len({p.text for p in held}) == 4
    assert not {p.text for p in train} & {p.text for p in held}
    again = split_pairs(pairs[::-1])
    assert {p.text for p in again[1]} == {p.text for p in held}
    assert len(split_pairs(pairs[:2])[1]) == 1
    assert split_pairs(pairs[:1]) == (pairs[:1], [])


def test_pairs_beyond_the_context_are_left_out_and_told(tmp_path):
    lines = [{"prompt": f"p{i}", "chosen": "a" * (60 if i == 1 else 1), "rejected": "b"} for i in range(4)]
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps(k) for k in lines))
    pairs = read_pairs(tmp_path / "p.jsonl")
    kept, longest, (text,) = fitting(pairs, TOKENIZER, context=40)
    assert ([p.text for p in kept], longest) == (["p0", "p2", "p3"], 7)
    assert text.startswith("1 of 4 pairs are longer than the model's context of 40 tokens, the first at ")
    assert text.endswith("p.jsonl, line 2 (66 tokens); they are left out")
    assert fitting(pairs, TOKENIZER, context=None) == (pairs, 66, [])
    with pytest.raises(DataError, match=r"1 of 1 pairs are longer .*use a model with a longer context"):
        fitting(pairs[1:2], TOKENIZER, context=40)


def test_dpo_trains_on_all_pairs_but_of_prompts_that_its_task_holds_out(tmp_path):
    """And a reward model keeps prompts apart, with which it is evaluated."""
    from runnel.recipes import dpo, reward_model

    held = make_reverse().eval[0].text
    append_pairs(tmp_path / "p.jsonl", [Pair(f"p{i}", "a", "b") for i in range(20)] + [Pair(held, "a", "b")])
    small = {"pairs": str(tmp_path / "p.jsonl"), "num_pairs": 1, "lm": SIZES, "eval": EvalConfig(episodes=4)}
    experiment = dpo.build(dpo.Config(**small))
    assert experiment.look() == ["1 of 21 pairs have prompts that the task holds out; they are not trained on"]
    assert prompts_of(experiment, steps=20) == {f"p{i}" for i in range(20)}
    experiment = reward_model.build(reward_model.Config(**small))
    seen = prompts_of(experiment, steps=20)
    evaluation = experiment.evaluation.make()
    assert {p.text for p in evaluation._pairs} == {*(f"p{i}" for i in range(20)), held} - seen
    assert len(evaluation._pairs) == 2


def prompts_of(experiment, steps):
    """The prompts that the experiment's sampler writes."""
    sampler, stream = experiment.actors[0].make(0), FakeStream(replace(experiment.streams[0], capacity=steps + 1))
    for _ in range(steps):
        sampler.step({}, {"pairs": stream})
    rows = [s.arrays["tokens"][: s.arrays["row_length"][0]].tolist() for s in stream.committed]
    return {messages_in(row)[0]["content"] for row in rows}


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
    segments = [group(rng, rewards, channels=("reward",)) for rewards in ([0.0, 1.0, 0.5], [1.0, 1.0, 1.0])]
    for i, segment in enumerate(segments):
        segment.header.task_id = task.train[1 - i].id
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
    segments[0].header.task_id = 1  # the place of an example: how releases before this one numbered them
    with pytest.raises(DataError, match="no train example with the id 1"):
        writer.update(writer.prepare({"rollouts": segments}, progress=0.0))


def by_hand(first, second, margins):
    """HERON's tree, one factor after another."""
    for x, y, margin in zip(first, second, margins, strict=True):
        if not (np.isnan(x) or np.isnan(y)) and abs(x - y) > margin:
            return 1.0 if x > y else -1.0
    return 0.0


def test_the_first_channel_that_differs_enough_decides():
    rng = np.random.default_rng(0)
    rewards, margins = rng.integers(0, 4, (3, 12)) / 2.0, [1.0, 0.5, 0.0]
    rewards[0, 3] = rewards[1, 5] = np.nan
    found = compared_in_order(torch.from_numpy(rewards), margins)
    expected = [[by_hand(rewards[:, i], rewards[:, j], margins) for j in range(12)] for i in range(12)]
    assert found.tolist() == expected
    assert {-1.0, 0.0, 1.0} == set(found.flatten().tolist())


def ordered_pairs(tmp_path, rewards, order):
    """Which rows of one group a writer with an order of two channels makes a pair of: chosen and rejected, if any."""
    segment = group(np.random.default_rng(0), [0.0] * len(rewards), channels=("right", "short"))
    for i, channel in enumerate(("right", "short")):
        segment.arrays[f"rewards/{channel}"][:] = torch.tensor([row[i] for row in rewards])
    task = TextTask("t", [Example("first")], [Example("last")], lambda p, c: [0.0], ("right", "short"), (1.0, 5.0))
    writer = PairWriter(
        tmp_path / "p.jsonl", build_model(SIZES, TOKENIZER.vocab_size, seed=0), TOKENIZER, task=task, order=order
    )
    best, worst = writer._in_order(writer.prepare({"rollouts": [segment, segment]}, progress=0.0))
    n = len(rewards)
    pairs = list(zip(best.tolist(), worst.tolist(), strict=True))
    assert [(b + n, w + n) for b, w in pairs[: len(pairs) // 2]] == pairs[len(pairs) // 2 :], "groups do not mix"
    return pairs[: len(pairs) // 2]


def test_pairs_by_the_order_of_channels(tmp_path):
    rewards = [[1.0, 0.0], [1.0, 0.4], [0.0, 9.0]]
    assert ordered_pairs(tmp_path, rewards, {"right": 0.0, "short": 0.0}) == [(1, 2)]
    assert ordered_pairs(tmp_path, rewards, {"short": 0.0, "right": 0.0}) == [(2, 0)]
    assert ordered_pairs(tmp_path, rewards, {"right": 2.0}) == []
    # 0 > 1 and 1 > 2 by the second channel, 2 > 0 by the first, whose other differences are too small to count
    circle = [[0.0, 2.0], [0.5, 1.0], [1.0, 0.0]]
    assert ordered_pairs(tmp_path, circle, {"right": 0.5, "short": 0.0}) == []
    # the one that wins most often loses against the one that loses most often, and against no other
    upset = [[0.0, 4.0], [0.5, 3.0], [1.0, 1.0], [0.5, 2.0]]
    assert ordered_pairs(tmp_path, upset, {"right": 0.5, "short": 0.0}) == []
    assert ordered_pairs(tmp_path, upset, {"short": 0.0}) == [(0, 2)]


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (["right", "wrong"], "there is no reward channel 'wrong'; the task has right, short"),
        (["right", "right=1"], "'right' is there twice"),
        (["right=much"], "write NAME or NAME=MARGIN"),
        (["right=-1"], "with a margin of at least 0"),
        (["right=nan"], "with a margin of at least 0"),
    ],
)
def test_an_order_that_cannot_be_is_refused(order, says):
    with pytest.raises(ConfigError, match=says) as found:
        parsed_order(order, ("right", "short"))
    assert found.value.field == "order"


def test_an_order_of_unknown_channels_is_refused_before_a_run_is_made():
    from runnel.recipes import make_pairs

    config = make_pairs.Config(order=("exact", "style=0.5"), lm=SIZES)
    with pytest.raises(ConfigError, match="there is no reward channel 'style'; the task has exact") as found:
        make_pairs.build(config)
    assert found.value.field == "order"


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
