"""Groups whose first member is the demonstrated answer (RL-PLUS): what is made and told of it, and what the learner asks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from answered_groups import ANSWER, MAX_TOKENS, TASKS, TOKENIZER, N, build, client_of, stream_of, task_of
from made_tokens import VOCAB, group

import runnel as rl
from runnel.core.errors import ConfigError
from runnel.flow.staleness import LagRule
from runnel.llm.algorithms.rl_plus import RLPlus, RLPlusConfig
from runnel.llm.learning.batches import join_rows
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.model.causal_lm import ModelConfig, build_model
from runnel.llm.sampling.sampler import PromptSampler
from runnel.llm.tasks import Example, TextTask

SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=64)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def sampler_of(task=None, **more):
    more = {"group_size": N, "max_tokens": MAX_TOKENS, "seed": 1, "demo_first": True} | more
    return PromptSampler(task or task_of(), TOKENIZER, **more)


def played(sampler, num, stream=None):
    client, stream = client_of(), stream or stream_of(num)
    while len(stream.committed) + len(stream.cancelled) < num:
        sampler.step({"policy": client}, {"rollouts": stream})
    return stream


def rows_of(segment):
    """Of each row: what is trained, its versions, its log-probabilities, its reward, and whether it ended."""
    a = segment.arrays
    for row in range(N):
        start, end = int(a["row_start"][row]), int(a["row_start"][row] + a["row_length"][row])
        made = slice(start + int(a["prompt_length"][row]), end)
        assert bool(a["loss_mask"][made].all())
        yield [a[k][made].tolist() for k in ("tokens", "policy_version", "logprob")] + [
            float(a["rewards/reward"][row]),
            bool(a["terminated"][row]),
        ]


def test_the_first_member_is_the_answer_and_nobodys():
    judged = []
    sampler = sampler_of(task_of(judged))
    for segment in played(sampler, 6).take(6):
        (tokens, versions, logprob, reward, ended), *others = rows_of(segment)
        assert tokens == TOKENIZER.answer(ANSWER)
        assert (set(versions), set(logprob), ended) == ({-1}, {0.0}, True)
        assert reward == len(ANSWER), "it is judged as the others are"
        for _, versions, logprob, _, _ in others:
            assert set(versions) == {0}
            assert max(logprob) < 0
        assert (segment.header.version_min, segment.header.version_max) == (0, 0)
    assert judged.count(ANSWER) == 6
    told = sampler.events()
    episodes = [e for e in told if e["kind"] == "episode"]
    assert len(episodes) == 6 * (N - 1), "a demonstration is no episode of the policy"
    assert all(e["completion"] != ANSWER for e in told if e["kind"] == "sample")


def test_completions_beside_a_demonstration_are_those_without():
    with_demo = played(sampler_of(), 3).take(3)
    without = played(sampler_of(demo_first=False), 3).take(3)
    for a, b in zip(with_demo, without, strict=True):
        assert list(rows_of(a))[1:] == list(rows_of(b))[1:]


def test_a_reset_group_has_the_rest_of_the_answer():
    lengths = set()
    for segment in played(sampler_of(reset_share=1.0), 12).take(12):
        tokens, *_ = next(rows_of(segment))
        assert tokens == TOKENIZER.answer(ANSWER)[-len(tokens) :]
        lengths.add(len(tokens))
    assert len(lengths) > 1


def test_a_prompt_whose_answer_has_no_place_is_passed_over_with_the_reason():
    train = [Example("q0", ANSWER, {"number": 0}), Example("q1", "a" * MAX_TOKENS, {"number": 1}), Example("q2", None)]
    base = task_of()
    stream = played(sampler_of(TextTask("some", train, base.eval, base.reward)), 12, stream_of(12))
    reasons = {"no_answer", f"answer_too_long: {MAX_TOKENS + 1} tokens, room for {MAX_TOKENS}"}
    assert set(stream.cancelled) == reasons
    assert len(stream.committed) == 4


def test_a_demonstration_makes_no_group_too_old():
    rule = LagRule(lag=2, batch=1, exact=False)
    sampler, client, stream = sampler_of(too_old=rule.should_abort), client_of(), stream_of(1)
    while not any(g.replies and g.tickets for g in sampler._groups):
        sampler.step({"policy": client}, {"rollouts": stream})
    stream.learner_version = 2
    sampler.step({"policy": client}, {"rollouts": stream})
    assert stream.cancelled == []


def test_a_group_that_is_restored_goes_on():
    sampler, client, stream = sampler_of(), client_of(), stream_of(1)
    sampler.step({"policy": client}, {"rollouts": stream})
    other = sampler_of()
    other.restore(sampler.snapshot(), {"rollouts": stream})
    while not stream.committed:
        other.step({"policy": client}, {"rollouts": stream})
    assert next(rows_of(stream.take(1)[0]))[0] == TOKENIZER.answer(ANSWER)


def test_the_old_policy_is_asked_about_demonstrations_alone():
    """Its log-probabilities are the model's own at the start of the update, row by row; all other tokens have 0."""
    algorithm = RLPlus(RLPlusConfig(), channels={"exact": 1.0}, vocab_size=VOCAB)
    config = TokenLearnerConfig(max_mismatch=1e9, precision="float64", temperature=0.7)
    learner = TokenLearner(config, build_model(SIZES, VOCAB, seed=0), algorithms={"rollouts": algorithm})
    rng = np.random.default_rng(0)
    segments = [group(rng, [1.0, 0.0, 0.5], demo_first=True), group(rng, [1.0, 0.0], demo_first=True)]
    found = learner.prepare({"rollouts": segments}, progress=0.0)["external_logprob"]
    rows, expected = join_rows(segments), []
    for i, (start, length) in enumerate(zip(rows["row_start"].tolist(), rows["row_length"].tolist(), strict=True)):
        tokens, mask = (rows[k][start : start + length] for k in ("tokens", "loss_mask"))
        with torch.no_grad():
            logits = learner.policy.model(tokens[None]).logits[0].double() / 0.7
        own = torch.log_softmax(logits, dim=-1)[:-1].gather(1, tokens[1:, None]).squeeze(1)
        expected += [0.0, *(own * (mask[1:] & (i in (0, 3)))).tolist()]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_what_has_no_demonstration_is_refused_before_anything_starts(tmp_path):
    file = tmp_path / "tasks.py"
    file.write_text(TASKS)
    assert build("rl_plus").title == "reverse"
    with pytest.raises(ConfigError, match="'bare': it has train examples without an answer"):
        build("rl_plus", task=f"{file}:bare")
    for name, value in (("chat", "guess"), ("tools", ("calculator",))):
        with pytest.raises(ConfigError, match=f"{name} = .*conversations have none"):
            build("rl_plus", **{name: value}).config.check()
    with pytest.raises(ConfigError, match=r"filter\.on = True: .*easier than they are"):
        build("rl_plus", filter={"on": True}).config.check()
    with pytest.raises(ConfigError, match="vocab_size"):
        RLPlus(RLPlusConfig(), channels={"exact": 1.0}, vocab_size=0)


@pytest.mark.parametrize(
    "more",
    [
        {"rl_plus": {"kl_coef": 0.1}, "placement": {"threads": 1, "reference_workers": 1}},
        {"mix": ("demos=0.3",)},
        {"top_k": 20, "record": {"groups_every": 1}, "reset_share": 0.5, "max_refills": 2},
    ],
    ids=["reference", "mix", "record"],
)
def test_it_runs_beside(more, tmp_path):
    tiny = {"lm": {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "inner": 32}, "track": (), "eval": {"episodes": 0}}
    tiny |= {"num_prompts": 2, "group_size": 3, "total_updates": 3, "checkpoint": {"every": 0}, "placement": {"threads": 1}}
    rows = rl.train("rl_plus", seed=1, out=str(tmp_path), **{**tiny, **more}).rows()
    assert [row["metrics"]["external/probability"] > 0 for row in rows] == [True] * 3
    if "rl_plus" in more:  # workers of its own say what the learner's reference says
        one = rl.train("rl_plus", seed=1, out=str(tmp_path), **{**tiny, "rl_plus": more["rl_plus"]}).rows()
        assert [row["metrics"]["kl"] for row in one] == pytest.approx([row["metrics"]["kl"] for row in rows], rel=1e-4)
