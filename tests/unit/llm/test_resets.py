"""Completions that begin behind a part of a demonstrated answer (dataset reset): what is made, trained, judged and kept."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest
import torch
from answered_groups import ANSWER, MAX_TOKENS, TASKS, TOKENIZER, N, build, client_of, stream_of, task_of

import runnel as rl
from runnel.core.errors import ConfigError, UnusedSettingError
from runnel.llm.sampling.sampler import PromptSampler


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def sampler_of(share, task=None, **more):
    return PromptSampler(task or task_of(), TOKENIZER, group_size=N, max_tokens=MAX_TOKENS, seed=1, reset_share=share, **more)


def segments(sampler, num):
    client, stream = client_of(), stream_of(num)
    while len(stream.committed) < num:
        sampler.step({"policy": client}, {"rollouts": stream})
    return stream.take(num)


def rows_of(segment):
    """Of each row: given tokens of the answer, completion, all trained tokens, and reward."""
    a, out = segment.arrays, []
    whole = TOKENIZER.answer(ANSWER)
    for row in range(N):
        start, length, prompt = (int(a[k][row]) for k in ("row_start", "row_length", "prompt_length"))
        tokens, mask = a["tokens"][start : start + length], a["loss_mask"][start : start + length]
        asked = next(
            t for i in range(40) if (t := TOKENIZER.render([{"role": "user", "content": f"q{i}"}])) == tokens[: len(t)].tolist()
        )
        given = tokens[len(asked) : prompt].tolist()
        assert given == whole[: len(given)], "it is the beginning of the answer"
        assert mask.tolist() == [False] * prompt + [True] * (length - prompt), "what is given is not trained"
        out.append((given, tokens[prompt:].tolist(), float(a["rewards/reward"][row])))
    return out


def test_rewards_judge_the_whole_answer_and_what_is_made_alone_is_trained():
    judged = []
    found = [row for s in segments(sampler_of(1.0, task_of(judged)), 12) for row in rows_of(s)]
    assert sorted(judged) == sorted(TOKENIZER.decode(given + made) for given, made, _ in found)
    for given, made, reward in found:
        assert 1 <= len(given) <= 4
        ended = made[-1] == TOKENIZER.eos_id
        assert ended or len(given) + len(made) == MAX_TOKENS, "the limit is that of the whole answer"
        assert reward == len(TOKENIZER.decode(given + made))


def test_completions_of_a_prompt_begin_alike_and_lengths_are_uniform():
    drawn = []
    for s in segments(sampler_of(0.5), 240):
        first, *others = [given for given, _, _ in rows_of(s)]
        assert all(given == first for given in others), "a group is compared"
        drawn.append(len(first))
    counts = collections.Counter(drawn)
    # 240 draws of 1/2 lie within 120 +- 4 deviations of 7.7; of the resets, each of four lengths within 30 +- 4 of 5.1
    assert 89 <= 240 - counts[0] <= 151
    assert all(9 <= counts[h] <= 51 for h in (1, 2, 3, 4))
    assert set(counts) == {0, 1, 2, 3, 4}


def test_without_a_share_nothing_changes():
    plain, none = (segments(sampler_of(share), 4) for share in (0.0, 1e-12))
    for a, b in zip(plain, none, strict=True):
        assert all(torch.equal(a.arrays[k], b.arrays[k]) for k in a.arrays)


def test_an_answer_without_room_and_a_prompt_without_an_answer_are_not_reset():
    short = PromptSampler(task_of(), TOKENIZER, group_size=N, max_tokens=1, seed=1, reset_share=1.0)
    for s in [*segments(short, 3), *segments(sampler_of(1.0, task_of(answers=False)), 3)]:
        assert [given for given, _, _ in rows_of(s)] == [[]] * N


def test_a_group_that_is_restored_has_its_prefix():
    sampler, client, stream = sampler_of(1.0), client_of(), stream_of(1)
    sampler.step({"policy": client}, {"rollouts": stream})
    (group,) = sampler._groups
    other = sampler_of(1.0)
    other.restore(sampler.snapshot(), {"rollouts": stream})
    assert other._groups[0].context == group.context
    assert other._groups[0].prefix == group.prefix != []


def test_what_cannot_be_reset_is_refused_before_anything_starts(tmp_path):
    assert build(reset_share=0.5).title == "reverse"
    with pytest.raises(ConfigError, match=r"reset_share = 0\.5: .*filter\.on"):
        build(reset_share=0.5, filter={"on": True}).config.check()
    with pytest.raises(ConfigError, match=r"reset_share = 1\.5"):
        build(reset_share=1.5)
    with pytest.raises(UnusedSettingError, match="reset_share"):
        build(reset_share=0.5, chat="guess")
    with pytest.raises(UnusedSettingError, match="reset_share"):
        build("make_pairs", reset_share=0.5, pairs_out=str(tmp_path / "p.jsonl"))
    file = tmp_path / "tasks.py"
    file.write_text(TASKS)
    with pytest.raises(ConfigError, match=r"reset_share = 0\.5: task 'bare' has no answers"):
        build(reset_share=0.5, task=f"{file}:bare")
    with pytest.raises(ConfigError, match=r"reset_share = 0\.5: the reward \(each\) is given by token"):
        build(reset_share=0.5, task=f"{file}:by_token")


def test_a_run_learns_from_resets(tmp_path: Path) -> None:
    """It trains, bit for bit the same twice, and otherwise than without."""
    tiny = {"lm": {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "inner": 32}, "track": (), "placement": {"threads": 1}}
    tiny |= {"num_prompts": 2, "group_size": 2, "total_updates": 3, "eval": {"episodes": 0}, "checkpoint": {"every": 0}}
    found = []
    for i, share in enumerate((0.7, 0.7, 0.0)):
        run = rl.train("grpo", seed=1, out=str(tmp_path / str(i)), reset_share=share, **tiny)
        found.append([row["metrics"]["completion_length"] for row in run.rows()])
    assert found[0] == found[1] != found[2]
