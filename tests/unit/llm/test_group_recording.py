"""Groups as the learner sees them: text by token, rewards, advantages, and what both models say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from made_tokens import VOCAB, demos, group, pairs

from runnel.core.contracts.learning import Learner
from runnel.core.records import Header, Segment
from runnel.llm.algorithms.base import Algorithm
from runnel.llm.algorithms.dpo import DPO, DPOConfig
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.algorithms.sft import SupervisedFineTuning
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.learning.recording import GroupRecorder, token_texts
from runnel.llm.model.causal_lm import ModelConfig, build_model
from runnel.llm.tasks import Example
from runnel.llm.tokenize import CharTokenizer

SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=64)
CHANNELS = {"exact": 1.0, "style": 0.5}


class Letters(CharTokenizer):
    """Token 3 is a, 4 is b, and so on."""

    vocab_size = VOCAB

    def decode(self, tokens: Any) -> str:
        return "".join(chr(ord("a") + t - 3) for t in tokens if t >= 3)


def learner_of(recorder: GroupRecorder | None, **changes: Any) -> TokenLearner:
    torch.set_num_threads(1)
    algorithms: dict[str, Algorithm] = {
        "rollouts": GRPO(GRPOConfig(normalise="none", aggregation="constant"), channels=CHANNELS, max_tokens=6),
        "demos": SupervisedFineTuning(),
        "pairs": DPO(DPOConfig()),
    }
    config = TokenLearnerConfig(max_mismatch=1e9, **changes)
    return TokenLearner(config, build_model(SIZES, VOCAB, seed=0), algorithms=algorithms, recorder=recorder)


def events_of(learner: Learner, **segments: list[Segment]) -> list[dict[str, Any]]:
    return learner.update(learner.prepare(segments, progress=0.0)).events


def rollout(seed: int, rewards: list[float], **header: int) -> Segment:
    segment = group(np.random.default_rng(seed), rewards)
    segment.arrays["rewards/style"][:] = torch.tensor([0.5] * (len(rewards) - 1) + [torch.nan])
    starts, lengths = segment.arrays["row_start"], segment.arrays["row_length"]
    for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        segment.arrays["prompt_length"][row] = length - segment.arrays["loss_mask"][start : start + length].sum()
    return Segment(0, segment.spec, Header(used=segment.header.used, **header), segment.arrays)


def recorder_of(every: int = 1, **more: Any) -> GroupRecorder:
    return GroupRecorder(Letters(), every=every, channels=CHANNELS, source="letters", **more)


def test_a_group_is_told_as_the_learner_trained_on_it() -> None:
    examples = [Example("x"), Example([{"role": "user", "content": "say"}, {"role": "user", "content": "it"}])]
    learner = learner_of(recorder_of(example={e.id: e for e in examples}.get))
    segment = rollout(3, [1.0, 0.0, 0.5], task_id=examples[1].id, sample_id=96)
    (event,) = events_of(learner, rollouts=[segment])
    assert (event["kind"], event["version"], event["task_id"], event["sample_id"]) == ("group", 1, examples[1].id, 96)
    assert (event["source"], event["messages"]) == ("letters", examples[1].prompt)
    rewards = [(r["reward"], r["rewards"], r["passed"]) for r in event["rows"]]
    assert rewards == [
        (1.25, {"exact": 1.0, "style": 0.5}, True),
        (0.25, {"exact": 0.0, "style": 0.5}, False),
        (0.5, {"exact": 0.5, "style": None}, False),
    ]
    mean = (1.25 + 0.25 + 0.5) / 3
    assert [r["advantage"] for r in event["rows"]] == pytest.approx([1.25 - mean, 0.25 - mean, 0.5 - mean], abs=1e-4)
    start = 0
    for i, row in enumerate(event["rows"]):
        end = start + int(segment.arrays["row_length"][i])
        answer = segment.arrays["loss_mask"][start:end]
        ids = segment.arrays["tokens"][start:end][answer]
        assert row["ids"] == ids.tolist()
        assert "".join(row["tokens"]) == row["completion"] == Letters().decode(row["ids"])
        assert row["logprob"] == pytest.approx(segment.arrays["logprob"][start:end][answer].tolist(), abs=1e-5)
        assert row["mask"] == [1] * len(ids)
        assert len(row["advantages"]) == len(row["entropy"]) == len(row["versions"]) == len(ids)
        gaps = [ours - theirs for ours, theirs in zip(row["learner_logprob"], row["logprob"], strict=True)]
        assert row["mismatch"] == pytest.approx(gaps, rel=0.01, abs=1e-4)
        start = end


def test_the_learners_log_probabilities_are_those_before_the_step() -> None:
    segment = rollout(4, [1.0, 0.0])
    (event,) = events_of(learner_of(recorder_of(), num_epochs=3, lr=0.1), rollouts=[segment])
    model = build_model(SIZES, VOCAB, seed=0)
    start = 0
    for i, row in enumerate(event["rows"]):
        end = start + int(segment.arrays["row_length"][i])
        tokens = segment.arrays["tokens"][start:end]
        with torch.no_grad():
            all_of = model(tokens[None]).logits[0].log_softmax(-1)
        expected = all_of[:-1].gather(1, tokens[1:, None]).squeeze(1)[-len(row["ids"]) :]
        assert row["learner_logprob"] == pytest.approx(expected.tolist(), abs=1e-4)
        start = end


def test_recording_changes_nothing_that_is_learned() -> None:
    found = []
    for recorder in (None, recorder_of()):
        learner = learner_of(recorder, num_minibatches=2, num_epochs=2)
        start = torch.cat([p.flatten() for p in learner.params().values()]).clone()
        for seed in range(3):
            learner.update(learner.prepare({"rollouts": [rollout(seed, [1.0, 0.0]), rollout(9, [0.0, 2.0])]}, progress=0.0))
        found.append(torch.cat([p.flatten() for p in learner.params().values()]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], start), "something was learned"


def test_groups_take_turns_and_only_some_versions_record() -> None:
    learner = learner_of(recorder_of(every=2))
    batch = [rollout(1, [1.0, 0.0], sample_id=10), rollout(2, [1.0, 0.0], sample_id=20)]
    told = [[e["sample_id"] for e in events_of(learner, rollouts=batch)] for _ in range(6)]
    assert told == [[], [20], [], [10], [], [20]]
    assert events_of(learner_of(recorder_of(every=0)), rollouts=batch) == []


def test_a_group_without_signal_is_told_whole_where_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no gradient, but statistics read it. Beyond their bound some groups are not read: then the engine's word and the
    rewards are told all the same."""

    def told() -> list[dict[str, Any]]:
        segments = [rollout(seed, [1.0, 1.0]) for seed in (1, 2)]
        for segment in segments:
            segment.arrays["rewards/style"][:] = 0.0
        (event,) = events_of(learner_of(recorder_of()), rollouts=segments)
        assert [r["advantage"] for r in event["rows"]] == [0.0, 0.0]
        assert all("logprob" in r for r in event["rows"])
        return list(event["rows"])

    assert all(len(r["learner_logprob"]) == len(r["entropy"]) == len(r["ids"]) for r in told())
    monkeypatch.setattr("runnel.llm.learning.learner.READ_LEAST", 1)
    monkeypatch.setattr("runnel.llm.learning.learner.READ_SHARE", 0.0)
    assert sum("learner_logprob" in r for r in told()) <= 1


def test_a_pair_is_a_group_of_two_and_demonstrations_are_none() -> None:
    learner = learner_of(recorder_of())
    rng = np.random.default_rng(0)
    assert events_of(learner, demos=[demos(rng, 4)]) == []
    (event,) = events_of(learner, pairs=[pairs(rng, 3)])
    assert [r["label"] for r in event["rows"]] == ["chosen", "rejected"]
    assert [r["advantage"] for r in event["rows"]] == [1.0, -1.0]
    assert event["rows"][0]["reward"] is None
    assert event["prompt"].isalpha()


@pytest.mark.parametrize("text", ["", "plain", "añ€😀b", "日本語のテキスト"])
def test_the_texts_of_tokens_join_to_the_text(text: str) -> None:
    t = CharTokenizer()
    texts = token_texts([*t.encode(text), t.eos_id], t.decode)
    assert "".join(texts) == text
    assert len(texts) == len(text.encode()) + 1
    assert not any("\ufffd" in piece for piece in texts)


def test_bytes_that_are_no_character_are_shown_as_such() -> None:
    t = CharTokenizer()
    ids = [*t.encode("a"), 6 + 0xE2, *t.encode("bc"), 6 + 0xF0]
    texts = token_texts(ids, t.decode)
    assert "".join(texts) == t.decode(ids) == "a\ufffdbc\ufffd"
    assert texts[0] == "a"
