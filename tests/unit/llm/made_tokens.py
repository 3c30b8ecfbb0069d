"""Made-up groups, demonstrations and pairs for tests of the token learner and its algorithms."""

from __future__ import annotations

import torch

from runnel.core.records import Header, Segment, trim
from runnel.llm.sampling.groups import demo_stream, pair_stream, rollout_stream, write_row

VOCAB = 20


def words(rng, low=1, high=6):
    return torch.tensor(rng.integers(3, VOCAB, size=int(rng.integers(low, high))))


def group(rng, rewards, version=0, index=0, greedy_first=False):
    spec = rollout_stream(group_size=len(rewards), max_prompt=6, max_tokens=6, rewards=("exact", "style"))
    arrays, start = spec.allocate(), 0
    prompt = words(rng)
    for row, reward in enumerate(rewards):
        answer = words(rng)
        end = start + write_row(arrays, row, start, prompt, answer)
        arrays["logprob"][end - len(answer) : end] = torch.tensor(rng.normal(-3.0, 0.3, size=len(answer))).float()
        arrays["policy_version"][start:end] = version
        arrays["rewards/exact"][row] = reward
        if greedy_first and row == 0:
            arrays["loss_mask"][start:end] = False
        start = end
    used = {"N": start}
    return Segment(index, spec, Header(used=used), trim(spec, arrays, used))


def demos(rng, rows):
    spec = demo_stream(rows=rows, max_length=12)
    return _filled(spec, [(words(rng), words(rng)) for _ in range(rows)])


def pairs(rng, num):
    spec = pair_stream(num_pairs=num, max_length=12)
    prompts = [words(rng) for _ in range(num)]
    return _filled(spec, [(prompt, words(rng)) for prompt in prompts for _ in range(2)])


def _filled(spec, rows):
    arrays, start = spec.allocate(), 0
    for row, (prompt, answer) in enumerate(rows):
        start += write_row(arrays, row, start, prompt, answer)
    return Segment(0, spec, Header(used={"N": start}), trim(spec, arrays, {"N": start}))
